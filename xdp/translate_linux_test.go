package xdp

import (
	"net/netip"
	"testing"
)

// Each packet comes out as if it had been written with the other address, and the way back gives what there was.
func TestTranslate(t *testing.T) {
	p := newPrograms(t)
	for _, c := range crossings() {
		name := "IPv4 " + c.name
		if c.v6 {
			name = "IPv6 " + c.name
		}
		in, out := c.sides()
		t.Run(name+" outwards", func(t *testing.T) {
			reserve(t, p, loopback, cloneEndpoint(RoleGuest))
			check(t, p, RoleGuest, c.frameOf(in, true), ReasonToHost, c.frameOf(out, true))
		})
		t.Run(name+" inwards", func(t *testing.T) {
			reserve(t, p, loopback, cloneEndpoint(RolePod))
			check(t, p, RolePod, c.frameOf(out, false), ReasonToGuest, c.frameOf(in, false))
		})
	}
}

// Without spoofCheck the guest's own address is translated all the same, and what it says in others' names is not.
func TestTranslateWithoutSpoofCheck(t *testing.T) {
	p := newPrograms(t)
	ep := cloneEndpoint(RoleGuest)
	ep.SpoofCheck = false
	reserve(t, p, loopback, ep)
	for _, c := range crossings()[:3] {
		in, out := c.sides()
		check(t, p, RoleGuest, c.frameOf(in, true), ReasonToHost, c.frameOf(out, true))
		check(t, p, RoleGuest, c.frameOf(neighbour4, true), ReasonToHost, nil)
	}
}

// One family may be translated and the other not.
func TestTranslateOneFamily(t *testing.T) {
	p := newPrograms(t)
	for _, c := range crossings() {
		ep := cloneEndpoint(RoleGuest)
		ep.Addresses, ep.Outside = []netip.Prefix{inside4, guest6}, outside[:1]
		if c.v6 {
			ep.Addresses, ep.Outside = []netip.Prefix{guest4, inside6}, outside[1:]
		}
		reserve(t, p, loopback, ep)
		in, out := c.sides()
		check(t, p, RoleGuest, c.frameOf(in, true), ReasonToHost, c.frameOf(out, true))
	}
	ep := cloneEndpoint(RoleGuest)
	ep.Addresses, ep.Outside = []netip.Prefix{inside4, guest6}, outside[:1]
	reserve(t, p, loopback, ep)
	frame := fromGuest(typeIPv6, anyPacket(guest6.Addr(), distant6, protoTCP, tcp(guest6.Addr(), distant6, 1, 2, tcpACK, odd)))
	check(t, p, RoleGuest, frame, ReasonToHost, nil)
}

// What the guest must not send, or get.
func TestTranslateRefuses(t *testing.T) {
	p := newPrograms(t)
	i4, i6, o4, o6 := inside4.Addr(), inside6.Addr(), outside[0], outside[1]
	segment := func(s, d netip.Addr) []byte { return anyPacket(s, d, protoTCP, tcp(s, d, 1, 2, tcpACK, odd)) }
	toGuest := func(typ int, b []byte) []byte { return eth(guestMAC, GatewayMAC, typ, b) }
	stops := with(ext(protoTCP), 2, 0, 1)
	for _, c := range []struct {
		name  string
		role  Role
		frame []byte
		want  Reason
	}{
		{"the outside address is not the guest's to send from", RoleGuest, fromGuest(typeIPv4, segment(o4, distant4)), ReasonSpoofIPv4},
		{"nor that of IPv6", RoleGuest, fromGuest(typeIPv6, segment(o6, distant6)), ReasonSpoofIPv6},
		{"AH", RoleGuest, fromGuest(typeIPv4, anyPacket(i4, distant4, protoAuth, make([]byte, 24))), ReasonUntranslatable},
		{"AH of IPv6", RoleGuest, fromGuest(typeIPv6, ip6(i6, distant6, protoAuth, 64, with(make([]byte, 24), 0, protoTCP, 4), odd)), ReasonUntranslatable},
		{"AH inwards", RolePod, toGuest(typeIPv4, anyPacket(distant4, o4, protoAuth, make([]byte, 24))), ReasonUntranslatable},
		{"a first fragment without its checksum", RoleGuest, fromGuest(typeIPv4, ip4(i4, distant4, protoTCP, 0x2000, make([]byte, 8))), ReasonUntranslatable},
		{"the same of IPv6", RolePod, toGuest(typeIPv6, ip6(distant6, o6, protoFragment, 64, fragment(protoTCP, 0, true), make([]byte, 16))), ReasonUntranslatable},
		{"a routing header with stops left, inwards", RolePod, toGuest(typeIPv6, ip6(distant6, o6, protoRouting, 64, stops, tcp(distant6, o6, 1, 2, tcpACK, odd))), ReasonUntranslatable},
		{"to the inside address", RolePod, toGuest(typeIPv4, segment(distant4, i4)), ReasonInsideAddress},
		{"to that of IPv6", RolePod, toGuest(typeIPv6, segment(distant6, i6)), ReasonInsideAddress},
		{"from the inside address", RolePod, toGuest(typeIPv4, segment(i4, o4)), ReasonInsideAddress},
		{"from that of IPv6", RolePod, toGuest(typeIPv6, segment(i6, o6)), ReasonInsideAddress},
		{"an announcement", RoleGuest, arpRequest(i4, i4), ReasonInsideOnly},
		{"a probe for its own address", RoleGuest, ns(none6, i6), ReasonInsideOnly},
		{"a broadcast to the guest", RolePod, toGuest(typeIPv4, segment(distant4, netip.MustParseAddr("255.255.255.255"))), ReasonToGuest},
		{"a neighbour's address, by the gateway", RoleGuest, arpRequest(i4, netip.MustParseAddr("10.9.0.1")), ReasonInsideOnly},
	} {
		t.Run(c.name, func(t *testing.T) {
			reserve(t, p, loopback, cloneEndpoint(c.role))
			check(t, p, c.role, c.frame, c.want, nil)
		})
	}
}

// ARP and ND are answered for the inside gateway and the inside subnet.
func TestTranslatedGuestIsAnsweredInside(t *testing.T) {
	p := newPrograms(t)
	reserve(t, p, loopback, cloneEndpoint(RoleGuest))
	for _, target := range insideGW {
		if target.Is4() {
			want := arp(guestMAC, GatewayMAC, 2, GatewayMAC, target, guestMAC, inside4.Addr())
			check(t, p, RoleGuest, arpRequest(inside4.Addr(), target), ReasonARPAnswered, want)
			continue
		}
		src := inside6.Addr()
		want := na(guestMAC, GatewayMAC, target, src, target, 0xe0, option(2, GatewayMAC))
		check(t, p, RoleGuest, ns(src, target, option(1, guestMAC)), ReasonNDAnswered, want)
	}
}
