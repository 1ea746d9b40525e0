package uplink

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Route is a way to another node: what its owner wants.
type Route struct {
	Prefix netip.Prefix
	Via    netip.Addr // of a neighbour on the link of an uplink
}

// Hop is what a frame needs to go by a route, as the kernel has it now.
type Hop struct {
	Usable bool
	Why    string // it is not usable
	Dev    int    // ifindex; 0 where the routing table names none
	MAC    net.HardwareAddr
	Source net.HardwareAddr // the device's own MAC
	MTU    int              // bytes of an IP packet
}

// Equal reports whether frames would go the same way.
func (h Hop) Equal(o Hop) bool {
	if !h.Usable && !o.Usable {
		return true
	}
	return h.Usable == o.Usable && h.Dev == o.Dev && h.MTU == o.MTU && bytes.Equal(h.MAC, o.MAC) && bytes.Equal(h.Source, o.Source)
}

// known are the neighbour states in which the kernel itself sends to the entry's MAC (NUD_VALID, include/net/neighbour.h). A stale
// one is among them: the kernel sends, and asks meanwhile whether it still holds. To refuse it would move flows off the
// shortcut and back each half minute, since frames on the shortcut confirm no neighbour.
const known = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE

// resolver asks one network namespace.
type resolver struct {
	conn    *rtnl.Conn
	uplinks map[int]Device

	// The prefixes of each family that are routed, with where to; nil: not read since something changed.
	routed map[int][]routed
}

type routed struct {
	prefix netip.Prefix
	via    netip.Addr // invalid: on the link, or nowhere
	dev    int
}

// hop is what the kernel has for a route. ask says that the neighbour is to be asked for.
func (r *resolver) hop(rt Route) (h Hop, ask bool, err error) {
	h, err = r.way(rt)
	if err != nil || h.Why != "" {
		return h, false, err
	}
	link, err := r.conn.LinkByIndex(h.Dev)
	if rtnl.Gone(err) {
		h.Why = fmt.Sprintf("device %d is gone", h.Dev)
		return h, false, nil
	}
	if err != nil {
		return h, false, fmt.Errorf("look up device %d: %w", h.Dev, err)
	}
	a := link.Attrs()
	h.Source, h.MTU = a.HardwareAddr, smaller(h.MTU, a.MTU)
	switch {
	case a.RawFlags&unix.IFF_UP == 0:
		h.Why = a.Name + " is down"
	case a.RawFlags&unix.IFF_LOWER_UP == 0:
		h.Why = a.Name + " has no carrier"
	case len(a.HardwareAddr) != 6 || a.RawFlags&(unix.IFF_LOOPBACK|unix.IFF_NOARP) != 0:
		h.Why = a.Name + " is no Ethernet device"
	}
	if _, ok := r.uplinks[h.Dev]; !ok && h.Why == "" {
		h.Why = a.Name + " is no uplink of the shortcut"
	}
	if h.Why != "" {
		return h, false, nil
	}
	n, err := r.conn.Neighbour(h.Dev, rt.Via)
	switch {
	case err != nil:
		return h, false, err
	case n == nil || n.State&known == 0 || len(n.HardwareAddr) != 6:
		h.Why = fmt.Sprintf("%s has not answered on %s", rt.Via, a.Name)
		return h, n == nil, nil // one that failed is asked again by the first frame on the default path
	}
	h.MAC, h.Usable = n.HardwareAddr, true
	return h, n.State == unix.NUD_STALE, nil
}

// way is the device by which the routing table reaches the next hop, and the prefix by way of it: where the default path goes
// elsewhere the shortcut must not differ.
func (r *resolver) way(rt Route) (Hop, error) {
	to, why, err := r.lookup(rt.Via)
	h := Hop{Dev: to.dev, Why: why, MTU: to.mtu}
	switch {
	case err != nil || why != "":
		return h, err
	case to.via.IsValid():
		h.Why = fmt.Sprintf("%s is not on a link: it is behind %s", rt.Via, to.via)
		return h, nil
	}
	inside := rt.Prefix.Masked().Addr()
	if !rt.Prefix.IsSingleIP() {
		inside = inside.Next()
	}
	by, why, err := r.lookup(inside)
	switch {
	case err != nil:
		return h, err
	case why != "":
		h.Why = fmt.Sprintf("%s: %s", rt.Prefix, why)
	case by.dev != h.Dev || by.via != rt.Via && inside != rt.Via:
		h.Why = fmt.Sprintf("the node's routes lead to %s %s", rt.Prefix, by)
	}
	if h.Why != "" {
		return h, nil
	}
	h.MTU = smaller(h.MTU, by.mtu)
	h.Why, err = r.elsewhere(rt, h.Dev)
	return h, err
}

// target is where a route lookup leads.
type target struct {
	dev int
	via netip.Addr // invalid: on the link
	mtu int        // 0: the device's
}

func (t target) String() string {
	if !t.via.IsValid() {
		return fmt.Sprintf("directly on device %d", t.dev)
	}
	return fmt.Sprintf("by %s on device %d", t.via, t.dev)
}

// lookup asks the routing table; why says that there is no way.
func (r *resolver) lookup(addr netip.Addr) (t target, why string, err error) {
	found, err := r.conn.RouteGet(addr.AsSlice())
	for _, no := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, unix.EACCES, unix.ENODEV, unix.ENETDOWN} {
		if errors.Is(err, no) { // none, unreachable, blackhole, prohibit, no such device
			return t, fmt.Sprintf("the node has no route to %s (%v)", addr, no), nil
		}
	}
	if err != nil || len(found) == 0 {
		return t, "", fmt.Errorf("look up the route to %s: %w", addr, err)
	}
	f := found[0]
	if f.Type != unix.RTN_UNICAST {
		return t, fmt.Sprintf("the node's route to %s is of type %d, want unicast", addr, f.Type), nil
	}
	return target{dev: f.LinkIndex, via: gatewayOf(f.Gw, f.Via), mtu: f.MTU}, "", nil
}

// elsewhere finds a route inside the prefix that leads another way than the prefix.
func (r *resolver) elsewhere(rt Route, dev int) (why string, err error) {
	fam := unix.AF_INET
	if rt.Prefix.Addr().Is6() {
		fam = unix.AF_INET6
	}
	list, ok := r.routed[fam]
	if !ok {
		if list, err = r.list(fam); err != nil {
			return "", err
		}
		r.routed[fam] = list
	}
	for _, in := range list {
		inside := in.prefix.Bits() > rt.Prefix.Bits() && rt.Prefix.Contains(in.prefix.Addr())
		if inside && (in.via != rt.Via || in.dev != dev) {
			return fmt.Sprintf("the node routes %s inside it another way", in.prefix), nil
		}
	}
	return "", nil
}

func (r *resolver) list(family int) ([]routed, error) {
	routes, err := r.conn.Routes(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	out := []routed{}
	for _, f := range routes {
		if f.Dst == nil || f.Table == unix.RT_TABLE_LOCAL && f.Type != unix.RTN_LOCAL { // the node's own addresses count
			continue
		}
		addr, ok := netip.AddrFromSlice(f.Dst.IP)
		if !ok {
			continue
		}
		ones, _ := f.Dst.Mask.Size()
		out = append(out, routed{netip.PrefixFrom(addr.Unmap(), ones), gatewayOf(f.Gw, f.Via), f.LinkIndex})
	}
	return out, nil
}

// gatewayOf is a route's gateway, of either family.
func gatewayOf(gw net.IP, via netlink.Destination) netip.Addr {
	if v, ok := via.(*netlink.Via); ok && v != nil {
		gw = v.Addr
	}
	a, _ := netip.AddrFromSlice(gw)
	return a.Unmap()
}

// smaller is the smaller of two MTUs, of which 0 says nothing.
func smaller(a, b int) int {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
