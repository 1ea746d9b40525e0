package xdp

import (
	"net/netip"
)

// The addresses of a clone: inside the same in each, outside the pod's.
var (
	inside4  = netip.MustParsePrefix("172.16.0.2/30")
	inside6  = netip.MustParsePrefix("fd00:172::2/126")
	insideGW = []netip.Addr{netip.MustParseAddr("172.16.0.1"), netip.MustParseAddr("fd00:172::1")}
	outside  = []netip.Addr{guest4.Addr(), guest6.Addr()}

	distant4 = netip.MustParseAddr("203.0.113.200")
	distant6 = netip.MustParseAddr("2001:db8:beef::99")
	router4  = netip.MustParseAddr("192.0.2.254")
	router6  = netip.MustParseAddr("2001:db8:254::1")
)

// cloneEndpoint is the endpoint of a TAP, or pod end, of a guest with a fixed identity.
func cloneEndpoint(role Role) Endpoint {
	ep := guestEndpoint()
	ep.Addresses = []netip.Prefix{inside4, inside6}
	ep.Gateways = insideGW
	ep.Outside = outside
	ep.Role = role
	if role == RolePod {
		ep.Redirect = RedirectEgress
	}
	return ep
}

// crossing is a packet that is the same but for one address on the other side of the translation. It is written twice, with every
// checksum computed anew, so that nothing is learnt from the programs.
type crossing struct {
	name string
	v6   bool
	make func(guest, other netip.Addr, out bool) []byte // the IP packet; out: from the guest
}

// ends are source and destination.
func ends(guest, other netip.Addr, out bool) (src, dst netip.Addr) {
	if out {
		return guest, other
	}
	return other, guest
}

// sealed puts the checksum of a transport into its header at off.
func sealed(src, dst netip.Addr, proto, off int, segment []byte) []byte {
	pseudo := pseudo4
	if src.Is6() {
		pseudo = pseudo6
	}
	b := with(segment, off, 0, 0)
	return with(b, off, checksum(pseudo(src, dst, proto, len(b)), b)...)
}

func icmp4(typ, code int, rest ...[]byte) []byte {
	m := join([]byte{byte(typ), byte(code), 0, 0}, join(rest...))
	return with(m, 2, checksum(m)...)
}

// anyPacket is an IP packet of either family.
func anyPacket(src, dst netip.Addr, proto int, payload ...[]byte) []byte {
	if src.Is6() {
		return ip6(src, dst, proto, 64, payload...)
	}
	return ip4(src, dst, proto, 0, payload...)
}

// withOptions is an IPv4 packet with 8 bytes of options.
func withOptions(src, dst netip.Addr, proto int, payload []byte) []byte {
	h := join([]byte{0x47, 0}, be16(28+len(payload)), be16(7), be16(0), []byte{64, byte(proto), 0, 0}, src.AsSlice(), dst.AsSlice(), []byte{1, 1, 1, 1, 1, 1, 1, 0})
	return join(with(h, 10, checksum(h)...), payload)
}

// odd is a payload of an odd length.
var odd = []byte("seventeen bytes!!")

func crossings() []crossing {
	var out []crossing
	add := func(name string, v6 bool, f func(src, dst netip.Addr) []byte) {
		out = append(out, crossing{name, v6, func(guest, other netip.Addr, o bool) []byte {
			src, dst := ends(guest, other, o)
			return f(src, dst)
		}})
	}
	for _, v6 := range []bool{false, true} {
		add("TCP", v6, func(s, d netip.Addr) []byte { return anyPacket(s, d, protoTCP, tcp(s, d, 4242, 80, tcpACK, odd)) })
		add("UDP", v6, func(s, d netip.Addr) []byte { return anyPacket(s, d, protoUDP, udp(s, d, 4242, 53, odd)) })
		add("UDP without a checksum", v6, func(s, d netip.Addr) []byte {
			return anyPacket(s, d, protoUDP, with(udp(s, d, 4242, 53, odd), 6, 0, 0))
		})
		add("UDP-Lite", v6, func(s, d netip.Addr) []byte {
			return anyPacket(s, d, 136, sealed(s, d, 136, 6, udp(s, d, 4242, 53, odd)))
		})
		add("SCTP", v6, func(s, d netip.Addr) []byte { return anyPacket(s, d, 132, odd) })
		add("ESP", v6, func(s, d netip.Addr) []byte { return anyPacket(s, d, 50, odd) })
	}
	add("ICMP echo", false, func(s, d netip.Addr) []byte { return anyPacket(s, d, 1, icmp4(8, 0, odd)) })
	add("ICMPv6 echo", true, func(s, d netip.Addr) []byte { return anyPacket(s, d, protoICMP6, icmp6(s, d, icmpEcho, odd)) })
	add("IPv4 options", false, func(s, d netip.Addr) []byte { return withOptions(s, d, protoTCP, tcp(s, d, 1, 2, tcpACK, odd)) })
	add("first fragment", false, func(s, d netip.Addr) []byte {
		whole := udp(s, d, 5, 6, make([]byte, 40), odd)
		return ip4(s, d, protoUDP, 0x2000, whole[:24])
	})
	add("later fragment", false, func(s, d netip.Addr) []byte { return ip4(s, d, protoTCP, 3, make([]byte, 33)) })
	add("first fragment", true, func(s, d netip.Addr) []byte {
		whole := udp(s, d, 5, 6, make([]byte, 40), odd)
		return ip6(s, d, protoFragment, 64, fragment(protoUDP, 0, true), whole[:24])
	})
	add("later fragment", true, func(s, d netip.Addr) []byte {
		return ip6(s, d, protoFragment, 64, fragment(protoTCP, 24, false), make([]byte, 33))
	})
	add("extension headers", true, func(s, d netip.Addr) []byte {
		return ip6(s, d, protoHop, 64, ext(protoDest), ext(protoRouting), with(ext(protoTCP), 3, 0), tcp(s, d, 1, 2, tcpACK, odd))
	})
	return append(out, errorCrossings()...)
}

// errorCrossings are ICMP errors. Outwards the guest reports a packet that it was sent, inwards a router one that the guest sent.
func errorCrossings() []crossing {
	var out []crossing
	add := func(name string, v6 bool, cut int, quoted func(src, dst netip.Addr) []byte) {
		out = append(out, crossing{"error about " + name, v6, func(guest, other netip.Addr, o bool) []byte {
			s, d := ends(guest, router(v6), o)
			if o {
				s, d = guest, other
			}
			qs, qd := ends(guest, other, !o)
			q := quoted(qs, qd)
			if cut > 0 {
				q = q[:cut]
			}
			if v6 {
				return anyPacket(s, d, protoICMP6, icmp6(s, d, 2, []byte{0, 0, 5, 0}, q)) // packet too big, MTU 1280
			}
			return anyPacket(s, d, 1, icmp4(3, 4, []byte{0, 0, 5, 0}, q))
		}})
	}
	for _, v6 := range []bool{false, true} {
		l4 := 20
		if v6 {
			l4 = 40
		}
		segment := func(s, d netip.Addr) []byte { return anyPacket(s, d, protoTCP, tcp(s, d, 4242, 80, tcpACK, odd)) }
		datagram := func(s, d netip.Addr) []byte { return anyPacket(s, d, protoUDP, udp(s, d, 4242, 53, odd)) }
		add("TCP", v6, 0, segment)
		add("TCP, cut behind the ports", v6, l4+8, segment)
		add("TCP, cut before its checksum", v6, l4+16, segment)
		add("a header alone", v6, l4, segment)
		add("UDP", v6, 0, datagram)
		add("UDP, cut to 8 bytes", v6, l4+8, datagram)
		add("UDP without a checksum", v6, l4+8, func(s, d netip.Addr) []byte {
			return anyPacket(s, d, protoUDP, with(udp(s, d, 4242, 53, odd), 6, 0, 0))
		})
		add("SCTP", v6, 0, func(s, d netip.Addr) []byte { return anyPacket(s, d, 132, odd) })
	}
	add("an echo request", false, 0, func(s, d netip.Addr) []byte { return anyPacket(s, d, 1, icmp4(8, 0, odd)) })
	add("an echo request", true, 0, func(s, d netip.Addr) []byte { return anyPacket(s, d, protoICMP6, icmp6(s, d, icmpEcho, odd)) })
	add("a later fragment", false, 0, func(s, d netip.Addr) []byte { return ip4(s, d, protoTCP, 3, make([]byte, 33)) })
	add("a later fragment", true, 0, func(s, d netip.Addr) []byte {
		return ip6(s, d, protoFragment, 64, fragment(protoTCP, 24, false), make([]byte, 33))
	})
	add("a first fragment", true, 0, func(s, d netip.Addr) []byte {
		return ip6(s, d, protoFragment, 64, fragment(protoUDP, 0, true), udp(s, d, 5, 6, make([]byte, 40))[:24])
	})
	add("a packet with options", false, 0, func(s, d netip.Addr) []byte { return withOptions(s, d, protoTCP, tcp(s, d, 1, 2, tcpACK, odd)) })
	return out
}

func router(v6 bool) netip.Addr {
	if v6 {
		return router6
	}
	return router4
}

// frameOf is a packet as guests and hosts send it.
func (c crossing) frameOf(guest netip.Addr, out bool) []byte {
	other, typ := distant4, typeIPv4
	if c.v6 {
		other, typ = distant6, typeIPv6
	}
	if out {
		return fromGuest(typ, c.make(guest, other, true))
	}
	return eth(guestMAC, GatewayMAC, typ, c.make(guest, other, false))
}

// sides are the guest's address inside and outside.
func (c crossing) sides() (in, out netip.Addr) {
	if c.v6 {
		return inside6.Addr(), outside[1]
	}
	return inside4.Addr(), outside[0]
}
