package plugin

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// nodeEnd is the attachment's device in the host's netns, which has the gateway's addresses and MAC and which the guest's addresses
// are routed to: the veth's host end, or the TAP itself.
func nodeEnd(rec *state.Attachment) state.Device {
	if rec.OnHost() {
		return rec.TAP
	}
	return rec.Host
}

// endpoints are the attachment's entries in the pinned map, by ifindex.
func endpoints(rec *state.Attachment) (map[uint32]xdp.Endpoint, error) {
	mac, err := net.ParseMAC(rec.GuestMAC)
	if err != nil {
		return nil, fmt.Errorf("guest MAC: %w", err)
	}
	inside := rec.GuestAddresses()
	guest := xdp.Endpoint{SpoofCheck: rec.SpoofCheck, GuestMAC: mac, GatewayMAC: xdp.GatewayMAC, Gateways: gateways(inside), Outside: rec.Outside()}
	for _, a := range inside {
		guest.Addresses = append(guest.Addresses, a.Prefix)
	}
	tapIndex, podIndex := uint32(rec.TAP.Index), uint32(rec.Pod.Index)
	if rec.Chained {
		return chainedEndpoint(rec, guest)
	}
	if end := uint32(nodeEnd(rec).Index); rec.TAP.Name == "" || rec.OnHost() {
		guest.Role, guest.Counters = xdp.RoleHost, end
		return map[uint32]xdp.Endpoint{end: guest}, nil
	}
	guest.Role, guest.Counters, guest.Peer, guest.Redirect = xdp.RoleGuest, tapIndex, podIndex, xdp.RedirectPeer
	if _, limit := shapes(rec); limit != nil {
		guest.Redirect = xdp.RedirectEgress // by the pod end's queue, not past it
	}
	pod := xdp.Endpoint{Role: xdp.RolePod, Counters: tapIndex, Peer: tapIndex, Redirect: xdp.RedirectEgress, GuestMAC: mac, GatewayMAC: xdp.GatewayMAC}
	if len(guest.Outside) > 0 {
		pod.Addresses, pod.Outside = guest.Addresses, guest.Outside
	}
	return map[uint32]xdp.Endpoint{tapIndex: guest, podIndex: pod}, nil
}

// chainedEndpoint is the entry of a TAP on the interface of another plugin. Frames leave by that interface's egress, and its
// neighbours are real: nothing is answered but gateways that have a permanent entry.
func chainedEndpoint(rec *state.Attachment, guest xdp.Endpoint) (map[uint32]xdp.Endpoint, error) {
	tapIndex := uint32(rec.TAP.Index)
	guest.Role, guest.Counters, guest.Peer, guest.Redirect = xdp.RoleGuest, tapIndex, uint32(rec.Pod.Index), xdp.RedirectEgress
	guest.Gateways = rec.Answer
	for i, p := range guest.Addresses {
		guest.Addresses[i] = single(p.Addr())
	}
	if rec.AnswerMAC != "" {
		mac, err := net.ParseMAC(rec.AnswerMAC)
		if err != nil {
			return nil, fmt.Errorf("gateway MAC: %w", err)
		}
		guest.GatewayMAC = mac
	}
	return map[uint32]xdp.Endpoint{tapIndex: guest}, nil
}

// routesFor are the routes of the families that the guest has an address of, each with a gateway where there is one.
func routesFor(routes []state.Route, addrs []state.Address) []state.Route {
	var out []state.Route
	for _, r := range routes {
		for _, a := range addrs {
			if a.Prefix.Addr().Is4() != r.Dst.Addr().Is4() {
				continue
			}
			if !r.GW.IsValid() {
				r.GW = a.Gateway
			}
			out = append(out, r)
			break
		}
	}
	return out
}

func hasIPv6(prefixes []netip.Prefix) bool {
	for _, p := range prefixes {
		if p.Addr().Is6() {
			return true
		}
	}
	return false
}

// openSandbox opens CNI_NETNS and refuses the netns of the plugin itself, before anything is made there.
func openSandbox(path string) (ns.NetNS, error) {
	netns, err := ns.GetNS(path)
	if err != nil {
		return nil, withCode(types.ErrInvalidNetNS, fmt.Errorf("open CNI_NETNS %q: %w", path, err))
	}
	own, err := isOwnNetns(netns)
	if err == nil && own {
		err = withCode(types.ErrInvalidNetNS, fmt.Errorf("CNI_NETNS %q is the host's own network namespace; want that of a sandbox", path))
	}
	if err != nil {
		netns.Close()
		return nil, err
	}
	return netns, nil
}
