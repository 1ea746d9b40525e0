package xdp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
)

const flagRouteUsable = 1 << 0 // ROUTE_USABLE of bpf/shortcut.h

// NextHop is where frames to a route's prefix go.
type NextHop struct {
	Addr   netip.Addr       // of the next hop; for the reader, the programs go by the MACs
	Uplink uint32           // ifindex in the host's netns
	DstMAC net.HardwareAddr // of the next hop
	SrcMAC net.HardwareAddr // of the uplink
	MTU    int              // of the way there

	// Usable says that the MACs are those that the kernel would use now. Else frames pass to it.
	Usable bool
}

func (n NextHop) encode() (shortcutRoute, error) {
	v := shortcutRoute{Uplink: n.Uplink, Mtu: uint32(n.MTU)}
	if n.Uplink == 0 {
		return v, errors.New("want the ifindex of an uplink")
	}
	if n.Addr.IsValid() {
		v.NextHop = mapped(n.Addr.WithZone(""))
	}
	if !n.Usable {
		return v, nil
	}
	v.Flags |= flagRouteUsable
	if n.MTU < 68 || n.MTU > 65535 {
		return v, fmt.Errorf("MTU: want 68 to 65535, got %d", n.MTU)
	}
	if err := encodeMAC(&v.DstMac, n.DstMAC, RoleGuest); err != nil {
		return v, fmt.Errorf("next hop's MAC: %w", err)
	}
	if err := encodeMAC(&v.SrcMac, n.SrcMAC, RoleGuest); err != nil {
		return v, fmt.Errorf("uplink's MAC: %w", err)
	}
	return v, nil
}

func (v shortcutRoute) decode() NextHop {
	n := NextHop{Uplink: v.Uplink, MTU: int(v.Mtu), Usable: v.Flags&flagRouteUsable != 0}
	if a := netip.AddrFrom16(bytes16(v.NextHop.Word)); !a.IsUnspecified() {
		n.Addr = a.Unmap()
	}
	if n.Usable {
		n.DstMAC, n.SrcMAC = v.DstMac[:], v.SrcMac[:]
	}
	return n
}

// mappedIPv4 are the IPv4-mapped IPv6 addresses (RFC 4291, 2.5.5.2): an IPv6 route that covers them would lead IPv4 frames.
var mappedIPv4 = netip.MustParsePrefix("::ffff:0:0/96")

// routeKey is the key of a prefix in map routes.
func routeKey(p netip.Prefix) (shortcutRouteKey, error) {
	if !p.IsValid() || p.Addr().Is4In6() {
		return shortcutRouteKey{}, fmt.Errorf("route %q: want a prefix", p)
	}
	p = p.Masked()
	bits := p.Bits()
	switch {
	case p.Addr().Is4():
		bits += 96
	case p.Overlaps(mappedIPv4):
		return shortcutRouteKey{}, fmt.Errorf("route %q: want a prefix without %s, where IPv4 has its place in the map", p, mappedIPv4)
	}
	return shortcutRouteKey{Bits: uint32(bits), Addr: mapped(p.Addr())}, nil
}

func (k shortcutRouteKey) prefix() netip.Prefix {
	a := netip.AddrFrom16(bytes16(k.Addr.Word))
	if a.Is4In6() && k.Bits >= 96 {
		return netip.PrefixFrom(a.Unmap(), int(k.Bits)-96)
	}
	return netip.PrefixFrom(a, int(k.Bits))
}

// SetRoute makes frames to a prefix of other nodes' pods, and from it, go by the uplink's next hop. Programs see the old route
// or the new one. Setting the same again costs one look.
func (s *Shortcut) SetRoute(prefix netip.Prefix, n NextHop) error {
	key, err := routeKey(prefix)
	if err != nil {
		return err
	}
	v, err := n.encode()
	if err != nil {
		return fmt.Errorf("route %s: %w", prefix, err)
	}
	return s.changeRoutes(func(routes *ebpf.Map) error {
		old, known, err := lookupRoute(routes, key)
		if err != nil {
			return fmt.Errorf("route %s: %w", prefix, err)
		}
		if known && old == v {
			return nil
		}
		// Flows that had the default path while there was no usable route are known to conntrack by now.
		if err := s.newEpoch(); err != nil {
			return err
		}
		if err := routes.Put(key, v); err != nil {
			return fmt.Errorf("route %s: %w", prefix, err)
		}
		return nil
	})
}

// lookupRoute gives the route of exactly this prefix: a lookup alone would give that of a shorter one, too.
func lookupRoute(routes *ebpf.Map, key shortcutRouteKey) (shortcutRoute, bool, error) {
	all, err := listRoutes(routes)
	v, ok := all[key]
	return v, ok, err
}

func listRoutes(routes *ebpf.Map) (map[shortcutRouteKey]shortcutRoute, error) {
	out := map[shortcutRouteKey]shortcutRoute{}
	var (
		key shortcutRouteKey
		v   shortcutRoute
	)
	iter := routes.Iterate()
	for iter.Next(&key, &v) {
		out[key] = v
	}
	if err := iter.Err(); err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return out, nil
}

// DeleteRoute takes a prefix out; one that is not there is success.
func (s *Shortcut) DeleteRoute(prefix netip.Prefix) error {
	key, err := routeKey(prefix)
	if err != nil {
		return err
	}
	return s.changeRoutes(func(routes *ebpf.Map) error {
		if err := routes.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete route %s: %w", prefix, err)
		}
		return nil
	})
}

// changeRoutes changes map routes and then says in the settings whether there are any.
func (s *Shortcut) changeRoutes(change func(*ebpf.Map) error) error {
	routes, err := s.ownMap(shortcutMapRoutes)
	if err != nil {
		return err
	}
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := change(routes); err != nil {
		return err
	}
	all, err := listRoutes(routes)
	if err != nil {
		return err
	}
	return s.changeSettings(func(raw *shortcutShortcutSettings) { raw.NrRoutes = uint32(len(all)) })
}

// Routes gives all routes by prefix.
func (s *Shortcut) Routes() (map[netip.Prefix]NextHop, error) {
	routes, err := s.ownMap(shortcutMapRoutes)
	if err != nil {
		return nil, err
	}
	all, err := listRoutes(routes)
	if err != nil {
		return nil, err
	}
	out := make(map[netip.Prefix]NextHop, len(all))
	for key, v := range all {
		out[key.prefix()] = v.decode()
	}
	return out, nil
}
