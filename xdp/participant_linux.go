package xdp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Flags of bpf/shortcut.h.
const (
	flagShortcutSpoofCheck = 1 << 0
	flagNoShortcut         = 1 << 1
	flagUplink             = 1 << 2
	flagShortcutTranslate4 = 1 << 3
	flagShortcutTranslate6 = 1 << 4
)

// Participant is an attachment that takes part in the shortcut.
type Participant struct {
	TAP, Host uint32 // ifindexes, unique on the node

	// HostNSID is the id that the host's netns has in the TAP's: conntrack is asked there.
	HostNSID int32

	MAC        net.HardwareAddr // the guest's
	GatewayMAC net.HardwareAddr // nil: [GatewayMAC]
	Addresses  []netip.Prefix   // the pod's; at most MaxAddresses in each family

	// Inside are the addresses that the guest has in place of the pod's: at most one in each family, in which Addresses
	// then has exactly one. See [Endpoint.Outside].
	Inside []netip.Addr

	MTU        int // of the TAP
	SpoofCheck bool
	NoShortcut bool
	Counters   uint32 // key of its counters: the TAP's ifindex
}

func (p Participant) encode() (shortcutAttachment, error) {
	v := shortcutAttachment{Counters: p.Counters, Tap: p.TAP, Host: p.Host, HostNsid: p.HostNSID, Mtu: uint32(p.MTU)}
	if p.TAP == 0 || p.Host == 0 || p.Counters == 0 {
		return v, errors.New("want the ifindexes of a TAP and a host end, and a key for the counters")
	}
	if p.MTU < 68 || p.MTU > 65535 {
		return v, fmt.Errorf("MTU: want 68 to 65535, got %d", p.MTU)
	}
	if p.SpoofCheck {
		v.Flags |= flagShortcutSpoofCheck
	}
	if p.NoShortcut {
		v.Flags |= flagNoShortcut
	}
	if err := encodeMAC(&v.GuestMac, p.MAC, RoleGuest); err != nil {
		return v, fmt.Errorf("guest MAC: %w", err)
	}
	gateway := p.GatewayMAC
	if len(gateway) == 0 {
		gateway = GatewayMAC
	}
	if err := encodeMAC(&v.GatewayMac, gateway, RoleGuest); err != nil {
		return v, fmt.Errorf("gateway MAC: %w", err)
	}
	for _, a := range p.Addresses {
		if err := v.addAddress(a.Addr()); err != nil {
			return v, err
		}
	}
	for _, a := range p.Inside {
		if err := v.addInside(a); err != nil {
			return v, err
		}
	}
	return v, nil
}

// addInside comes after all addresses of the pod.
func (v *shortcutAttachment) addInside(a netip.Addr) error {
	if !a.IsValid() || a.IsUnspecified() || a.Is4In6() || a.Zone() != "" {
		return fmt.Errorf("inside address %q: want a host address", a)
	}
	flag, count, to := uint32(flagShortcutTranslate4), v.NrIpv4, &v.Inside4
	if a.Is6() {
		flag, count, to = flagShortcutTranslate6, v.NrIpv6, &v.Inside6
	}
	if v.Flags&flag != 0 {
		return fmt.Errorf("inside address %s: %w", a, &LimitError{1, "of its family"})
	}
	if count != 1 {
		return fmt.Errorf("inside address %s: want one address of its family outside, got %d", a, count)
	}
	v.Flags |= flag
	*to = mapped(a)
	if a.Is4() {
		v.Diff4 = sumDiff(a, addr4(v.Ipv4[0]))
	} else {
		v.Diff6 = sumDiff(a, netip.AddrFrom16(bytes16(v.Ipv6[0].Word)))
	}
	return nil
}

func (v *shortcutAttachment) addAddress(a netip.Addr) error {
	if !a.IsValid() || a.IsUnspecified() || a.Is4In6() || a.Zone() != "" {
		return fmt.Errorf("address %q: want a host address", a)
	}
	if a.Is4() {
		if int(v.NrIpv4) == len(v.Ipv4) {
			return fmt.Errorf("address %s: %w", a, &LimitError{len(v.Ipv4), "IPv4 addresses"})
		}
		v.Ipv4[v.NrIpv4] = word4(a)
		v.NrIpv4++
		return nil
	}
	if int(v.NrIpv6) == len(v.Ipv6) {
		return fmt.Errorf("address %s: %w", a, &LimitError{len(v.Ipv6), "IPv6 addresses"})
	}
	v.Ipv6[v.NrIpv6].Word = words16(a.As16())
	v.NrIpv6++
	return nil
}

func (v shortcutAttachment) addresses() []netip.Addr {
	var out []netip.Addr
	for _, w := range v.Ipv4[:min(int(v.NrIpv4), len(v.Ipv4))] {
		out = append(out, addr4(w))
	}
	for _, w := range v.Ipv6[:min(int(v.NrIpv6), len(v.Ipv6))] {
		out = append(out, netip.AddrFrom16(bytes16(w.Word)))
	}
	return out
}

func (v shortcutAttachment) decode() Participant {
	p := Participant{
		TAP: v.Tap, Host: v.Host, HostNSID: v.HostNsid, Counters: v.Counters, MTU: int(v.Mtu),
		MAC: v.GuestMac[:], GatewayMAC: v.GatewayMac[:],
		SpoofCheck: v.Flags&flagShortcutSpoofCheck != 0, NoShortcut: v.Flags&flagNoShortcut != 0,
	}
	for _, a := range v.addresses() {
		p.Addresses = append(p.Addresses, netip.PrefixFrom(a, a.BitLen()))
	}
	if v.Flags&flagShortcutTranslate4 != 0 {
		p.Inside = append(p.Inside, netip.AddrFrom16(bytes16(v.Inside4.Word)).Unmap())
	}
	if v.Flags&flagShortcutTranslate6 != 0 {
		p.Inside = append(p.Inside, netip.AddrFrom16(bytes16(v.Inside6.Word)))
	}
	return p
}

// pod is the entry of one of the pod's addresses.
func (v shortcutAttachment) pod(a netip.Addr) shortcutPod {
	p := shortcutPod{Tap: v.Tap, Host: v.Host, Mtu: v.Mtu, Flags: v.Flags & flagNoShortcut, GuestMac: v.GuestMac, GatewayMac: v.GatewayMac}
	flag, inside, diff := uint32(flagShortcutTranslate4), v.Inside4, v.Diff4
	if a.Is6() {
		flag, inside, diff = flagShortcutTranslate6, v.Inside6, v.Diff6
	}
	if v.Flags&flag != 0 {
		p.Flags |= flag
		p.Inside = inside
		p.Diff = ^diff & 0xffff
	}
	return p
}

// mapped is the key of an address in the maps: an IPv4 address is ::ffff:a.b.c.d.
func mapped(a netip.Addr) shortcutIpv6Addr { return shortcutIpv6Addr{Word: words16(a.As16())} }

// Join writes the entries of an attachment, with its counters at zero. What is under its ifindexes is left of a dead one:
// who calls it has them reserved ([Programs.Reserve]). Its guest can then use the shortcut, and nobody reach it by one
// before Publish.
func (s *Shortcut) Join(p Participant) error {
	v, err := p.encode()
	if err != nil {
		return fmt.Errorf("join the shortcut with TAP %d: %w", p.TAP, err)
	}
	attachments, err := s.ownMap(shortcutMapAttachments)
	if err != nil {
		return err
	}
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := s.resetCounters(p.Counters); err != nil {
		return err
	}
	for _, ifindex := range []uint32{p.TAP, p.Host} {
		if err := attachments.Put(ifindex, v); err != nil {
			return fmt.Errorf("join the shortcut with ifindex %d: %w", ifindex, err)
		}
	}
	// What its addresses did before is in conntrack, not in flows.
	return s.newEpoch()
}

func (s *Shortcut) resetCounters(key uint32) error {
	paths, err := s.ownMap(shortcutMapPaths)
	if err != nil {
		return err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("reset counters: %w", err)
	}
	if err := paths.Put(key, make([]shortcutPathCounts, cpus)); err != nil {
		return fmt.Errorf("reset counters of ifindex %d: %w", key, err)
	}
	return nil
}

// attachment reads an entry; [fs.ErrNotExist] where there is none.
func (s *Shortcut) attachment(ifindex uint32) (shortcutAttachment, error) {
	var v shortcutAttachment
	m, err := s.ownMap(shortcutMapAttachments)
	if err != nil {
		return v, err
	}
	return v, notExist(m.Lookup(ifindex, &v))
}

// Participant gives the entry of a TAP. Where it takes no part the error is [fs.ErrNotExist].
func (s *Shortcut) Participant(tap uint32) (Participant, error) {
	v, err := s.attachment(tap)
	if err != nil {
		return Participant{}, fmt.Errorf("look up TAP %d in the shortcut: %w", tap, err)
	}
	return v.decode(), nil
}

// Participants gives all participants by their TAP's ifindex.
func (s *Shortcut) Participants() (map[uint32]Participant, error) {
	m, err := s.ownMap(shortcutMapAttachments)
	if err != nil {
		return nil, err
	}
	out := map[uint32]Participant{}
	var (
		ifindex uint32
		v       shortcutAttachment
	)
	iter := m.Iterate()
	for iter.Next(&ifindex, &v) {
		if v.Flags&flagUplink == 0 && v.Tap == ifindex {
			out[ifindex] = v.decode()
		}
	}
	if err := iter.Err(); err != nil {
		return nil, fmt.Errorf("list participants: %w", err)
	}
	return out, nil
}
