package plugin

import (
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/tapir-cni/tapir/state"
)

// buildResult is what ADD prints, in one of the layouts of docs/config.md. IPv4 stands first; MACs and MTU are the kernel's.
// After another plugin its entries and addresses stay as they are, in front.
func buildResult(rec *state.Attachment, plan *Plan) *current.Result {
	r := plan.prev
	switch {
	case !plan.Chained:
		r = ownResult(rec)
	case !plan.DNS.Empty():
		r.DNS = types.DNS(plan.DNS) // tapir was told, so the guest shall be
	}
	if rec.TAP.Name == "" || plan.Layout == LayoutPlain {
		return r
	}
	sandbox := rec.Netns
	if rec.OnHost() {
		// In CNI no sandbox is the host. The Firecracker SDK opens what stands there.
		if sandbox = ""; plan.Layout == LayoutFirecracker {
			sandbox = hostNetns
		}
	}
	r.Interfaces = append(r.Interfaces, &current.Interface{Name: rec.TAP.Name, Mac: rec.TAP.MAC, Mtu: rec.MTU, Sandbox: sandbox})
	if plan.Layout == LayoutFirecracker {
		addPseudo(r, rec)
		if len(rec.Guest) > 0 {
			r.Routes = routesOf(rec.GuestRoutes())
		}
	}
	return r
}

// hostNetns is a path of the node's netns for who can open one alone.
const hostNetns = "/proc/1/ns/net"

// ownResult is the layout "plain" of tapir alone.
func ownResult(rec *state.Attachment) *current.Result {
	r := &current.Result{CNIVersion: current.ImplementedSpecVersion, Interfaces: []*current.Interface{}, DNS: types.DNS(rec.DNS)}
	var podEnd *int // none with placement host: the addresses are the guest's, and no interface of the sandbox has them
	if !rec.OnHost() {
		r.Interfaces = append(r.Interfaces,
			&current.Interface{Name: rec.Host.Name, Mac: rec.Host.MAC, Mtu: rec.MTU},
			&current.Interface{Name: rec.Pod.Name, Mac: rec.Pod.MAC, Mtu: rec.MTU, Sandbox: rec.Netns})
		podEnd = current.Int(1)
	}
	for _, a := range rec.Addresses {
		r.IPs = append(r.IPs, ipConfig(a, podEnd))
	}
	r.Routes = routesOf(rec.Routes)
	return r
}

func routesOf(routes []state.Route) (out []*types.Route) {
	for _, route := range routes {
		out = append(out, &types.Route{Dst: *ipNet(route.Dst), GW: ipOrNil(route.GW)})
	}
	return out
}

// addPseudo adds the entry by which the Firecracker SDK finds the guest: the TAP's name with the container id for a
// sandbox, and on it one IPv4 address with a gateway (vmconf.StaticNetworkConfFrom). The SDK makes the guest's boot argument of it: where
// the guest brings an address of its own, it is that one.
func addPseudo(r *current.Result, rec *state.Attachment) {
	pseudo := len(r.Interfaces)
	r.Interfaces = append(r.Interfaces, &current.Interface{Name: rec.TAP.Name, Mac: rec.GuestMAC, Mtu: rec.MTU, Sandbox: rec.ContainerID})
	for _, a := range rec.GuestAddresses() {
		if a.Prefix.Addr().Is4() && a.Gateway.IsValid() {
			r.IPs = append(r.IPs, ipConfig(a, &pseudo))
			return
		}
	}
}

func ipConfig(a state.Address, index *int) *current.IPConfig {
	return &current.IPConfig{Interface: index, Address: *ipNet(a.Prefix), Gateway: ipOrNil(a.Gateway)}
}

func ipOrNil(a netip.Addr) net.IP {
	if !a.IsValid() {
		return nil
	}
	return a.AsSlice()
}
