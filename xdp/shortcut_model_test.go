package xdp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
)

// shortcutModel decides about a frame as the design says, in Go and from the frame's bytes: the reason, and what comes out. It
// knows a guest (guestParticipant), a peer, routes to other nodes, and remembers echo requests. Conntrack is empty.
type shortcutModel struct {
	program  string
	tunnels  []uint16
	flagged  bool // the guest is
	peerFlag bool
	taken    map[string]bool // flows that took the shortcut, echo requests among them
}

type reasonAnd struct {
	reason shortcutPathReason
	out    []byte
}

func (m *shortcutModel) tap() bool {
	return m.program == shortcutProgGuestXdp || m.program == shortcutProgGuestXdpSkb
}
func (m *shortcutModel) uplink() bool { return m.program == shortcutProgUplinkXdp }

func (m *shortcutModel) decide(f []byte) reasonAnd {
	pass := func(r shortcutPathReason) reasonAnd { return reasonAnd{r, f} }
	if m.tap() && !bytes.Equal(f[6:12], guestMAC) {
		return pass(shortcutPathReasonPATH_DROP_SPOOF_MAC)
	}
	var p modelPacket
	var r shortcutPathReason
	switch binary.BigEndian.Uint16(f[12:]) {
	case typeIPv4:
		r = m.parse4(f, &p)
	case typeIPv6:
		r = m.parse6(f, &p)
	default:
		r = shortcutPathReasonPATH_PASS_NOT_IP
	}
	if r != 0 {
		return pass(r)
	}
	if p.about != "" && !m.taken[p.about] {
		return pass(shortcutPathReasonPATH_PASS_PROTOCOL)
	}
	dst, src, r := m.target(f, p)
	if r != shortcutPathReasonPATH_TO_GUEST && r != shortcutPathReasonPATH_TO_UPLINK {
		return pass(r)
	}
	switch {
	case p.about != "":
	case p.proto == protoTCP || p.proto == protoUDP:
		m.taken[flowOf(p.src, p.dst, p.proto, p.l4[:4])] = true
	case p.l4[0] == 0 || p.l4[0] == icmpEcho+1:
		if !m.taken[flowOf(p.dst, p.src, p.proto, p.l4[4:6])] {
			return pass(shortcutPathReasonPATH_PASS_NO_REQUEST)
		}
	default:
		m.taken[flowOf(p.src, p.dst, p.proto, p.l4[4:6])] = true
	}
	out := routed(f, dst, src)
	if off, whole, ok := p.partial(); ok && m.program != shortcutProgHostShortcut {
		if m.program == shortcutProgGuestXdpSkb {
			return pass(shortcutPathReasonPATH_PASS_CHECKSUM)
		}
		copy(out[p.off+off:], whole)
	}
	return reasonAnd{r, out}
}

// modelPacket is a plain IP packet.
type modelPacket struct {
	src, dst netip.Addr
	proto    int
	off      int // of l4 in the frame
	l4       []byte
	about    string // of an ICMP error: the flow
}

// flowOf names a flow by its ports, or by an echo's identifier.
func flowOf(src, dst netip.Addr, proto int, ports []byte) string {
	return fmt.Sprintf("%s %s %d %x", src, dst, proto, ports)
}

// owner says whether the frame's source is the guest's, or why the frame ends here.
func (m *shortcutModel) owner(src netip.Addr, drop shortcutPathReason) shortcutPathReason {
	if m.uplink() {
		return 0
	}
	for _, a := range guestParticipant().Addresses {
		if a.Addr() == src {
			return 0
		}
	}
	if !m.tap() || src.IsUnspecified() || src.IsLinkLocalUnicast() && src.Is6() {
		return shortcutPathReasonPATH_PASS_SOURCE
	}
	return drop
}

func (m *shortcutModel) gatewayMAC() net.HardwareAddr {
	if m.uplink() {
		return uplinkMAC
	}
	return GatewayMAC
}

func (m *shortcutModel) parse4(f []byte, p *modelPacket) shortcutPathReason {
	ip := f[14:]
	if len(ip) < 20 || ip[0]>>4 != 4 || ip[0]&15 < 5 {
		return shortcutPathReasonPATH_PASS_LENGTH
	}
	p.src, p.dst, p.proto, p.off = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:])), int(ip[9]), 34
	if r := m.owner(p.src, shortcutPathReasonPATH_DROP_SPOOF_IPV4); r != 0 {
		return r
	}
	total := int(binary.BigEndian.Uint16(ip[2:]))
	switch {
	case !bytes.Equal(f[:6], m.gatewayMAC()):
		return shortcutPathReasonPATH_PASS_NOT_GATEWAY
	case ip[0]&15 > 5:
		return shortcutPathReasonPATH_PASS_OPTIONS
	case binary.BigEndian.Uint16(ip[6:])&0x3fff != 0:
		return shortcutPathReasonPATH_PASS_FRAGMENT
	case total < 20 || total > len(ip):
		return shortcutPathReasonPATH_PASS_LENGTH
	}
	p.l4 = ip[20:total]
	if r := m.transport(p, f, 1, 8, 0); r != 0 {
		return r
	}
	if ip[8] <= 1 {
		return shortcutPathReasonPATH_PASS_TTL
	}
	return 0
}

func (m *shortcutModel) parse6(f []byte, p *modelPacket) shortcutPathReason {
	ip := f[14:]
	if len(ip) < 40 || ip[0]>>4 != 6 {
		return shortcutPathReasonPATH_PASS_LENGTH
	}
	p.src, p.dst, p.proto, p.off = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:])), int(ip[6]), 54
	if r := m.owner(p.src, shortcutPathReasonPATH_DROP_SPOOF_IPV6); r != 0 {
		return r
	}
	length := int(binary.BigEndian.Uint16(ip[4:]))
	switch {
	case !bytes.Equal(f[:6], m.gatewayMAC()):
		return shortcutPathReasonPATH_PASS_NOT_GATEWAY
	case length > len(ip)-40:
		return shortcutPathReasonPATH_PASS_LENGTH
	}
	p.l4 = ip[40 : 40+length]
	switch p.proto {
	case protoHop, protoRouting, protoAuth, protoDest:
		return shortcutPathReasonPATH_PASS_EXT_HEADERS
	case protoFragment:
		return shortcutPathReasonPATH_PASS_FRAGMENT
	}
	if r := m.transport(p, f, protoICMP6, icmpEcho, icmpEcho+1); r != 0 {
		return r
	}
	if ip[7] <= 1 {
		return shortcutPathReasonPATH_PASS_TTL
	}
	return 0
}

// transport looks at what is behind the IP header; the frame may have bytes behind the packet's end.
func (m *shortcutModel) transport(p *modelPacket, f []byte, icmp int, request, reply byte) shortcutPathReason {
	there := f[p.off:]
	switch p.proto {
	case protoTCP:
		if len(there) < 20 || int(there[12]>>4)*4 < 20 || int(there[12]>>4)*4 > len(p.l4) {
			return shortcutPathReasonPATH_PASS_LENGTH
		}
	case protoUDP:
		if len(there) < 8 || int(binary.BigEndian.Uint16(there[4:])) != len(p.l4) || len(p.l4) < 8 {
			return shortcutPathReasonPATH_PASS_LENGTH
		}
		for _, port := range m.tunnels {
			if binary.BigEndian.Uint16(there) == port || binary.BigEndian.Uint16(there[2:]) == port {
				return shortcutPathReasonPATH_PASS_TUNNEL
			}
		}
	case icmp:
		if len(there) < 8 || len(p.l4) < 8 {
			return shortcutPathReasonPATH_PASS_LENGTH
		}
		if isError(there[0], icmp) {
			p.about = p.quote(there[8:], icmp, request)
			if p.about == "" {
				return shortcutPathReasonPATH_PASS_PROTOCOL
			}
			return 0
		}
		if there[1] != 0 || there[0] != request && there[0] != reply {
			return shortcutPathReasonPATH_PASS_PROTOCOL
		}
	default:
		return shortcutPathReasonPATH_PASS_PROTOCOL
	}
	return 0
}

func isError(kind byte, icmp int) bool {
	if icmp == 1 {
		return kind == 3 || kind == 11 || kind == 12
	}
	return kind >= 1 && kind <= 4
}

// quote is the flow that an error is about: of a packet that the frame's target sent to its source, else "".
func (p *modelPacket) quote(q []byte, icmp int, request byte) string {
	var src, dst netip.Addr
	var proto int
	switch {
	case icmp == 1 && len(q) >= 20 && q[0]&15 == 5 && binary.BigEndian.Uint16(q[6:])&0x3fff == 0:
		src, dst, proto, q = netip.AddrFrom4([4]byte(q[12:])), netip.AddrFrom4([4]byte(q[16:])), int(q[9]), q[20:]
	case icmp != 1 && len(q) >= 40:
		src, dst, proto, q = netip.AddrFrom16([16]byte(q[8:])), netip.AddrFrom16([16]byte(q[24:])), int(q[6]), q[40:]
	default:
		return ""
	}
	if src != p.dst || dst != p.src || len(q) < 8 || proto == icmp && q[0] != request {
		return ""
	}
	if proto == icmp {
		return flowOf(src, dst, proto, q[4:6])
	}
	return flowOf(src, dst, proto, q[:4])
}

// target is where the frame would go, flows apart: the MACs it gets, or why it does not.
func (m *shortcutModel) target(f []byte, p modelPacket) (dst, src net.HardwareAddr, r shortcutPathReason) {
	behind := func(a netip.Addr) bool { return nodes4.Contains(a) || nodes6.Contains(a) }
	peer := p.dst == peer4 || p.dst == peer6
	own := false
	for _, a := range guestParticipant().Addresses {
		own = own || a.Addr() == p.dst
	}
	switch {
	case m.uplink() && (peer || own) && !behind(p.src):
		return nil, nil, shortcutPathReasonPATH_PASS_SOURCE
	case own && !m.uplink():
		return nil, nil, shortcutPathReasonPATH_PASS_NO_TARGET // to itself
	case own && m.flagged, peer && m.peerFlag, (peer || behind(p.dst) && !m.uplink()) && m.flagged && !m.uplink():
		return nil, nil, shortcutPathReasonPATH_PASS_FLAGGED
	case (peer || own) && len(f)-14 > 1500:
		return nil, nil, shortcutPathReasonPATH_PASS_MTU
	case peer:
		return peerMAC, GatewayMAC, shortcutPathReasonPATH_TO_GUEST
	case own:
		return guestMAC, GatewayMAC, shortcutPathReasonPATH_TO_GUEST
	case m.uplink() || !behind(p.dst):
		return nil, nil, shortcutPathReasonPATH_PASS_NO_TARGET
	case len(f)-14 > 1400:
		return nil, nil, shortcutPathReasonPATH_PASS_MTU
	}
	return nextMAC, uplinkMAC, shortcutPathReasonPATH_TO_UPLINK
}

// partial says whether the transport checksum looks partial, and gives its place and the complete one.
func (p modelPacket) partial() (off int, whole []byte, ok bool) {
	off = map[int]int{protoTCP: 16, protoUDP: 6, 1: 2, protoICMP6: 2}[p.proto]
	var head []byte
	if p.proto != 1 {
		head = pseudo(p.src, p.dst, p.proto, len(p.l4))
	}
	// The complement of the pseudo header's checksum is its sum. Zero in UDP says that there is no checksum.
	want := ^binary.BigEndian.Uint16(checksum(head))
	got := binary.BigEndian.Uint16(p.l4[off:])
	if got != want || got == 0 && p.proto != 1 {
		return 0, nil, false
	}
	zero := bytes.Clone(p.l4)
	zero[off], zero[off+1] = 0, 0
	whole = checksum(head, zero)
	if p.proto != 1 && whole[0]|whole[1] == 0 {
		whole = []byte{0xff, 0xff}
	}
	return off, whole, true
}
