package xdp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
)

// model is bpf/decide.h once more, in Go and from the rules rather than from the C: what a frame that fits the endpoint
// must be counted as, with spoof checks on.
type model struct {
	Endpoint
	frame []byte
}

func (m model) own(a netip.Addr) bool {
	return slices.ContainsFunc(m.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
}

// answers says whether the gateway speaks for an address.
func (m model) answers(a netip.Addr) bool {
	if m.own(a) {
		return false
	}
	if slices.Contains(m.Gateways, a) {
		return true
	}
	if a.IsMulticast() || a.IsUnspecified() {
		return false
	}
	return slices.ContainsFunc(m.Addresses, func(p netip.Prefix) bool {
		if !p.Contains(a) {
			return false
		}
		if a.Is6() || p.Bits() >= 31 {
			return true
		}
		return a != p.Masked().Addr() && a != lastOf(p)
	})
}

// lastOf is an IPv4 prefix's broadcast address.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	n := binary.BigEndian.Uint32(b[:]) | uint32(1<<(32-p.Bits())-1)
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

func (m model) asked() bool {
	return m.frame[0]&1 == 1 || bytes.Equal(m.frame[:6], m.GatewayMAC)
}

func (m model) reason() Reason {
	f := m.frame
	if !bytes.Equal(f[6:12], m.GuestMAC) {
		return ReasonSpoofMAC
	}
	switch binary.BigEndian.Uint16(f[12:]) {
	case typeVLAN, typeQinQ, 0x9100:
		return ReasonVLAN
	case typeIPv4:
		return m.ipv4(f[14:])
	case typeARP:
		return m.arp(f[14:])
	case typeIPv6:
		return m.ipv6(f[14:])
	}
	return ReasonToHost
}

func (m model) ipv4(b []byte) Reason {
	if len(b) < 20 {
		return ReasonTruncated
	}
	if b[0]>>4 != 4 || b[0]&15 < 5 {
		return ReasonMalformed
	}
	src := netip.AddrFrom4([4]byte(b[12:]))
	ports := int(b[0]&15) * 4
	if b[9] == protoUDP && binary.BigEndian.Uint16(b[6:])&0x1fff == 0 && (m.own(src) || src.IsUnspecified() && b[6]&0x20 == 0) &&
		len(b) >= ports+4 && bytes.Equal(b[ports:ports+4], []byte{0, 67, 0, 68}) {
		return ReasonRogueDHCP
	}
	if m.own(src) {
		return ReasonToHost
	}
	if !src.IsUnspecified() || b[9] != protoUDP || b[6]&0x3f != 0 || b[7] != 0 {
		return ReasonSpoofIPv4
	}
	if len(b) < ports+4 {
		return ReasonTruncated
	}
	if !bytes.Equal(b[ports:ports+4], []byte{0, 68, 0, 67}) {
		return ReasonSpoofIPv4
	}
	return ReasonToHost
}

func (m model) arp(b []byte) Reason {
	if len(b) < 28 {
		return ReasonTruncated
	}
	sender, target := netip.AddrFrom4([4]byte(b[14:])), netip.AddrFrom4([4]byte(b[24:]))
	if !bytes.Equal(b[:6], []byte{0, 1, 8, 0, 6, 4}) || !bytes.Equal(b[8:14], m.GuestMAC) ||
		!sender.IsUnspecified() && !m.own(sender) {
		return ReasonSpoofARP
	}
	if b[6] == 0 && b[7] == 1 && m.asked() && m.answers(target) {
		return ReasonARPAnswered
	}
	return ReasonToHost
}

func (m model) ipv6(b []byte) Reason {
	if len(b) < 40 {
		return ReasonTruncated
	}
	if b[0]>>4 != 6 {
		return ReasonMalformed
	}
	proto, rest, fragmented, later := int(b[6]), b[40:], false, false
	for n := 0; !later; n++ {
		var size int
		switch proto {
		case protoHop, protoRouting, protoDest:
			if len(rest) < 2 {
				return ReasonTruncated
			}
			size = 8 + int(rest[1])*8
		case protoAuth:
			if len(rest) < 2 {
				return ReasonTruncated
			}
			size = 8 + int(rest[1])*4
		case protoFragment:
			if len(rest) < 4 {
				return ReasonTruncated
			}
			size, fragmented = 8, true
			later = binary.BigEndian.Uint16(rest[2:])>>3 != 0
		}
		if size == 0 {
			break
		}
		if n == 8 {
			return ReasonExtHeaders
		}
		proto, rest = int(rest[0]), rest[min(size, len(rest)):]
	}
	typ := -1
	if proto == protoICMP6 && !later {
		if len(rest) == 0 {
			return ReasonTruncated
		}
		typ = int(rest[0])
	}
	src := netip.AddrFrom16([16]byte(b[8:]))
	nothing := src.IsUnspecified() && !fragmented && slices.Contains([]int{icmpNS, icmpRS, icmpMLDReport, 132, icmpMLD2}, typ)
	if !m.own(src) && !src.IsLinkLocalUnicast() && !nothing {
		return ReasonSpoofIPv6
	}
	if proto == protoUDP && !later && len(rest) >= 4 && bytes.Equal(rest[:4], []byte{2, 35, 2, 34}) {
		return ReasonRogueDHCP
	}
	switch typ {
	case icmpRA:
		return ReasonRogueRA
	case icmpRedirect:
		return ReasonRogueRedirect
	case icmpRS, icmpNS, icmpNA:
		return m.nd(b, rest, typ, fragmented)
	}
	return ReasonToHost
}

// nd judges a solicitation or NA; rest starts at the ICMPv6 header, in the IPv6 packet b.
func (m model) nd(b, rest []byte, typ int, fragmented bool) Reason {
	if fragmented {
		return ReasonFragmentedND
	}
	start := len(b) - len(rest)
	end := 40 + int(binary.BigEndian.Uint16(b[4:]))
	fixed := 24
	if typ == icmpRS {
		fixed = 8
	}
	if end > len(b) || start+fixed > end {
		return ReasonTruncated
	}
	msg := b[start:end]
	if typ == icmpNA {
		if target := netip.AddrFrom16([16]byte(msg[8:])); !m.own(target) && !target.IsLinkLocalUnicast() {
			return ReasonSpoofND
		}
	}
	n := 0
	for o := msg[fixed:]; len(o) > 0; n++ {
		if n == 8 || len(o) < 8 || o[1] == 0 {
			return ReasonSpoofND
		}
		if (o[0] == 1 || o[0] == 2) && (o[1] != 1 || !bytes.Equal(o[2:8], m.GuestMAC)) {
			return ReasonSpoofND
		}
		if int(o[1])*8 > len(o) {
			return ReasonSpoofND
		}
		o = o[int(o[1])*8:]
	}
	if typ == icmpNS && start == 40 && m.solicited(b, msg) {
		return ReasonNDAnswered
	}
	if src := netip.AddrFrom16([16]byte(b[8:])); src.IsLinkLocalUnicast() && m.Redirect != RedirectEgress {
		return ReasonNDLinkLocal
	}
	return ReasonToHost
}

// solicited says whether a Neighbour Solicitation right behind the IPv6 header is one for the gateway to answer.
func (m model) solicited(b, msg []byte) bool {
	src, dst, target := netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:])), netip.AddrFrom16([16]byte(msg[8:]))
	if !m.asked() || b[7] != 255 || msg[1] != 0 || len(msg) > 24+64 || !m.answers(target) {
		return false
	}
	if dst != solicitedNode(target) && (dst != target || src.IsUnspecified()) {
		return false
	}
	pseudo := pseudo6(src, dst, protoICMP6, len(msg))
	if sum := checksum(pseudo, msg); sum[0] == 0 && sum[1] == 0 {
		return true
	}
	sum := checksum(pseudo)
	return msg[2] == ^sum[0] && msg[3] == ^sum[1]
}
