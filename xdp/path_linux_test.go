package xdp

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// eachPath runs a test with both methods and both kinds of redirect.
func eachPath(t *testing.T, f func(t *testing.T, s *sandbox)) {
	for _, m := range []Method{MethodTCX, MethodClsact} {
		for _, kind := range []Redirect{RedirectEgress, RedirectPeer} {
			t.Run(fmt.Sprintf("%s %s", m, kind), func(t *testing.T) {
				if m == MethodTCX {
					testnode.Require(t, "tcx")
				}
				s := newSandbox(t)
				s.attach(m, kind)
				f(t, s)
			})
		}
	}
}

// hello is a legal frame that says so, and how often.
func hello(n int) []byte {
	src := guest4.Addr()
	return fromGuest(typeIPv4, ip4(src, gateway4, protoUDP, 0, udp(src, gateway4, 1000, 7777, fmt.Appendf(nil, "hello %d", n))))
}

func TestLegalFramesReachTheHostAndOthersNothing(t *testing.T) {
	eachPath(t, func(t *testing.T, s *sandbox) {
		want := make(map[Reason]uint64)
		for i, tt := range []struct {
			frame  []byte
			reason Reason
		}{
			{with(hello(0), offEthSrc, strangerMAC...), ReasonSpoofMAC},
			{with(hello(0), offIP4Src, neighbour4.AsSlice()...), ReasonSpoofIPv4},
			{fromGuest(typeIPv6, ip6(neighbour6, offLink6, protoTCP, 64, make([]byte, 20))), ReasonSpoofIPv6},
			{arp(broadcast, guestMAC, 2, strangerMAC, guest4.Addr(), broadcast, guest4.Addr()), ReasonSpoofARP},
			{na(multicastMAC(allNodes), guestMAC, guest6.Addr(), allNodes, gateway6, 0x20, option(2, guestMAC)), ReasonSpoofND},
			// The stack takes the tag out of the frame before the program sees it.
			{eth(GatewayMAC, guestMAC, typeVLAN, []byte{0, 0}, hello(0)[12:]), ReasonVLAN},
			{eth(GatewayMAC, guestMAC, typeVLAN, []byte{0, 0}, with(hello(0), offIP4Src, neighbour4.AsSlice()...)[12:]), ReasonVLAN},
			{eth(GatewayMAC, guestMAC, typeQinQ, []byte{0, 5}, be16(typeVLAN), []byte{0, 0}, hello(0)[12:]), ReasonVLAN},
			{fromGuest(typeIPv6, ip6(guest6.Addr(), allNodes, protoICMP6, 255, icmp6(guest6.Addr(), allNodes, icmpRA, make([]byte, 12)))), ReasonRogueRA},
		} {
			s.tap.send(vnetHdr{}, tt.frame)
			want[tt.reason]++
			// Its twin comes next; were the frame not dropped, it would come first.
			s.tap.send(vnetHdr{}, hello(i))
			want[ReasonToHost]++
			s.wire.want(fmt.Sprintf("after %s", tt.reason), hello(i))
		}
		s.wire.wantNothing("after the last")
		if diff := cmp.Diff(want, s.counters()); diff != "" {
			t.Errorf("counters (-want +got):\n%s", diff)
		}
	})
}

func TestTheHostsOwnStackTalksToTheGuest(t *testing.T) {
	eachPath(t, func(t *testing.T, s *sandbox) {
		s.configureHost()
		conn := s.hostUDP(7777)
		s.tap.send(vnetHdr{}, hello(1))
		buf := make([]byte, 100)
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatalf("the host's stack did not take the frame: %v", err)
		}
		if got, want := string(buf[:n]), "hello 1"; got != want || from != netip.AddrPortFrom(guest4.Addr(), 1000) {
			t.Errorf("got %q from %s, want %q from the guest", got, from, want)
		}
		if _, err := conn.WriteToUDPAddrPort([]byte("and you"), from); err != nil {
			t.Fatal(err)
		}
		h, frame, ok := s.tap.receive(patience)
		if !ok {
			t.Fatal("the answer did not reach the guest")
		}
		if !bytes.Equal(frame[:12], join(guestMAC, GatewayMAC)) || !bytes.HasSuffix(frame, []byte("and you")) {
			t.Errorf("the guest got %s", dump(frame))
		}
		if h.Flags&needsCsum != 0 {
			t.Error("a reader that did not ask for TUN_F_CSUM got a partial checksum")
		}
		if got := s.counters()[ReasonToGuest]; got != 1 {
			t.Errorf("%d frames counted to the guest, want 1", got)
		}
	})
}

// A frame to a MAC that is nobody's must not be taken for the host's, and a broadcast must stay one, though
// bpf_redirect_peer() may make any frame the host's own.
func TestPacketTypesAreRightOnTheHost(t *testing.T) {
	eachPath(t, func(t *testing.T, s *sandbox) {
		for _, tt := range []struct {
			dst  net.HardwareAddr
			want uint8
		}{
			{GatewayMAC, unix.PACKET_HOST},
			{broadcast, unix.PACKET_BROADCAST},
			{multicastMAC(allNodes), unix.PACKET_MULTICAST},
			{strangerMAC, unix.PACKET_OTHERHOST},
		} {
			s.tap.send(vnetHdr{}, with(hello(1), 0, tt.dst...))
			fds := []unix.PollFd{{Fd: int32(s.wire.fd), Events: unix.POLLIN}}
			if _, err := unix.Poll(fds, int(patience.Milliseconds())); err != nil {
				t.Fatal(err)
			}
			_, from, err := unix.Recvfrom(s.wire.fd, make([]byte, 2000), 0)
			if err != nil {
				t.Fatalf("frame to %s: %v", tt.dst, err)
			}
			if got := from.(*unix.SockaddrLinklayer).Pkttype; got != tt.want {
				t.Errorf("frame to %s has packet type %d, want %d", tt.dst, got, tt.want)
			}
		}
	})
}

// tcp4 is a TCP segment with a partial checksum, as a guest with offloads sends it.
func tcp4(dstMAC, srcMAC net.HardwareAddr, src, dst netip.Addr, size int) []byte {
	seg := join(be16(1000), be16(80), make([]byte, 8), []byte{0x50, 0x10, 0x20, 0, 0, 0, 0, 0}, bytes.Repeat([]byte{0xab}, size))
	sum := checksum(pseudo4(src, dst, protoTCP, len(seg)))
	seg[16], seg[17] = ^sum[0], ^sum[1]
	return eth(dstMAC, srcMAC, typeIPv4, ip4(src, dst, protoTCP, 0x4000, seg))
}

func TestOffloadsSurviveBothWays(t *testing.T) {
	tso := vnetHdr{Flags: needsCsum, GSOType: gsoTCPv4, HdrLen: 54, GSOSize: 1400, CsumStart: 34, CsumOffset: 16}
	csum := vnetHdr{Flags: needsCsum, CsumStart: 34, CsumOffset: 16}
	compare := func(t *testing.T, got, want vnetHdr) {
		t.Helper()
		got.HdrLen = want.HdrLen // a hint, which the kernel makes anew
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("vnet header (-want +got):\n%s", diff)
		}
	}
	eachPath(t, func(t *testing.T, s *sandbox) {
		big := tcp4(GatewayMAC, guestMAC, guest4.Addr(), offLink4, 20000)
		s.tap.send(tso, big)
		compare(t, s.wire.want("GSO to the host", big), tso)
		small := tcp4(GatewayMAC, guestMAC, guest4.Addr(), offLink4, 500)
		s.tap.send(csum, small)
		compare(t, s.wire.want("partial checksum to the host", small), csum)

		if err := unix.IoctlSetInt(s.tap.fd, unix.TUNSETOFFLOAD, offloadCsum|offloadTSO4); err != nil {
			t.Fatal(err)
		}
		big = tcp4(guestMAC, GatewayMAC, offLink4, guest4.Addr(), 20000)
		s.wire.send(tso, big)
		compare(t, s.tap.want("GSO to the guest", big), tso)
		small = tcp4(guestMAC, GatewayMAC, offLink4, guest4.Addr(), 500)
		s.wire.send(csum, small)
		compare(t, s.tap.want("partial checksum to the guest", small), csum)
	})
}

// A guest's hdr_len says how much of a large frame is linear. What is not must be checked all the same.
func TestNonLinearHeadersAreChecked(t *testing.T) {
	eachPath(t, func(t *testing.T, s *sandbox) {
		src := guest4.Addr()
		short := vnetHdr{HdrLen: 14}
		legal := fromGuest(typeIPv4, ip4(src, offLink4, protoUDP, 0, udp(src, offLink4, 1, 2, make([]byte, 6000))))
		legal6 := fromGuest(typeIPv6, ip6(guest6.Addr(), offLink6, protoUDP, 64, udp(guest6.Addr(), offLink6, 1, 2, make([]byte, 6000))))
		question := pad(ns(guest6.Addr(), gateway6, option(1, guestMAC)), 6000)
		s.tap.send(short, with(legal, offIP4Src, neighbour4.AsSlice()...))
		s.tap.send(short, with(legal6, offIP6Src, neighbour6.AsSlice()...))
		s.tap.send(short, with(question, offNDOption+2, strangerMAC...))
		s.tap.send(short, legal)
		s.wire.want("legal IPv4", legal)
		s.tap.send(short, legal6)
		s.wire.want("legal IPv6", legal6)
		s.tap.send(short, question)
		s.tap.want("answer", answerNA(guest6.Addr(), gateway6, 0xe0))
		s.tap.send(short, pad(arpRequest(src, gateway4), 6000))
		s.tap.want("answer", pad(arpReply(src, gateway4), 6000))
		want := map[Reason]uint64{ReasonSpoofIPv4: 1, ReasonSpoofIPv6: 1, ReasonSpoofND: 1, ReasonToHost: 2, ReasonNDAnswered: 1, ReasonARPAnswered: 1}
		if diff := cmp.Diff(want, s.counters()); diff != "" {
			t.Errorf("counters (-want +got):\n%s", diff)
		}
	})
}

func TestQuestionsAreAnsweredAtTheTAP(t *testing.T) {
	eachPath(t, func(t *testing.T, s *sandbox) {
		g4, g6 := guest4.Addr(), guest6.Addr()
		s.tap.send(vnetHdr{}, arpRequest(g4, gateway4))
		s.tap.want("ARP", arpReply(g4, gateway4))
		s.tap.send(vnetHdr{}, pad(arpRequest(g4, neighbour4), 60))
		s.tap.want("padded ARP", pad(arpReply(g4, neighbour4), 60))
		s.tap.send(vnetHdr{}, ns(g6, gateway6, option(1, guestMAC)))
		s.tap.want("ND", answerNA(g6, gateway6, 0xe0))
		s.tap.send(vnetHdr{}, ns(none6, neighbour6, nonce()))
		s.tap.want("DAD", answerDAD(neighbour6, 0x20))
		s.tap.send(vnetHdr{}, unicastNS(g6, gateway6))
		s.tap.want("unicast ND", answerNA(g6, gateway6, 0xe0))
		s.wire.wantNothing("the host hears no question that was answered")

		s.tap.send(vnetHdr{}, ns(none6, g6, nonce()))
		s.wire.want("the guest's own DAD", ns(none6, g6, nonce()))
		s.tap.wantNothing("nobody answers for the guest's own address")
	})
}

// Without the spoof check a tagged frame passes, and what is behind its tag is another link's: no question to answer, but
// no router's word either.
func TestTaggedFramesWithoutSpoofCheck(t *testing.T) {
	eachPath(t, func(t *testing.T, s *sandbox) {
		ep, err := s.p.Lookup(s.tapIndex)
		if err != nil {
			t.Fatal(err)
		}
		ep.SpoofCheck = false
		if err := s.p.Update(s.tapIndex, ep); err != nil {
			t.Fatal(err)
		}
		g6 := guest6.Addr()
		for _, frame := range [][]byte{
			fromGuest(typeIPv6, ip6(g6, allNodes, protoICMP6, 255, icmp6(g6, allNodes, icmpRA, make([]byte, 12)))),
			arpRequest(guest4.Addr(), gateway4),
			ns(g6, gateway6, option(1, guestMAC)),
		} {
			s.tap.send(vnetHdr{}, join(frame[:12], be16(typeVLAN), be16(5), frame[12:]))
		}
		for range 2 {
			if _, _, ok := s.wire.receive(patience); !ok {
				t.Error("a tagged question is not on the wire")
			}
		}
		s.wire.wantNothing("the tagged RA")
		s.tap.wantNothing("an answer to a tagged question")
		if diff := cmp.Diff(map[Reason]uint64{ReasonToHost: 2, ReasonRogueRA: 1}, s.counters()); diff != "" {
			t.Errorf("counters (-want +got):\n%s", diff)
		}
	})
}

// A guest that leaves the checksum of its question to the host gets a right answer, whether it takes partial ones or not.
func TestAnswerToAPartialChecksum(t *testing.T) {
	eachPath(t, func(t *testing.T, s *sandbox) {
		h := vnetHdr{Flags: needsCsum, CsumStart: offIP6Upper, CsumOffset: 2}
		for _, question := range [][]byte{
			ns(guest6.Addr(), gateway6, option(1, guestMAC)),
			ns(guest6.Addr(), gateway6, option(1, guestMAC), nonce()),
			unicastNS(guest6.Addr(), gateway6),
		} {
			answer := answerNA(guest6.Addr(), gateway6, 0xe0)
			s.tap.send(h, partial(question))
			if got := s.tap.want("reader without TUN_F_CSUM", answer); got.Flags&needsCsum != 0 {
				t.Error("a reader that did not ask for TUN_F_CSUM got a partial checksum")
			}
			if err := unix.IoctlSetInt(s.tap.fd, unix.TUNSETOFFLOAD, offloadCsum); err != nil {
				t.Fatal(err)
			}
			s.tap.send(h, partial(question))
			if got := s.tap.want("reader with TUN_F_CSUM", partial(answer)); got != h {
				t.Errorf("vnet header %+v, want %+v", got, h)
			}
			if err := unix.IoctlSetInt(s.tap.fd, unix.TUNSETOFFLOAD, 0); err != nil {
				t.Fatal(err)
			}
		}
		// A csum_start that fits no answer: dropped or answered, but never a fault, and never the host's.
		s.tap.send(vnetHdr{Flags: needsCsum, CsumStart: 86, CsumOffset: 2}, pad(unicastNS(guest6.Addr(), gateway6), 120))
		s.wire.wantNothing("a question with a far csum_start")
	})
}

// TestRuntsFromTAP writes frames of every length. The kernel itself refuses those without an Ethernet header.
func TestRuntsFromTAP(t *testing.T) {
	eachPath(t, func(t *testing.T, s *sandbox) {
		for _, whole := range [][]byte{
			pad(hello(0), 60),
			pad(fromGuest(typeIPv6, ip6(guest6.Addr(), offLink6, protoTCP, 64, make([]byte, 20))), 60),
			pad(arp(broadcast, guestMAC, 2, guestMAC, guest4.Addr(), broadcast, guest4.Addr()), 60),
		} {
			for n := range 61 {
				_, err := unix.Write(s.tap.fd, join(vnetHdr{}.bytes(), whole[:n]))
				if n < 14 {
					if !errors.Is(err, unix.EINVAL) {
						t.Fatalf("write of %d bytes: %v, want EINVAL", n, err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("write of %d bytes: %v", n, err)
				}
				want := model{guestEndpoint(), whole[:n]}.reason()
				before := s.counters()
				if n == 14 {
					before[want]-- // it was counted already
				}
				if want == ReasonToHost {
					s.wire.want(fmt.Sprintf("%d bytes", n), whole[:n])
				}
				if n > 14 && before[want] == 0 {
					t.Errorf("%d bytes: no frame was counted as %s: %v", n, want, before)
				}
			}
			s.wire.wantNothing("after the last")
		}
		total := uint64(0)
		for n := range maps.Values(s.counters()) {
			total += n
		}
		if want := uint64(3 * (61 - 14)); total != want {
			t.Errorf("%d frames counted, want %d", total, want)
		}
	})
}

// TestPlainPod runs the decision on the host end of a pod without a TAP.
func TestPlainPod(t *testing.T) {
	for _, m := range []Method{MethodTCX, MethodClsact} {
		t.Run(string(m), func(t *testing.T) {
			if m == MethodTCX {
				testnode.Require(t, "tcx")
			}
			s := newSandbox(t)
			s.configureHost()
			conn := s.hostUDP(7777)
			ep := guestEndpoint()
			ep.Role, ep.Peer, ep.Redirect, ep.Counters = RoleHost, 0, RedirectNone, s.hostIdx
			if err := s.p.Reserve(map[uint32]Endpoint{s.hostIdx: ep}); err != nil {
				t.Fatal(err)
			}
			testnode.In(t, s.host, func() {
				if err := s.p.Attach(int(s.hostIdx), RoleHost, m); err != nil {
					t.Fatal(err)
				}
			})
			var pod port
			testnode.In(t, s.pod, func() { pod = packetSocket(t, s.podIndex) })

			pod.send(vnetHdr{}, with(hello(1), offIP4Src, neighbour4.AsSlice()...))
			pod.send(vnetHdr{}, with(hello(2), offEthSrc, strangerMAC...))
			pod.send(vnetHdr{}, eth(GatewayMAC, guestMAC, typeVLAN, []byte{0, 0}, hello(3)[12:]))
			pod.send(vnetHdr{}, hello(4))
			buf := make([]byte, 100)
			if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			if n, err := conn.Read(buf); err != nil || string(buf[:n]) != "hello 4" {
				t.Errorf("the host got %q, %v; want %q alone", buf[:n], err, "hello 4")
			}
			pod.send(vnetHdr{}, arpRequest(guest4.Addr(), neighbour4))
			pod.want("ARP", arpReply(guest4.Addr(), neighbour4))
			pod.send(vnetHdr{}, ns(guest6.Addr(), neighbour6, option(1, guestMAC)))
			pod.want("ND", answerNA(guest6.Addr(), neighbour6, 0x60))

			c, err := s.p.Counters(s.hostIdx)
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[Reason]uint64)
			for r, n := range c {
				got[r] = n.Frames
			}
			want := map[Reason]uint64{ReasonSpoofIPv4: 1, ReasonSpoofMAC: 1, ReasonVLAN: 1, ReasonToHost: 1, ReasonARPAnswered: 1, ReasonNDAnswered: 1}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("counters (-want +got):\n%s", diff)
			}
		})
	}
}
