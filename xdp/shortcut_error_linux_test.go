package xdp

import (
	"bytes"
	"net/netip"
	"testing"
)

// icmpError is an ICMP error of that type, of either family, about a packet.
func icmpError(src, dst netip.Addr, kind byte, about []byte) []byte {
	m := join([]byte{kind, 1, 0, 0, 0, 0, 0, 0}, about)
	if src.Is4() {
		copy(m[2:], checksum(m))
	} else {
		copy(m[2:], checksum(pseudo6(src, dst, protoICMP6, len(m)), m))
	}
	return m
}

// An error goes the way of the packet that it is about, whose sender would not get it from a host that drops what its conntrack
// finds invalid. One about a packet that did not take the shortcut, or that it does not answer, passes.
func TestShortcutICMPErrors(t *testing.T) {
	s := newPair(t, true)
	for _, a := range families(peer4, peer6) {
		src, dst := a[0], a[1]
		icmp, kinds := icmpOf(src), []byte{3, 11, 12}
		if src.Is6() {
			kinds = []byte{1, 2, 3, 4}
		}
		wantError := func(about []byte, kind byte, taken bool) {
			t.Helper()
			frame := packet(src, dst, icmp, icmpError(src, dst, kind, about))
			if !taken {
				wantPath(t, s, shortcutProgGuestXdp, frame, shortcutPathReasonPATH_PASS_PROTOCOL, nil)
				return
			}
			wantPath(t, s, shortcutProgGuestXdp, frame, shortcutPathReasonPATH_TO_GUEST, routed(frame, peerMAC, GatewayMAC))
		}
		for proto, l4 := range map[int][]byte{
			protoUDP: udp(dst, src, 1000, 2000, []byte("hello")),
			protoTCP: tcp(dst, src, 1000, 2000, tcpACK),
			icmp:     echo(dst, src, false, 7),
		} {
			request := with(packet(dst, src, proto, l4), offEthSrc, peerMAC...)
			about := request[14:]
			wantError(about, kinds[0], false)
			asPeer(t, s, func() {
				wantPath(t, s, shortcutProgGuestXdp, request, shortcutPathReasonPATH_TO_GUEST, routed(request, guestMAC, GatewayMAC))
			})
			for _, kind := range kinds {
				wantError(about, kind, true)
			}
			l4At := len(about) - len(l4)
			wantError(about[:l4At+8], kinds[0], true)
			wantError(about[:l4At+7], kinds[0], false)
			wantError(about, 5+kinds[0]*27, false) // redirect; multicast listener query and above
			other := bytes.Clone(about)
			other[l4At+4*map[bool]int{true: 1}[proto == icmp]]++ // port, identifier
			wantError(other, kinds[0], false)
			for _, off := range []int{l4At - 1, l4At - 1 - len(src.AsSlice())} { // ends of both addresses
				other = bytes.Clone(about)
				other[off]++
				wantError(other, kinds[0], false)
			}
		}
	}
}

// A flow that conntrack knows is not the shortcut's, and neither are the errors about it.
func TestShortcutICMPErrorOfDefaultFlow(t *testing.T) {
	s := newPair(t, true)
	src, dst := guest4.Addr(), peer4
	request := with(packet(dst, src, protoUDP, udp(dst, src, 1000, 2000)), offEthSrc, peerMAC...)
	asPeer(t, s, func() {
		wantPath(t, s, shortcutProgGuestXdp, request, shortcutPathReasonPATH_TO_GUEST, routed(request, guestMAC, GatewayMAC))
	})
	frame := packet(src, dst, 1, icmpError(src, dst, 3, request[14:]))
	wantPath(t, s, shortcutProgGuestXdp, frame, shortcutPathReasonPATH_TO_GUEST, routed(frame, peerMAC, GatewayMAC))
	m, err := s.ownMap(shortcutMapFlows4)
	if err != nil {
		t.Fatal(err)
	}
	var (
		key shortcutFlow4Key
		v   shortcutFlow
	)
	for iter := m.Iterate(); iter.Next(&key, &v); {
		v.Verdict = shortcutVerdictVERDICT_DEFAULT
		if err := m.Put(key, v); err != nil {
			t.Fatal(err)
		}
	}
	wantPath(t, s, shortcutProgGuestXdp, frame, shortcutPathReasonPATH_PASS_PROTOCOL, nil)
}
