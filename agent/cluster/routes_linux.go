package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RouteProtocol marks tapird's routes to other nodes (rtm_protocol): by it they are found again after a restart.
const RouteProtocol = 0x74

// A missing route is one that cannot be, and why.
type missing struct {
	hop
	why string
}

// syncRoutes makes the routes of RouteProtocol the wanted ones: it adds what is missing, replaces what leads elsewhere and removes the rest.
func syncRoutes(wanted []hop) (changed int, cannot []missing, err error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return 0, nil, err
	}
	defer h.Close()
	have := map[netip.Prefix]netlink.Route{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := h.RouteListFiltered(family, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return 0, nil, fmt.Errorf("list the routes to other nodes: %w", err)
		}
		for _, r := range routes {
			if p, ok := prefixOf(r.Dst); ok {
				have[p] = r
			}
		}
	}
	var errs []error
	for _, w := range wanted {
		now, ok := have[w.to]
		delete(have, w.to)
		if ok {
			if gw, valid := netip.AddrFromSlice(now.Gw); valid && gw.Unmap() == w.via {
				continue
			}
		}
		link, err := onLink(h, w.via)
		if err != nil {
			cannot = append(cannot, missing{w, err.Error()})
			if ok { // it leads where the node is no longer
				errs = append(errs, ignoreGone(h.RouteDel(&now)))
				changed++
			}
			continue
		}
		err = h.RouteReplace(&netlink.Route{LinkIndex: link, Dst: ipNet(w.to), Gw: w.via.AsSlice(), Protocol: RouteProtocol})
		if err != nil {
			errs = append(errs, fmt.Errorf("route to %s of node %s via %s: %w", w.to, w.node, w.via, err))
			continue
		}
		changed++
	}
	for p, r := range have {
		if err := ignoreGone(h.RouteDel(&r)); err != nil {
			errs = append(errs, fmt.Errorf("remove the route to %s: %w", p, err))
			continue
		}
		changed++
	}
	return changed, cannot, errors.Join(errs...)
}

func ignoreGone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// onLink gives the device on whose link a node's address is.
func onLink(h *netlink.Handle, via netip.Addr) (int, error) {
	routes, err := h.RouteGet(via.AsSlice())
	if err != nil {
		return 0, fmt.Errorf("there is no route to %s: %w", via, err)
	}
	if len(routes) == 0 {
		return 0, fmt.Errorf("there is no route to %s", via)
	}
	if gw := routes[0].Gw; len(gw) > 0 && !gw.IsUnspecified() {
		return 0, fmt.Errorf("%s is not on a link of this node but behind %s: routes to pods lead there only where that router knows them; see docs/cluster.md", via, gw)
	}
	return routes[0].LinkIndex, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(addr.Unmap(), ones), true
}
