package xdp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
)

// The cast of the tests. What the guest owns is in its endpoint; the stranger owns nothing.
var (
	guestMAC    = net.HardwareAddr{0x02, 0xaa, 0xbb, 0x00, 0x00, 0x05}
	strangerMAC = net.HardwareAddr{0x02, 0xaa, 0xbb, 0x00, 0x00, 0x06}
	broadcast   = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	zeroMAC     = net.HardwareAddr{0, 0, 0, 0, 0, 0}

	guest4    = netip.MustParsePrefix("10.9.0.5/24")
	guest4b   = netip.MustParsePrefix("192.0.2.9/32")
	guest4p2p = netip.MustParsePrefix("10.8.0.2/31")
	guest6    = netip.MustParsePrefix("2001:db8:9::5/64")
	guest6b   = netip.MustParsePrefix("fd00:7::5/128")

	gateway4    = netip.MustParseAddr("10.9.0.1")
	gateway4off = netip.MustParseAddr("169.254.1.1") // off-link
	gateway6    = netip.MustParseAddr("2001:db8:9::1")
	gateway6ll  = netip.MustParseAddr("fe80::1")

	neighbour4 = netip.MustParseAddr("10.9.0.77")
	neighbour6 = netip.MustParseAddr("2001:db8:9::77")
	offLink4   = netip.MustParseAddr("198.51.100.7")
	offLink6   = netip.MustParseAddr("2001:db8:ffff::7")

	guestLL    = netip.MustParseAddr("fe80::aa:bbff:fe00:5")
	allNodes   = netip.MustParseAddr("ff02::1")
	allRouters = netip.MustParseAddr("ff02::2")
	none4      = netip.IPv4Unspecified()
	none6      = netip.IPv6Unspecified()
)

// The numbers on the wire, not those of the C headers.
const (
	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeVLAN = 0x8100
	typeQinQ = 0x88a8
	typeIPv6 = 0x86dd

	protoHop, protoTCP, protoUDP, protoRouting, protoFragment, protoAuth = 0, 6, 17, 43, 44, 51
	protoICMP6, protoNone, protoDest                                     = 58, 59, 60

	icmpEcho, icmpMLDReport, icmpRS, icmpRA, icmpNS, icmpNA, icmpRedirect, icmpMLD2 = 128, 131, 133, 134, 135, 136, 137, 143
)

// guestEndpoint is the endpoint of the guest's TAP.
func guestEndpoint() Endpoint {
	return Endpoint{
		Role: RoleGuest, SpoofCheck: true, Peer: 7, Redirect: RedirectPeer, Counters: loopback,
		GuestMAC: guestMAC, GatewayMAC: GatewayMAC,
		Addresses: []netip.Prefix{guest4, guest4b, guest4p2p, guest6, guest6b},
		Gateways:  []netip.Addr{gateway4, gateway4off, gateway6, gateway6ll},
	}
}

func join(parts ...[]byte) []byte { return slices.Concat(parts...) }

func be16(v int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(v)) }

func eth(dst, src net.HardwareAddr, ethertype int, payload ...[]byte) []byte {
	return join(dst, src, be16(ethertype), join(payload...))
}

// fromGuest is a frame from the guest to its gateway.
func fromGuest(ethertype int, payload ...[]byte) []byte {
	return eth(GatewayMAC, guestMAC, ethertype, payload...)
}

// checksum is the Internet checksum of RFC 1071 over the parts, each of which but the last has an even length.
func checksum(parts ...[]byte) []byte {
	data := join(parts...)
	if len(data)%2 == 1 {
		data = append(data, 0)
	}
	var sum uint32
	for i := 0; i < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return be16(int(^uint16(sum)))
}

func ip4(src, dst netip.Addr, proto, frag int, payload ...[]byte) []byte {
	body := join(payload...)
	h := join([]byte{0x45, 0}, be16(20+len(body)), be16(0x1234), be16(frag), []byte{64, byte(proto), 0, 0}, src.AsSlice(), dst.AsSlice())
	copy(h[10:], checksum(h))
	return join(h, body)
}

func ip6(src, dst netip.Addr, next, hopLimit int, payload ...[]byte) []byte {
	body := join(payload...)
	return join([]byte{0x60, 0, 0, 0}, be16(len(body)), []byte{byte(next), byte(hopLimit)}, src.AsSlice(), dst.AsSlice(), body)
}

// pseudo6 is the pseudo header of RFC 8200, 8.1.
func pseudo6(src, dst netip.Addr, proto, length int) []byte {
	return join(src.AsSlice(), dst.AsSlice(), []byte{0, 0}, be16(length), []byte{0, 0, 0, byte(proto)})
}

func pseudo4(src, dst netip.Addr, proto, length int) []byte {
	return join(src.AsSlice(), dst.AsSlice(), []byte{0, byte(proto)}, be16(length))
}

func udp(src, dst netip.Addr, sport, dport int, payload ...[]byte) []byte {
	body := join(payload...)
	h := join(be16(sport), be16(dport), be16(8+len(body)), []byte{0, 0})
	pseudo := pseudo4
	if src.Is6() {
		pseudo = pseudo6
	}
	copy(h[6:], checksum(pseudo(src, dst, protoUDP, 8+len(body)), h, body))
	return join(h, body)
}

// icmp6 is an ICMPv6 message: type, code 0, checksum, and the rest.
func icmp6(src, dst netip.Addr, typ int, rest ...[]byte) []byte {
	m := join([]byte{byte(typ), 0, 0, 0}, join(rest...))
	copy(m[2:], checksum(pseudo6(src, dst, protoICMP6, len(m)), m))
	return m
}

// option is an ND option with a link-layer address: 1 source, 2 target.
func option(typ int, mac net.HardwareAddr) []byte { return join([]byte{byte(typ), 1}, mac) }

// nonce is the option of enhanced DAD, RFC 7527.
func nonce() []byte { return []byte{14, 1, 1, 2, 3, 4, 5, 6} }

var reserved4 = []byte{0, 0, 0, 0}

func solicitedNode(target netip.Addr) netip.Addr {
	a, t := netip.MustParseAddr("ff02::1:ff00:0").As16(), target.As16()
	copy(a[13:], t[13:])
	return netip.AddrFrom16(a)
}

func multicastMAC(group netip.Addr) net.HardwareAddr {
	b := group.As16()
	return net.HardwareAddr{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// ns is a Neighbour Solicitation as Linux sends it: to the solicited-node address.
func ns(src, target netip.Addr, options ...[]byte) []byte {
	dst := solicitedNode(target)
	return eth(multicastMAC(dst), guestMAC, typeIPv6, ip6(src, dst, protoICMP6, 255, icmp6(src, dst, icmpNS, reserved4, target.AsSlice(), join(options...))))
}

// unicastNS is what Linux sends to see whether a known neighbour is still there: without options.
func unicastNS(src, target netip.Addr) []byte {
	return fromGuest(typeIPv6, ip6(src, target, protoICMP6, 255, icmp6(src, target, icmpNS, reserved4, target.AsSlice())))
}

// na is a Neighbour Advertisement.
func na(ethDst, ethSrc net.HardwareAddr, src, dst, target netip.Addr, flags byte, options ...[]byte) []byte {
	return eth(ethDst, ethSrc, typeIPv6, ip6(src, dst, protoICMP6, 255, icmp6(src, dst, icmpNA, []byte{flags, 0, 0, 0}, target.AsSlice(), join(options...))))
}

func arp(ethDst, ethSrc net.HardwareAddr, op int, sha net.HardwareAddr, spa netip.Addr, tha net.HardwareAddr, tpa netip.Addr) []byte {
	return eth(ethDst, ethSrc, typeARP, be16(1), be16(typeIPv4), []byte{6, 4}, be16(op), sha, spa.AsSlice(), tha, tpa.AsSlice())
}

func arpRequest(spa, tpa netip.Addr) []byte {
	return arp(broadcast, guestMAC, 1, guestMAC, spa, zeroMAC, tpa)
}

// ext is an IPv6 extension header of 8 bytes: next header, length 0, padding option.
func ext(next int) []byte { return []byte{byte(next), 0, 1, 4, 0, 0, 0, 0} }

// fragment is an IPv6 fragment header; offset in bytes.
func fragment(next, offset int, more bool) []byte {
	f := offset
	if more {
		f |= 1
	}
	return join([]byte{byte(next), 0}, be16(f), []byte{0xca, 0xfe, 0xba, 0xbe})
}

// with gives the frame with the bytes at off replaced.
func with(frame []byte, off int, b ...byte) []byte {
	out := slices.Clone(frame)
	if off+len(b) > len(out) {
		panic("with: past the frame's end")
	}
	copy(out[off:], b)
	return out
}

func pad(frame []byte, to int) []byte {
	return append(slices.Clone(frame), make([]byte, max(0, to-len(frame)))...)
}
