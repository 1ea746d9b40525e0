package plugin

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// refuseOverlap keeps a range that overlaps a network of the node's own from being used: the host end would take the
// address of that network's gateway, or of the node itself, and answer for it. Routes by a gateway are no such network: they
// may well cover the pods' ranges.
func refuseOverlap(host *rtnl.Conn, addrs []state.Address) error {
	for _, gw := range gateways(addrs) {
		if err := refuseOwnNetwork(host, "gateway", gw); err != nil {
			return err
		}
	}
	for _, a := range addrs {
		if err := refuseOwnNetwork(host, "address", a.Prefix.Addr()); err != nil {
			return err
		}
	}
	return nil
}

func refuseOwnNetwork(host *rtnl.Conn, what string, ip netip.Addr) error {
	if ip.IsLinkLocalUnicast() {
		return nil // a link of its own
	}
	routes, err := host.RouteGetWithOptions(ip.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if noRoute(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up the route to %s: %w", ip, err)
	}
	for _, r := range routes {
		if len(r.Gw) > 0 || len(r.MultiPath) > 0 || isDefault(r) || state.OwnIndex(r.LinkIndex) {
			continue
		}
		name := fmt.Sprintf("ifindex %d", r.LinkIndex)
		if link, err := host.LinkByIndex(r.LinkIndex); err == nil {
			name = link.Attrs().Name
		}
		how := fmt.Sprintf("is in %s: the node routes that address already, to %q", r.Dst, name)
		if r.Type == unix.RTN_LOCAL {
			how = fmt.Sprintf("is the node's own, on %q", name)
		}
		return withCode(CodeBusy, fmt.Errorf("%s %s %s; choose ranges and gateways that are no network of the node", what, ip, how))
	}
	return nil
}

// noRoute reports whether a lookup ended without a route: none is there, or one that refuses.
func noRoute(err error) bool {
	return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESRCH)
}
