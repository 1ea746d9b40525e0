package xdp

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// newModelled is a node as shortcutModel knows it: a pair, routes to other nodes behind an uplink that lo stands in for.
func newModelled(t testing.TB, native bool) *Shortcut {
	t.Helper()
	s := newPair(t, native)
	standIn(t, s, shortcutMapDevices, loopback)
	standIn(t, s, shortcutMapUplinks, uplinkDev)
	standIn(t, s, shortcutMapUplinks, loopback)
	putUplinkEntry(t, s, uplinkDev, uplinkDev)
	setRoutes(t, s, uplinkDev)
	return s
}

func putUplinkEntry(t testing.TB, s *Shortcut, ifindex, counters uint32) {
	t.Helper()
	v := shortcutAttachment{Flags: flagUplink, Counters: counters, Mtu: 1500, GatewayMac: [6]uint8(uplinkMAC)}
	m, err := s.ownMap(shortcutMapAttachments)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Put(ifindex, v); err != nil {
		t.Fatal(err)
	}
}

func setRoutes(t testing.TB, s *Shortcut, uplink uint32) {
	t.Helper()
	hop := NextHop{Uplink: uplink, DstMAC: nextMAC, SrcMAC: uplinkMAC, MTU: 1400, Usable: true}
	for _, err := range []error{s.SetRoute(nodes4, hop), s.SetRoute(nodes6, hop)} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// asUplink makes lo, which lends the frames of test runs, an uplink in place of the guest's TAP.
func asUplink(t testing.TB, s *Shortcut) {
	t.Helper()
	putUplinkEntry(t, s, loopback, loopback)
	setRoutes(t, s, loopback)
}

func modelOf(t testing.TB, s *Shortcut, program string) *shortcutModel {
	t.Helper()
	v, err := s.Settings()
	if err != nil {
		t.Fatal(err)
	}
	return &shortcutModel{program: program, tunnels: v.TunnelPorts, taken: map[string]bool{}}
}

// agree runs a frame by the program and by the model.
func agree(t testing.TB, s *Shortcut, m *shortcutModel, frame []byte) shortcutPathReason {
	t.Helper()
	want := m.decide(bytes.Clone(frame))
	wantPath(t, s, m.program, frame, want.reason, want.out)
	return want.reason
}

// shortcutSeeds are frames for each reason and each way through the parser, from these sources to this MAC.
func shortcutSeeds(src4, src6 netip.Addr, mac net.HardwareAddr) [][]byte {
	var out [][]byte
	add := func(frames ...[]byte) {
		for _, f := range frames {
			out = append(out, with(f, 0, mac...))
		}
	}
	for _, way := range []struct {
		src  netip.Addr
		dsts []netip.Addr
	}{
		{src4, []netip.Addr{peer4, remote4, guest4.Addr(), offLink4}},
		// The last two are keys of IPv4 addresses in the maps.
		{src6, []netip.Addr{peer6, remote6, guest6.Addr(), offLink6, netip.AddrFrom16(peer4.As16()), netip.AddrFrom16(remote4.As16())}},
	} {
		src, icmp := way.src, 1
		if src.Is6() {
			icmp = protoICMP6
		}
		for _, dst := range way.dsts {
			whole := packet(src, dst, protoTCP, tcp(src, dst, 1000, 80, tcpACK, []byte("payload")))
			_, part := leavePartial(whole)
			add(whole, part,
				packet(src, dst, protoTCP, tcp(src, dst, 1000, 80, tcpSYN)),
				packet(src, dst, protoUDP, udp(src, dst, 1000, 53, []byte("payload!"))),
				packet(src, dst, protoUDP, udp(src, dst, 1000, 4789, []byte("vxlan"))),
				packet(src, dst, protoUDP, udp(src, dst, 8472, 53, []byte("vxlan"))),
				packet(src, dst, protoUDP, udp(src, dst, 1000, 53, make([]byte, 1480))),
				packet(src, dst, protoUDP, udp(src, dst, 1000, 53, make([]byte, 1400))),
				packet(src, dst, icmp, echo(src, dst, true, 99)),
				packet(src, dst, icmp, echo(src, dst, false, 7, []byte("ping"))),
				packet(src, dst, icmp, echo(src, dst, true, 7, []byte("ping"))),
				packet(src, dst, 132, make([]byte, 20)),
				packet(src, dst, icmp, icmpError(src, dst, 3, packet(dst, src, protoUDP, udp(dst, src, 53, 1000))[14:])),
				packet(src, dst, icmp, icmpError(src, dst, 3, packet(dst, src, icmp, echo(dst, src, false, 7))[14:])),
				pad(packet(src, dst, protoUDP, udp(src, dst, 1000, 53)), 100),
			)
		}
	}
	u := packet(src4, peer4, protoUDP, udp(src4, peer4, 1000, 53, []byte("payload!")))
	u6 := packet(src6, peer6, protoUDP, udp(src6, peer6, 1000, 53, []byte("payload!")))
	add(
		with(u, 6, strangerMAC...), with(u, 14, 0x46), with(u, 14, 0x44), with(u, 14, 0x65), with(u6, 14, 0x40),
		with(u, 20, 0x20), with(u, 21, 1), with(u, 22, 1), with(u, 22, 0), with(u, 22, 2), with(u6, 21, 1), with(u6, 21, 2),
		with(u, 16, 0xff), with(u, 16, 0, 19), with(u6, 18, 0xff), with(u, 38, 0, 9), with(u6, 58, 0, 7),
		with(u, 40, 0, 0), with(u6, 60, 0, 0),
		with(u, 26, 10, 9, 0, 6), with(u, 26, 0, 0, 0, 0), with(u6, 22, 0xfe, 0x80), with(u6, 22, 0x20, 0x02),
		with(u6, 20, protoHop), with(u6, 20, protoFragment), with(u6, 20, protoDest), with(u6, 20, protoAuth), with(u6, 20, protoRouting),
		with(u6, 20, protoNone), with(u, 12, 0x81, 0), with(u, 12, 0x86, 0xdd), with(u6, 12, 8, 0),
		u[:33], u6[:53], u[:41], u6[:61], u[:15], arpRequest(guest4.Addr(), gateway4), ns(guest6.Addr(), gateway6),
	)
	mapped := remote4.As16()
	add(with(packet(src6, guest6.Addr(), protoUDP, udp(src6, guest6.Addr(), 1000, 53)), 22, mapped[:]...))
	return append(out, u, u6, with(u, 0, strangerMAC...), with(u6, 0, broadcast...))
}

func seedsFor(program string) [][]byte {
	if program == shortcutProgUplinkXdp {
		return shortcutSeeds(remote4, remote6, uplinkMAC)
	}
	return shortcutSeeds(guest4.Addr(), guest6.Addr(), GatewayMAC)
}

// hearFromPeer has the peer send what the seeds' ICMP errors are about.
func hearFromPeer(t *testing.T, s *Shortcut, m *shortcutModel) {
	t.Helper()
	for _, a := range families(peer4, peer6) {
		guest, peer := a[0], a[1]
		request := with(packet(peer, guest, protoUDP, udp(peer, guest, 53, 1000)), offEthSrc, peerMAC...)
		asPeer(t, s, func() {
			wantPath(t, s, shortcutProgGuestXdp, request, shortcutPathReasonPATH_TO_GUEST, routed(request, guestMAC, GatewayMAC))
		})
		m.taken[flowOf(peer, guest, protoUDP, join(be16(53), be16(1000)))] = true
	}
}

// Each program and the model agree on each seed, and the seeds reach each reason that a program can give here.
func TestShortcutReasons(t *testing.T) {
	for program, want := range map[string]int{
		shortcutProgGuestXdp: 18, shortcutProgGuestXdpSkb: 19, shortcutProgHostShortcut: 15, shortcutProgUplinkXdp: 12,
	} {
		t.Run(program, func(t *testing.T) {
			s := newModelled(t, true)
			m := modelOf(t, s, program)
			if program == shortcutProgUplinkXdp {
				asUplink(t, s)
			} else {
				hearFromPeer(t, s, m)
			}
			seen := map[shortcutPathReason]bool{}
			for _, f := range seedsFor(program) {
				if testable(s, f) {
					seen[agree(t, s, m, f)] = true
				}
			}
			var names []string
			for r := range seen {
				names = append(names, pathNames[r])
			}
			if len(seen) < want {
				t.Errorf("saw %d reasons, want %d: %q", len(seen), want, names)
			}
		})
	}
}

// testable says whether this kernel test-runs such a frame.
func testable(s *Shortcut, frame []byte) bool {
	if len(frame) < 15 || len(frame) > 3000 {
		return false
	}
	_, err := s.programs[shortcutProgHostShortcut].Run(&ebpf.RunOptions{Data: frame})
	return !errors.Is(err, unix.EINVAL)
}

// Random frames, near the seeds: the program does what the model says, and what passes comes out as it went in.
func TestShortcutAgreesWithModel(t *testing.T) {
	const rounds = 4000
	for _, program := range fastpathPrograms {
		t.Run(program, func(t *testing.T) {
			s := newModelled(t, true)
			m := modelOf(t, s, program)
			if program == shortcutProgUplinkXdp {
				asUplink(t, s)
			} else {
				hearFromPeer(t, s, m)
			}
			seed := rand.Uint64()
			rnd := rand.New(rand.NewPCG(seed, 0))
			seeds := seedsFor(program)
			taken := 0
			for i := range rounds {
				f := mutate(rnd, seeds[rnd.IntN(len(seeds))])
				if !testable(s, f) {
					continue
				}
				if r := agree(t, s, m, f); r == shortcutPathReasonPATH_TO_GUEST || r == shortcutPathReasonPATH_TO_UPLINK {
					taken++
				}
				if t.Failed() {
					t.Fatalf("round %d of seed %d", i, seed)
				}
			}
			if taken < rounds/20 {
				t.Errorf("%d of %d frames took the shortcut: the test shows too little", taken, rounds)
			}
		})
	}
}

// mutate changes a few bytes of the headers, or the frame's length, or nothing.
func mutate(rnd *rand.Rand, frame []byte) []byte {
	f := bytes.Clone(frame)
	for range rnd.IntN(3) {
		at := 12 + rnd.IntN(min(len(f), 90)-12)
		switch rnd.IntN(3) {
		case 0:
			f[at] = byte(rnd.Uint32())
		case 1:
			f[at] ^= 1 << rnd.IntN(8)
		default:
			f[at] += byte(rnd.IntN(5)) - 2
		}
	}
	if rnd.IntN(6) == 0 {
		return f[:15+rnd.IntN(len(f)-14)]
	}
	if rnd.IntN(6) == 0 {
		return append(f, make([]byte, rnd.IntN(20))...)
	}
	return f
}

// FuzzShortcut gives each program any frame.
func FuzzShortcut(f *testing.F) {
	for i, program := range fastpathPrograms {
		for _, frame := range seedsFor(program) {
			f.Add(frame, byte(i))
		}
	}
	tap := newModelled(f, true)
	f.Fuzz(func(t *testing.T, frame []byte, which byte) {
		program := fastpathPrograms[int(which)%len(fastpathPrograms)]
		if program == shortcutProgUplinkXdp || !testable(tap, frame) {
			return // BPF_PROG_TEST_RUN cannot take it
		}
		if err := tap.FlushFlows(); err != nil {
			t.Fatal(err)
		}
		agree(t, tap, modelOf(t, tap, program), frame)
	})
}
