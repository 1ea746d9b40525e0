package plugin

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// defaultMTU is the MTU where the node has no default route, in bytes.
const defaultMTU = 1500

// probeDestinations are addresses of the documentation ranges (RFC 5737, RFC 3849): a route lookup for them finds the default
// route unless somebody routes just these.
var probeDestinations = []net.IP{net.IPv4(192, 0, 2, 1), net.ParseIP("2001:db8::1")}

// defaultRouteMTU is the MTU of the default route's device, in bytes; 1500 where there is no default route.
func defaultRouteMTU(host *rtnl.Conn) (int, error) {
	index, err := defaultRouteLink(host)
	if err != nil || index == 0 {
		return defaultMTU, err
	}
	link, err := host.LinkByIndex(index)
	if err != nil {
		return 0, fmt.Errorf("read the MTU of the default route's device %d: %w", index, err)
	}
	return link.Attrs().MTU, nil
}

// defaultRouteLink is the ifindex of the default route's device, IPv4 before IPv6, or 0. A lookup costs one request
// where a dump would cost the size of the routing table.
func defaultRouteLink(host *rtnl.Conn) (int, error) {
	for _, dst := range probeDestinations {
		routes, err := host.RouteGetWithOptions(dst, &netlink.RouteGetOptions{FIBMatch: true})
		switch {
		case noRoute(err):
			continue
		case err != nil:
			return 0, fmt.Errorf("look up the default route: %w", err)
		}
		for _, r := range routes {
			if index := routeLink(r); index != 0 && isDefault(r) {
				return index, nil
			}
		}
	}
	return defaultRouteByDump(host)
}

// defaultRouteByDump is for nodes that route a documentation range on purpose, and those without a default route.
func defaultRouteByDump(host *rtnl.Conn) (int, error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := host.Routes(family, &netlink.Route{Dst: nil, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
		if err != nil {
			return 0, fmt.Errorf("list default routes: %w", err)
		}
		for _, r := range routes {
			if index := routeLink(r); index != 0 && isDefault(r) && r.Type == unix.RTN_UNICAST {
				return index, nil
			}
		}
	}
	return 0, nil
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

func routeLink(r netlink.Route) int {
	if len(r.MultiPath) > 0 {
		return r.MultiPath[0].LinkIndex
	}
	return r.LinkIndex
}

// hasSource reports whether the node has an address to talk to the guest from.
func hasSource(host *rtnl.Conn, guest netip.Addr) (bool, error) {
	routes, err := host.RouteGet(guest.AsSlice())
	if err != nil {
		return false, fmt.Errorf("look up the route to %s: %w", guest, err)
	}
	for _, r := range routes {
		if len(r.Src) > 0 && !r.Src.IsUnspecified() {
			return true, nil
		}
	}
	return false, nil
}

// ipNet is the library's form of a prefix; the bits of the host are kept.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// single is the prefix that holds just the address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
