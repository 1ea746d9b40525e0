package guestconfig

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tapir-cni/tapir/state"
)

// Query says which attachment of a result is meant, and what a result does not carry.
type Query struct {
	ContainerID string // CNI_CONTAINERID; it marks the pseudo entry of result "firecracker"
	IfName      string // CNI_IFNAME
	Queues      int    // queue pairs as configured; 0 means 1
	VMM         string // as configured
}

// FromResult derives the guest from what ADD printed, by the layouts "cri" and "firecracker": the pod end is the
// entry named q.IfName in a namespace, the TAP the entry after it in the same namespace, or the one that the pseudo
// entry (sandbox == container id) names. Layout "plain" names no TAP and is an error.
//
// Placement host has no pod end: the TAP stands in "/proc/1/ns/net", addresses point to nothing, and only layout "firecracker" tells the
// guest's MAC.
//
// A result does not say how many queues the TAP was made for: q.Queues does. Where the guest brings an address of its own (the key
// "guest"), layout "firecracker" tells the IPv4 one, and the guest is given that alone; the others tell the pod's.
func FromResult(result *types100.Result, q Query) (Guest, error) {
	layout, err := readLayout(result, q)
	if err != nil {
		return Guest{}, fmt.Errorf("guest of %s/%s from a CNI result: %w", q.ContainerID, q.IfName, err)
	}
	tap := result.Interfaces[layout.tap]
	g := Guest{
		IfName: q.IfName, TAP: tap.Name, Netns: tap.Sandbox, MTU: tap.Mtu,
		MAC: result.Interfaces[layout.guest].Mac, Queues: max(q.Queues, 1), VMM: q.VMM,
		DNS: state.DNS{
			Nameservers: result.DNS.Nameservers, Domain: result.DNS.Domain,
			Search: result.DNS.Search, Options: result.DNS.Options,
		},
	}
	if g.OnHost = layout.onHost; g.OnHost {
		g.Netns = ""
	}
	g.ContainerID = q.ContainerID
	if g.Addresses, err = addressesOf(result, layout); err == nil {
		g.Routes, err = routesOf(result)
	}
	if err == nil {
		err = g.Validate()
	}
	if err != nil {
		return Guest{}, fmt.Errorf("guest of %s/%s from a CNI result: %w", q.ContainerID, q.IfName, err)
	}
	return g, nil
}

// layout holds the indices of a result's interfaces: the TAP, the entry with the guest's MAC, and the entry with
// its addresses.
type layout struct {
	tap, guest, addresses int
	pseudo                int // the entry with the copy for the Firecracker SDK; -1: none
	onHost                bool
}

// hostNetns is what stands for the host's namespace in a result.
const hostNetns = "/proc/1/ns/net"

// hostLayout reads the layout "firecracker" of placement host; ok is false where it is none.
func hostLayout(result *types100.Result, pseudo int) (l layout, ok bool) {
	if pseudo < 0 {
		return layout{}, false
	}
	for i, iface := range result.Interfaces {
		if iface.Sandbox == hostNetns && iface.Name == result.Interfaces[pseudo].Name {
			return layout{tap: i, guest: pseudo, addresses: -1, pseudo: pseudo, onHost: true}, true
		}
	}
	return layout{}, false
}

func readLayout(result *types100.Result, q Query) (layout, error) {
	pod, pseudo := -1, -1
	for i, iface := range result.Interfaces {
		switch {
		case iface.Sandbox == "":
		case iface.Sandbox == q.ContainerID:
			if pseudo >= 0 {
				return layout{}, fmt.Errorf("interfaces %d and %d are both in sandbox %q, want at most one",
					pseudo, i, q.ContainerID)
			}
			pseudo = i
		case iface.Name == q.IfName && pod < 0:
			pod = i
		}
	}
	if l, ok := hostLayout(result, pseudo); ok {
		return l, nil
	}
	if pod < 0 && len(result.Interfaces) == 1 && result.Interfaces[0].Sandbox == "" {
		return layout{}, fmt.Errorf("%q is in the host's namespace, and the result does not tell the guest's MAC; set result \"firecracker\", or ask tapirctl guest-config",
			result.Interfaces[0].Name)
	}
	if pod < 0 {
		return layout{}, fmt.Errorf("no interface is named %q and has a sandbox", q.IfName)
	}
	tap := -1
	for i, iface := range result.Interfaces {
		if i == pod || i == pseudo || iface.Sandbox != result.Interfaces[pod].Sandbox {
			continue
		}
		if pseudo < 0 && i > pod || pseudo >= 0 && iface.Name == result.Interfaces[pseudo].Name {
			tap = i
		}
	}
	if tap < 0 {
		return layout{}, fmt.Errorf("no interface in %q is a TAP; result \"plain\" names none, and a plain pod has none",
			result.Interfaces[pod].Sandbox)
	}
	l := layout{tap: tap, guest: pod, addresses: pod, pseudo: pseudo}
	if pseudo >= 0 {
		l.guest = pseudo
	}
	return l, nil
}

// addressesOf takes the pod's addresses. The pseudo entry's copy would be one of them a second time; where it is not, it is the guest's own.
func addressesOf(result *types100.Result, l layout) ([]state.Address, error) {
	pods, err := addressesOn(result, l.addresses)
	if err != nil || l.pseudo < 0 {
		return pods, err
	}
	own, err := addressesOn(result, l.pseudo)
	if err != nil || len(own) == 0 || slices.Contains(pods, own[0]) {
		return pods, err
	}
	return own, nil
}

// addressesOn are the addresses of one interface, and those of none.
func addressesOn(result *types100.Result, iface int) ([]state.Address, error) {
	var out []state.Address
	for i, ip := range result.IPs {
		if ip.Interface != nil && *ip.Interface != iface {
			continue
		}
		prefix, ok := prefixOf(ip.Address)
		if !ok {
			return nil, fmt.Errorf("ips[%d]: want an address with its prefix length, got %q", i, ip.Address.String())
		}
		a := state.Address{Prefix: prefix}
		if ip.Gateway != nil {
			if a.Gateway, ok = addrOf(ip.Gateway); !ok {
				return nil, fmt.Errorf("ips[%d].gateway: want an address, got %q", i, ip.Gateway.String())
			}
		}
		out = append(out, a)
	}
	return out, nil
}

func routesOf(result *types100.Result) ([]state.Route, error) {
	var out []state.Route
	for i, r := range result.Routes {
		dst, ok := prefixOf(r.Dst)
		if !ok {
			return nil, fmt.Errorf("routes[%d].dst: want a prefix, got %q", i, r.Dst.String())
		}
		route := state.Route{Dst: dst}
		if r.GW != nil {
			if route.GW, ok = addrOf(r.GW); !ok {
				return nil, fmt.Errorf("routes[%d].gw: want an address, got %q", i, r.GW.String())
			}
		}
		out = append(out, route)
	}
	return out, nil
}

func addrOf(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return a.Unmap(), ok
}

// prefixOf keeps the host bits. net.IPNet may hold IPv4 in 16 bytes with a 4 byte mask.
func prefixOf(n net.IPNet) (netip.Prefix, bool) {
	addr, ok := addrOf(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	ones, bits := n.Mask.Size()
	if bits == 0 {
		return netip.Prefix{}, false
	}
	if addr.Is4() && bits == 128 {
		ones -= 96
	}
	p := netip.PrefixFrom(addr, ones)
	return p, p.IsValid()
}
