package cni_test

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Frames as a guest's network stack makes them. An Ethernet header has 14 bytes, IPv4 20, IPv6 40.

var (
	broadcast  = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	strangeMAC = net.HardwareAddr{0x02, 0xba, 0xd0, 0, 0, 1} // no guest of the tests has it
)

func join(parts ...[]byte) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func u16(v int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(v)) }

func eth(dst, src net.HardwareAddr, proto int, payload []byte) []byte {
	return join(dst, src, u16(proto), payload)
}

// sum is the Internet checksum (RFC 1071) over the parts as one.
func sum(parts ...[]byte) []byte {
	b := join(parts...)
	var s uint32
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return u16(int(^uint16(s)))
}

// arp is an ARP packet (RFC 826) of 28 bytes; op 1 asks, 2 answers.
func arp(op int, fromMAC net.HardwareAddr, from netip.Addr, toMAC net.HardwareAddr, to netip.Addr) []byte {
	return join([]byte{0, 1, 8, 0, 6, 4}, u16(op), fromMAC, from.AsSlice(), toMAC, to.AsSlice())
}

// ip makes a packet of the addresses' family with the transport's header and data, checksummed.
func ip(from, to netip.Addr, proto int, transport []byte) []byte {
	if from.Is4() {
		head := join([]byte{0x45, 0}, u16(20+len(transport)), []byte{0, 7, 0, 0, 64, byte(proto), 0, 0}, from.AsSlice(), to.AsSlice())
		copy(head[10:], sum(head))
		return append(head, transport...)
	}
	hops := byte(64)
	if proto == unix.IPPROTO_ICMPV6 && transport[0] >= 133 {
		hops = 255 // of Neighbour Discovery
	}
	return join([]byte{0x60, 0, 0, 0}, u16(len(transport)), []byte{byte(proto), hops}, from.AsSlice(), to.AsSlice(), transport)
}

// icmp is an ICMP or ICMPv6 message; body starts behind the checksum.
func icmp(from, to netip.Addr, kind byte, body []byte) []byte {
	msg := join([]byte{kind, 0, 0, 0}, body)
	proto := unix.IPPROTO_ICMP
	if from.Is6() {
		proto = unix.IPPROTO_ICMPV6
		copy(msg[2:], sum(pseudo(from, to, proto, len(msg)), msg))
	} else {
		copy(msg[2:], sum(msg))
	}
	return ip(from, to, proto, msg)
}

// pseudo is the pseudo header of RFC 8200, section 8.1, or of RFC 768.
func pseudo(from, to netip.Addr, proto, size int) []byte {
	if from.Is4() {
		return join(from.AsSlice(), to.AsSlice(), []byte{0, byte(proto)}, u16(size))
	}
	return join(from.AsSlice(), to.AsSlice(), []byte{0, 0}, u16(size), []byte{0, 0, 0, byte(proto)})
}

// echo is an echo request; reply with its type gives the answer.
func echo(from, to netip.Addr, body []byte) []byte {
	if from.Is4() {
		return icmp(from, to, 8, body)
	}
	return icmp(from, to, 128, body)
}

func udp(from, to netip.Addr, fromPort, toPort int, data []byte) []byte {
	d := join(u16(fromPort), u16(toPort), u16(8+len(data)), []byte{0, 0}, data)
	copy(d[6:], sum(pseudo(from, to, unix.IPPROTO_UDP, len(d)), d))
	return ip(from, to, unix.IPPROTO_UDP, d)
}

// solicit is a Neighbour Solicitation for target with the sender's MAC as option (RFC 4861, 4.3).
func solicit(from, to, target netip.Addr, mac net.HardwareAddr) []byte {
	return icmp(from, to, 135, join(make([]byte, 4), target.AsSlice(), []byte{1, 1}, mac))
}

// advertise is an unsolicited Neighbour Advertisement that overrides (RFC 4861, 4.4).
func advertise(from, to, target netip.Addr, mac net.HardwareAddr) []byte {
	return icmp(from, to, 136, join([]byte{0x20, 0, 0, 0}, target.AsSlice(), []byte{2, 1}, mac))
}

// solicitedNode is the multicast address that a node with addr listens to (RFC 4291, 2.7.1), and its MAC (RFC 2464, 7).
func solicitedNode(addr netip.Addr) (netip.Addr, net.HardwareAddr) {
	a := addr.As16()
	group := netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]})
	return group, net.HardwareAddr{0x33, 0x33, 0xff, a[13], a[14], a[15]}
}

func etherType(a netip.Addr) int {
	if a.Is4() {
		return unix.ETH_P_IP
	}
	return unix.ETH_P_IPV6
}

// packet is a received frame taken apart as far as the tests look.
type packet struct {
	dst, src  net.HardwareAddr
	proto     int
	payload   []byte // behind the Ethernet header
	from, to  netip.Addr
	transport int
	data      []byte // behind the IP header
}

// parseFrame takes a frame apart; what is no IP has no addresses.
func parseFrame(f []byte) (p packet) {
	if len(f) < 14 {
		return p
	}
	p = packet{dst: f[:6], src: f[6:12], proto: int(binary.BigEndian.Uint16(f[12:])), payload: f[14:]}
	b := p.payload
	switch {
	case p.proto == unix.ETH_P_IP && len(b) >= 20:
		p.from, p.to = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		p.transport, p.data = int(b[9]), b[int(b[0]&15)*4:]
	case p.proto == unix.ETH_P_IPV6 && len(b) >= 40:
		p.from, p.to = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		p.transport, p.data = int(b[6]), b[40:]
	}
	return p
}
