package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// MaxAddresses and MaxGateways bound what an [Endpoint] holds in each address family.
const (
	MaxAddresses = len(redirectEndpoint{}.Ipv4)
	MaxGateways  = len(redirectEndpoint{}.Ipv4Gateways)
)

// Flags of bpf/tapir.h: ENDPOINT_*.
const (
	flagSpoofCheck = 1 << 0
	flagAnswers    = 1 << 1
	flagTranslate4 = 1 << 2
	flagTranslate6 = 1 << 3
)

// GatewayMAC is the link-layer address of every guest's gateway, on every node: "tapir" behind a locally administered
// first byte. A guest restored from a snapshot finds it where it was.
var GatewayMAC = net.HardwareAddr{0x02, 0x74, 0x61, 0x70, 0x69, 0x72}

// Role is the place of a device in its attachment, and so the program that runs on its ingress.
type Role uint8

// The roles of enum role in bpf/tapir.h.
const (
	RoleUnknown = Role(redirectRoleROLE_UNKNOWN)
	RoleGuest   = Role(redirectRoleROLE_GUEST) // the TAP
	RolePod     = Role(redirectRoleROLE_POD)   // the veth's end in the pod's netns, beside a TAP
	RoleHost    = Role(redirectRoleROLE_HOST)  // the veth's end in the host's netns, of a pod without a TAP
)

func (r Role) String() string {
	switch r {
	case RoleGuest:
		return "guest"
	case RolePod:
		return "pod"
	case RoleHost:
		return "host"
	}
	return "unknown"
}

// Redirect is how a legal frame leaves.
type Redirect uint8

// The ways of enum redirect in bpf/tapir.h.
const (
	RedirectNone   = Redirect(redirectRedirectREDIRECT_NONE)   // on to the stack: RoleHost
	RedirectEgress = Redirect(redirectRedirectREDIRECT_EGRESS) // out of the peer device
	RedirectPeer   = Redirect(redirectRedirectREDIRECT_PEER)   // into the receive path of the peer device's own peer, a veth's
)

func (r Redirect) String() string {
	switch r {
	case RedirectEgress:
		return "egress"
	case RedirectPeer:
		return "peer"
	}
	return "none"
}

// Endpoint is what the programs know of one device.
type Endpoint struct {
	Role       Role
	SpoofCheck bool
	Answers    bool   // DHCP, DHCPv6 and Router Solicitations go to the answerer, where one is loaded
	Peer       uint32 // ifindex that legal frames go to, in the device's netns; 0 with RedirectNone
	Redirect   Redirect
	Counters   uint32 // the ifindex under which frames are counted: the TAP's, or the host end's of a plain pod

	// The guest's MAC, and the one that it is answered with. A RolePod endpoint needs neither.
	GuestMAC, GatewayMAC net.HardwareAddr

	// The guest's addresses, each with its on-link prefix length: at most MaxAddresses in each family. ARP and ND for
	// what else is on-link, and for the gateways (at most MaxGateways in each family), is answered with GatewayMAC.
	Addresses []netip.Prefix
	Gateways  []netip.Addr

	// Outside are the pod's addresses where the guest inside has others, the same in each clone of a snapshot: at most one in
	// each family, in which Addresses has exactly one, the guest's. Both endpoints of the attachment have them. GuestMAC,
	// Addresses and Gateways are always what the guest knows: its inside identity.
	Outside []netip.Addr
}

// LimitError says that an attachment has more of something than an [Endpoint] holds.
type LimitError struct {
	Max  int
	What string // "IPv4 addresses"
}

func (e *LimitError) Error() string { return fmt.Sprintf("want at most %d %s", e.Max, e.What) }

// encode gives the map value. Its errors name the field, not the device.
func (e Endpoint) encode() (redirectEndpoint, error) {
	v := redirectEndpoint{
		Role:     redirectRole(e.Role),
		Redirect: redirectRedirect(e.Redirect),
		Peer:     e.Peer,
		Counters: e.Counters,
	}
	if e.SpoofCheck {
		v.Flags |= flagSpoofCheck
	}
	if e.Answers {
		v.Flags |= flagAnswers
	}
	if e.Role == RoleUnknown || e.Role > RoleHost {
		return v, fmt.Errorf("role: want guest, pod or host, got %d", e.Role)
	}
	if (e.Redirect == RedirectNone) != (e.Peer == 0) {
		return v, fmt.Errorf("redirect %s with peer ifindex %d: one needs the other", e.Redirect, e.Peer)
	}
	if (e.Redirect == RedirectNone) != (e.Role == RoleHost) {
		return v, fmt.Errorf("redirect %s of a %s endpoint: only a host endpoint passes frames to the stack", e.Redirect, e.Role)
	}
	if err := encodeMAC(&v.GuestMac, e.GuestMAC, e.Role); err != nil {
		return v, fmt.Errorf("guest MAC: %w", err)
	}
	if err := encodeMAC(&v.GatewayMac, e.GatewayMAC, e.Role); err != nil {
		return v, fmt.Errorf("gateway MAC: %w", err)
	}
	for _, a := range e.Addresses {
		if err := v.addAddress(a); err != nil {
			return v, err
		}
	}
	for _, g := range e.Gateways {
		if err := v.addGateway(g); err != nil {
			return v, err
		}
	}
	for _, a := range e.Outside {
		if err := v.addOutside(a); err != nil {
			return v, err
		}
	}
	if e.Role == RoleHost && len(e.Outside) > 0 {
		return v, errors.New("outside addresses of a host endpoint: want a guest or pod endpoint")
	}
	return v, nil
}

// addOutside comes after all addresses of the guest.
func (v *redirectEndpoint) addOutside(a netip.Addr) error {
	if !a.IsValid() || a.IsUnspecified() || a.Is4In6() || a.Zone() != "" {
		return fmt.Errorf("outside address %q: want a host address", a)
	}
	flag, count := uint32(flagTranslate4), v.NrIpv4
	if a.Is6() {
		flag, count = flagTranslate6, v.NrIpv6
	}
	if v.Flags&flag != 0 {
		return fmt.Errorf("outside address %s: %w", a, &LimitError{1, "of its family"})
	}
	if count != 1 {
		return fmt.Errorf("outside address %s: want one address of its family inside, got %d", a, count)
	}
	v.Flags |= flag
	if a.Is4() {
		v.Outside4, v.Diff4 = word4(a), sumDiff(addr4(v.Ipv4[0].Addr), a)
		return nil
	}
	v.Outside6.Word, v.Diff6 = words16(a.As16()), sumDiff(netip.AddrFrom16(bytes16(v.Ipv6[0].Addr.Word)), a)
	return nil
}

func encodeMAC(to *[6]uint8, mac net.HardwareAddr, role Role) error {
	if len(mac) == 0 && role == RolePod {
		return nil
	}
	if len(mac) != len(to) {
		return fmt.Errorf("want %d bytes, got %d", len(to), len(mac))
	}
	if mac[0]&1 != 0 {
		return fmt.Errorf("want a unicast address, got %s", mac)
	}
	copy(to[:], mac)
	return nil
}

func (v *redirectEndpoint) addAddress(p netip.Prefix) error {
	if !p.IsValid() || p.Addr().IsUnspecified() || p.Addr().Is4In6() || p.Addr().Zone() != "" {
		return fmt.Errorf("address %q: want a host address with its prefix length", p)
	}
	list, count := "IPv4", &v.NrIpv4
	if p.Addr().Is6() {
		list, count = "IPv6", &v.NrIpv6
	}
	n := int(*count)
	if n == MaxAddresses {
		return fmt.Errorf("address %s: %w", p, &LimitError{MaxAddresses, list + " addresses"})
	}
	*count++
	if p.Addr().Is4() {
		v.Ipv4[n].Addr = word4(p.Addr())
		v.Ipv4[n].Mask = binary.NativeEndian.Uint32(net.CIDRMask(p.Bits(), 32))
		return nil
	}
	v.Ipv6[n].Addr.Word = words16(p.Addr().As16())
	v.Ipv6[n].Mask.Word = words16([16]byte(net.CIDRMask(p.Bits(), 128)))
	return nil
}

func (v *redirectEndpoint) addGateway(a netip.Addr) error {
	if !a.IsValid() || a.IsUnspecified() || a.Is4In6() || a.Zone() != "" {
		return fmt.Errorf("gateway %q: want a host address", a)
	}
	list, count := "IPv4", &v.NrIpv4Gateways
	if a.Is6() {
		list, count = "IPv6", &v.NrIpv6Gateways
	}
	n := int(*count)
	if n == MaxGateways {
		return fmt.Errorf("gateway %s: %w", a, &LimitError{MaxGateways, list + " gateways"})
	}
	*count++
	if a.Is4() {
		v.Ipv4Gateways[n] = word4(a)
		return nil
	}
	v.Ipv6Gateways[n].Word = words16(a.As16())
	return nil
}

// decode is the inverse of encode, IPv4 first.
func (v redirectEndpoint) decode() Endpoint {
	e := Endpoint{
		Role:       Role(v.Role),
		SpoofCheck: v.Flags&flagSpoofCheck != 0,
		Answers:    v.Flags&flagAnswers != 0,
		Peer:       v.Peer,
		Redirect:   Redirect(v.Redirect),
		Counters:   v.Counters,
	}
	if v.GuestMac != [6]uint8{} {
		e.GuestMAC = v.GuestMac[:]
	}
	if v.GatewayMac != [6]uint8{} {
		e.GatewayMAC = v.GatewayMac[:]
	}
	for _, p := range v.Ipv4[:min(int(v.NrIpv4), MaxAddresses)] {
		bits, _ := net.IPMask(bytes4(p.Mask)).Size()
		e.Addresses = append(e.Addresses, netip.PrefixFrom(addr4(p.Addr), bits))
	}
	for _, p := range v.Ipv6[:min(int(v.NrIpv6), MaxAddresses)] {
		mask := bytes16(p.Mask.Word)
		bits, _ := net.IPMask(mask[:]).Size()
		e.Addresses = append(e.Addresses, netip.PrefixFrom(netip.AddrFrom16(bytes16(p.Addr.Word)), bits))
	}
	for _, g := range v.Ipv4Gateways[:min(int(v.NrIpv4Gateways), MaxGateways)] {
		e.Gateways = append(e.Gateways, addr4(g))
	}
	for _, g := range v.Ipv6Gateways[:min(int(v.NrIpv6Gateways), MaxGateways)] {
		e.Gateways = append(e.Gateways, netip.AddrFrom16(bytes16(g.Word)))
	}
	if v.Flags&flagTranslate4 != 0 {
		e.Outside = append(e.Outside, addr4(v.Outside4))
	}
	if v.Flags&flagTranslate6 != 0 {
		e.Outside = append(e.Outside, netip.AddrFrom16(bytes16(v.Outside6.Word)))
	}
	return e
}

// sumDiff is how the one's complement sum changes where one address takes another's place, folded to 16 bits; of words as they are in
// memory, as the programs sum them.
func sumDiff(from, to netip.Addr) uint32 {
	sum := uint32(0)
	f, t := from.AsSlice(), to.AsSlice()
	for i := 0; i < len(t); i += 2 {
		sum += uint32(binary.NativeEndian.Uint16(t[i:])) + uint32(^binary.NativeEndian.Uint16(f[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return sum
}

// The maps hold addresses in wire order: a word has the address's bytes in memory order.

func word4(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

func bytes4(w uint32) []byte { return binary.NativeEndian.AppendUint32(nil, w) }

func addr4(w uint32) netip.Addr { return netip.AddrFrom4([4]byte(bytes4(w))) }

func words16(b [16]byte) (w [4]uint32) {
	for i := range w {
		w[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return w
}

func bytes16(w [4]uint32) (b [16]byte) {
	for i := range w {
		binary.NativeEndian.PutUint32(b[4*i:], w[i])
	}
	return b
}
