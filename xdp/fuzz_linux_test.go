package xdp

import (
	"bytes"
	"net/netip"
	"testing"
)

// FuzzGuestIngress gives a guest's TAP any frame. What the program does must be what the model says; and whatever the
// model says, no frame of another source MAC goes anywhere, and one that is not answered comes out as it went in. With
// own the frame gets the guest's MAC, so that the fuzzer comes past that check.
func FuzzGuestIngress(f *testing.F) {
	for _, frame := range seeds() {
		f.Add(frame, false)
		f.Add(frame, true)
	}
	p := newPrograms(f)
	f.Fuzz(func(t *testing.T, frame []byte, own bool) {
		if len(frame) > 3000 || !runnable(p, frame) {
			t.Skip("no frame for BPF_PROG_TEST_RUN")
		}
		if own {
			frame = with(frame, offEthSrc, guestMAC...)
		}
		ep := guestEndpoint()
		reserve(t, p, loopback, ep)
		got := run(t, p, RoleGuest, frame)
		if got.verdict != verdictDrop && !bytes.Equal(frame[6:12], guestMAC) {
			t.Errorf("verdict %d for a frame from %x", got.verdict, frame[6:12])
		}
		if want := (model{ep, frame}).reason(); got.reason != want {
			t.Errorf("%s, the model says %s\nframe %x", got.reason, want, frame)
		}
		if got.verdict != verdictOf(RoleGuest, got.reason) {
			t.Errorf("%s has verdict %d", got.reason, got.verdict)
		}
		switch got.reason {
		case ReasonARPAnswered, ReasonNDAnswered:
			if !bytes.Equal(got.out[6:12], GatewayMAC) {
				t.Errorf("answered from %x", got.out[6:12])
			}
		default:
			if !bytes.Equal(got.out, frame) {
				t.Errorf("%s changed the frame:\ngot  %s\nwant %s", got.reason, dump(got.out), dump(frame))
			}
		}
	})
}

// seeds are frames of each kind that the programs look into.
func seeds() [][]byte {
	g4, g6 := guest4.Addr(), guest6.Addr()
	all := netip.MustParseAddr("255.255.255.255")
	return [][]byte{
		fromGuest(typeIPv4, ip4(g4, offLink4, protoUDP, 0, udp(g4, offLink4, 1, 2, []byte("x")))),
		fromGuest(typeIPv4, ip4(none4, all, protoUDP, 0, udp(none4, all, 68, 67, []byte("x")))),
		fromGuest(typeIPv6, ip6(g6, offLink6, protoUDP, 64, udp(g6, offLink6, 1, 2, []byte("x")))),
		fromGuest(typeIPv6, ip6(g6, offLink6, protoFragment, 64, fragment(protoICMP6, 0, true), icmp6(g6, offLink6, icmpRS, reserved4))),
		fromGuest(typeIPv6, ip6(g6, offLink6, protoHop, 64, ext(protoDest), ext(protoAuth), ext(protoRouting), []byte{protoICMP6, 0, 0, 0, 0, 0, 0, 0}, icmp6(g6, offLink6, icmpNS, reserved4, gateway6.AsSlice(), option(1, guestMAC)))),
		fromGuest(typeIPv6, ip6(none6, allRouters, protoHop, 1, ext(protoICMP6), icmp6(none6, allRouters, icmpMLD2, make([]byte, 24)))),
		na(broadcast, guestMAC, g6, allNodes, g6, 0x20, option(2, guestMAC)),
		ns(g6, gateway6, option(1, guestMAC), nonce()),
		ns(none6, neighbour6),
		unicastNS(g6, gateway6),
		partial(unicastNS(g6, gateway6)),
		arpRequest(g4, gateway4),
		pad(arpRequest(none4, neighbour4), 60),
		with(arpRequest(g4, gateway4), offEthSrc, strangerMAC...),
		with(arpRequest(g4, gateway4), offEthType, be16(typeVLAN)...),
		make([]byte, 60),
	}
}
