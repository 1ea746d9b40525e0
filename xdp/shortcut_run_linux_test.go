package xdp

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// Verdicts of include/uapi/linux/bpf.h.
const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpRedirect = 4
)

// The other guest of the tests, and a node behind the uplink.
const (
	peerTAP   = 42
	peerHost  = 43
	uplinkDev = 77
)

var (
	peerMAC   = net.HardwareAddr{0x02, 0xaa, 0xbb, 0x00, 0x00, 0x77}
	peer4     = neighbour4
	peer6     = neighbour6
	remote4   = netip.MustParseAddr("10.20.3.4")
	remote6   = netip.MustParseAddr("2001:db8:20::4")
	nodes4    = netip.MustParsePrefix("10.20.0.0/16")
	nodes6    = netip.MustParsePrefix("2001:db8:20::/48")
	nextMAC   = net.HardwareAddr{0x02, 0x33, 0x33, 0x00, 0x00, 0x01}
	uplinkMAC = net.HardwareAddr{0x02, 0x44, 0x44, 0x00, 0x00, 0x02}
)

// guestParticipant is the guest whose TAP the test runs lend: lo, whose own netns is asked for conntrack.
func guestParticipant() Participant {
	return Participant{
		TAP: loopback, Host: 2, HostNSID: -1, MAC: guestMAC, MTU: 1500, SpoofCheck: true, Counters: loopback,
		Addresses: []netip.Prefix{guest4, guest4b, guest4p2p, guest6, guest6b},
	}
}

func peerParticipant() Participant {
	return Participant{
		TAP: peerTAP, Host: peerHost, HostNSID: -1, MAC: peerMAC, MTU: 1500, SpoofCheck: true, Counters: peerTAP,
		Addresses: []netip.Prefix{netip.PrefixFrom(peer4, 24), netip.PrefixFrom(peer6, 64)},
	}
}

// newShortcutAt pins the shortcut in a directory of this process: a fuzzer has several.
func newShortcutAt(t testing.TB) *Shortcut {
	t.Helper()
	testnode.Require(t, "root", "bpf", "btf")
	s, err := EnsureShortcut(filepath.Join(bpffs, "tapir-"+strconv.Itoa(os.Getpid())))
	if err != nil {
		t.Fatalf("load shortcut: %+v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := Remove(s.base); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newShortcutPrograms has programs for test runs: with native, runs look native.
func newShortcutPrograms(t testing.TB, native bool) *Shortcut {
	t.Helper()
	s := newShortcutAt(t)
	spec, err := loadShortcut()
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables[shortcutVarTestNative].Set(native); err != nil {
		t.Fatal(err)
	}
	shared := map[string]*ebpf.Map{}
	for _, name := range sharedMaps {
		if shared[name], err = s.ownMap(name); err != nil {
			t.Fatal(err)
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		t.Fatalf("load shortcut: %+v", err)
	}
	defer coll.Close()
	for _, name := range fastpathPrograms {
		s.programs[name] = coll.DetachProgram(name)
	}
	return s
}

// newPair has two guests that can reach each other: the one on lo, and a peer whose device lo stands in for.
func newPair(t testing.TB, native bool) *Shortcut {
	t.Helper()
	s := newShortcutPrograms(t, native)
	join2(t, s, guestParticipant())
	join2(t, s, peerParticipant())
	standIn(t, s, shortcutMapDevices, peerTAP)
	return s
}

func join2(t testing.TB, s *Shortcut, p Participant) {
	t.Helper()
	if err := s.Join(p); err != nil {
		t.Fatal(err)
	}
	if err := s.Publish(p.TAP); err != nil {
		t.Fatal(err)
	}
}

// standIn has lo as the device under a key.
func standIn(t testing.TB, s *Shortcut, name string, key uint32) {
	t.Helper()
	m, err := s.ownMap(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Put(key, shortcutBpfDevmapVal{Ifindex: loopback}); err != nil {
		t.Fatal(err)
	}
}

// path is what a program of the shortcut made of one frame.
type path struct {
	verdict int
	reason  ShortcutReason
	beside  map[ShortcutReason]uint64
	out     []byte
}

// walk gives one frame to a program and takes apart what it did. It fails the test where the frame was not counted under exactly
// one reason, with all its bytes.
func walk(t testing.TB, s *Shortcut, program string, frame []byte) path {
	t.Helper()
	before := pathsOf(t, s)
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	ret, err := s.programs[program].Run(&opts)
	if err != nil {
		t.Fatalf("run %s on %d bytes: %v", program, len(frame), err)
	}
	p := path{verdict: int(int32(ret)), out: opts.DataOut, beside: map[ShortcutReason]uint64{}}
	frames := uint64(0)
	for r, c := range pathsOf(t, s) {
		d := Counter{c.Frames - before[r].Frames, c.Bytes - before[r].Bytes}
		if d.Frames == 0 {
			continue
		}
		if d.Bytes != d.Frames*uint64(len(frame)) {
			t.Fatalf("%s counted %+v of a frame of %d bytes", r, d, len(frame))
		}
		if r.Beside() {
			p.beside[r] = d.Frames
			continue
		}
		p.reason = r
		frames += d.Frames
	}
	if frames != 1 {
		t.Fatalf("counted %d frames, want 1: %s", frames, dump(frame))
	}
	return p
}

func pathsOf(t testing.TB, s *Shortcut) map[ShortcutReason]Counter {
	t.Helper()
	c, err := s.ShortcutCounters(loopback)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// hookOf gives the reason as a program's hook counts it.
func hookOf(program string, r ShortcutReason) ShortcutReason {
	if program == shortcutProgHostShortcut {
		return tcReasons + r
	}
	return r
}

func verdictFor(program string, r ShortcutReason) int {
	tc := program == shortcutProgHostShortcut
	switch {
	case r.Taken() && tc:
		return verdictRedirect
	case r.Taken():
		return xdpRedirect
	case r.Dropped() && tc:
		return verdictDrop
	case r.Dropped():
		return xdpDrop
	case tc:
		return verdictNext
	}
	return xdpPass
}

// wantPath runs a frame and compares all that came of it. out nil stands for the frame as it came; r is without its hook.
func wantPath(t testing.TB, s *Shortcut, program string, frame []byte, r shortcutPathReason, out []byte) path {
	t.Helper()
	if out == nil {
		out = frame
	}
	reason := hookOf(program, ShortcutReason(r))
	got := walk(t, s, program, frame)
	if got.reason != reason || got.verdict != verdictFor(program, reason) {
		t.Errorf("%s, verdict %d; want %s, verdict %d\nframe %s", got.reason, got.verdict, reason, verdictFor(program, reason), dump(frame))
	}
	if !bytes.Equal(got.out, out) {
		t.Errorf("bytes out (%s):\ngot  %s\nwant %s", got.reason, dump(got.out), dump(out))
	}
	return got
}

// routed is what a router makes of a frame: other MACs, one hop less, and the header's checksum reckoned from nothing. A wrong
// checksum is as wrong afterwards: it must not be made right on the way.
func routed(frame []byte, dst, src net.HardwareAddr) []byte {
	out := bytes.Clone(frame)
	copy(out, dst)
	copy(out[6:], src)
	if binary.BigEndian.Uint16(out[12:]) == typeIPv6 {
		out[21]--
		return out
	}
	right := binary.BigEndian.Uint16(checksum(out[14:34])) == 0
	out[22]--
	if !right {
		sum := uint32(binary.BigEndian.Uint16(out[24:])) + 0x100
		binary.BigEndian.PutUint16(out[24:], uint16(sum+sum/0xffff))
		return out
	}
	copy(out[24:], []byte{0, 0})
	copy(out[24:], checksum(out[14:34]))
	return out
}

func tcp(src, dst netip.Addr, sport, dport int, flags byte, payload ...[]byte) []byte {
	body := join(payload...)
	h := join(be16(sport), be16(dport), []byte{0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags}, be16(512), []byte{0, 0, 0, 0})
	copy(h[16:], checksum(pseudo(src, dst, protoTCP, 20+len(body)), h, body))
	return join(h, body)
}

// pseudo is the pseudo header of either family.
func pseudo(src, dst netip.Addr, proto, length int) []byte {
	if src.Is4() {
		return pseudo4(src, dst, proto, length)
	}
	return pseudo6(src, dst, proto, length)
}

// echo is an ICMP echo message of either family: request or reply.
func echo(src, dst netip.Addr, reply bool, id int, payload ...[]byte) []byte {
	m := join([]byte{8, 0, 0, 0}, be16(id), be16(1), join(payload...))
	if reply {
		m[0] = 0
	}
	if src.Is4() {
		copy(m[2:], checksum(m))
		return m
	}
	m[0] = icmpEcho
	if reply {
		m[0] = icmpEcho + 1
	}
	copy(m[2:], checksum(pseudo6(src, dst, protoICMP6, len(m)), m))
	return m
}

// packet is a frame from the guest with an IP packet of dst's family.
func packet(src, dst netip.Addr, proto int, l4 []byte) []byte {
	if dst.Is4() {
		return fromGuest(typeIPv4, ip4(src, dst, proto, 0, l4))
	}
	return fromGuest(typeIPv6, ip6(src, dst, proto, 64, l4))
}

const (
	tcpSYN = 0x02
	tcpACK = 0x10
)

// families gives the guest's and another's address of each family.
func families(four, six netip.Addr) map[string][2]netip.Addr {
	return map[string][2]netip.Addr{"IPv4": {guest4.Addr(), four}, "IPv6": {guest6.Addr(), six}}
}

func TestShortcutTakesPlainFrames(t *testing.T) {
	s := newPair(t, true)
	for _, program := range []string{shortcutProgGuestXdp, shortcutProgGuestXdpSkb, shortcutProgHostShortcut} {
		for family, a := range families(peer4, peer6) {
			icmp := 1
			if a[0].Is6() {
				icmp = protoICMP6
			}
			for name, frame := range map[string][]byte{
				"TCP SYN":      packet(a[0], a[1], protoTCP, tcp(a[0], a[1], 1000, 80, tcpSYN)),
				"TCP":          packet(a[0], a[1], protoTCP, tcp(a[0], a[1], 1000, 80, tcpACK, []byte("hello"))),
				"UDP":          packet(a[0], a[1], protoUDP, udp(a[0], a[1], 1000, 53, []byte("hello"))),
				"UDP, empty":   packet(a[0], a[1], protoUDP, udp(a[0], a[1], 1000, 53)),
				"echo request": packet(a[0], a[1], icmp, echo(a[0], a[1], false, 7, []byte("hello"))),
			} {
				t.Run(program+" "+family+" "+name, func(t *testing.T) {
					got := wantPath(t, s, program, frame, shortcutPathReasonPATH_TO_GUEST, routed(frame, peerMAC, GatewayMAC))
					if got.beside[ShortcutChecksumCompleted] != 0 {
						t.Error("completed a checksum that was complete")
					}
				})
			}
		}
	}
}

// Conntrack is asked at a flow's first frame, at each SYN and where a UDP verdict is old; else the verdict holds.
func TestShortcutAsksOnce(t *testing.T) {
	s := newPair(t, true)
	if err := s.Configure(Settings{UDPLifetime: time.Hour}); err != nil {
		t.Fatal(err)
	}
	a, b := guest4.Addr(), peer4
	data := packet(a, b, protoTCP, tcp(a, b, 1000, 80, tcpACK))
	syn := packet(a, b, protoTCP, tcp(a, b, 1000, 80, tcpSYN))
	dgram := packet(a, b, protoUDP, udp(a, b, 1000, 53))
	asked := func(what string, frame []byte, want uint64) {
		t.Helper()
		got := walk(t, s, shortcutProgGuestXdp, frame)
		if got.reason != ShortcutXDPToGuest || got.beside[ShortcutXDPLookedUp] != want {
			t.Errorf("%s: %s, %d lookups, want %d", what, got.reason, got.beside[ShortcutXDPLookedUp], want)
		}
	}
	asked("first", data, 1)
	asked("second", data, 0)
	asked("SYN", syn, 1)
	asked("SYN again", syn, 1)
	asked("after SYN", data, 0)
	asked("datagram", dgram, 1)
	asked("second datagram", dgram, 0)
	if err := s.Configure(Settings{}); err != nil {
		t.Fatal(err)
	}
	asked("datagram, verdicts live for 0s", dgram, 1)
	asked("TCP does not age", data, 0)
	if err := s.Configure(Settings{UDPLifetime: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if err := s.Join(peerParticipant()); err != nil {
		t.Fatal(err)
	}
	asked("a new epoch", data, 1)
	if err := s.FlushFlows(); err != nil {
		t.Fatal(err)
	}
	asked("flushed", data, 1)
	flows, err := s.Flows()
	if err != nil || len(flows) != 1 {
		t.Fatalf("flows %v, %v; want one", flows, err)
	}
	want := Flow{Source: netip.AddrPortFrom(a, 1000), Dest: netip.AddrPortFrom(b, 80), Proto: protoTCP, Verdict: VerdictShortcut}
	if got := flows[0]; got.Age > time.Minute || got.Source != want.Source || got.Dest != want.Dest || got.Proto != want.Proto || got.Verdict != want.Verdict || got.Stale {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
