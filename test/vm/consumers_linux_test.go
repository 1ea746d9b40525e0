package vm_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"github.com/tapir-cni/tapir/internal/guestconfig"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
)

// Each consumer reads a result by rules of its own. What follows gives what it would boot a guest with.

// readCRI is a runtime that finds the TAP in a result of layout "cri": of the sandbox's entries it is the one that is not
// CNI_IFNAME, whose MAC and addresses are the guest's.
func readCRI(p *pod) (guestconfig.Guest, error) {
	var taps []string
	for _, i := range p.result.Interfaces {
		if i.Sandbox == p.netns && i.Name != "eth0" {
			taps = append(taps, i.Name)
		}
	}
	if len(taps) != 1 {
		return guestconfig.Guest{}, fmt.Errorf("want one TAP in %s, got %q", p.netns, taps)
	}
	g, err := fromResult(p.result, p.id)
	if err == nil && g.TAP != taps[0] {
		err = fmt.Errorf("guestconfig found TAP %q, the runtime %q", g.TAP, taps[0])
	}
	return g, err
}

// readPlain is a runtime that knows the TAP's name by convention, from a result that does not speak of it.
func readPlain(p *pod) (guestconfig.Guest, error) {
	if g, err := fromResult(p.result, p.id); err == nil {
		return guestconfig.Guest{}, fmt.Errorf("want no TAP in layout plain, got %q", g.TAP)
	}
	known := *p.result
	for _, i := range p.result.Interfaces {
		if i.Sandbox == p.netns && i.Name == "eth0" {
			known.Interfaces = append(slices.Clone(known.Interfaces), &types100.Interface{Name: "tap-eth0", Mtu: i.Mtu, Sandbox: i.Sandbox})
		}
	}
	return fromResult(&known, p.id)
}

// readSDK is the Firecracker Go SDK, vmconf.StaticNetworkConfFrom: it takes the entry whose sandbox is the container id for
// the guest, the other entry of that name for the TAP, and the one address that the former has.
func readSDK(t *testing.T, p *pod) (guestconfig.Guest, error) {
	t.Helper()
	var vms, taps []*types100.Interface
	for _, i := range p.result.Interfaces {
		if i.Sandbox == p.id {
			vms = append(vms, i)
		}
	}
	if len(vms) != 1 {
		return guestconfig.Guest{}, fmt.Errorf("want one interface in sandbox %q, got %v", p.id, vms)
	}
	for _, i := range p.result.Interfaces {
		if i != vms[0] && i.Name == vms[0].Name {
			taps = append(taps, i)
		}
	}
	if len(taps) != 1 {
		return guestconfig.Guest{}, fmt.Errorf("want one TAP %q, got %v", vms[0].Name, taps)
	}
	g := guestconfig.Guest{IfName: "eth0", TAP: vms[0].Name, MAC: vms[0].Mac, Netns: taps[0].Sandbox, Queues: 1}
	for _, ip := range p.result.IPs {
		if ip.Interface == nil || p.result.Interfaces[*ip.Interface] != vms[0] {
			continue
		}
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		gw, ok := netip.AddrFromSlice(ip.Gateway)
		bits, _ := ip.Address.Mask.Size()
		if addr = addr.Unmap(); !addr.Is4() || !ok {
			return guestconfig.Guest{}, fmt.Errorf("want an IPv4 address with a gateway, got %s via %v", &ip.Address, ip.Gateway)
		}
		g.Addresses = append(g.Addresses, state.Address{Prefix: netip.PrefixFrom(addr, bits), Gateway: gw.Unmap()})
	}
	if len(g.Addresses) != 1 {
		return guestconfig.Guest{}, fmt.Errorf("want one address on %q, got %v", g.TAP, g.Addresses)
	}
	testnode.In(t, g.Netns, func() { // the SDK asks the kernel for the MTU
		l, err := netlink.LinkByName(g.TAP)
		check(t, err)
		g.MTU = l.Attrs().MTU
	})
	return g, nil
}

// only6 is the guest with what of its addresses and routes is IPv6: what ip= leaves to cloud-init.
func only6(g guestconfig.Guest) guestconfig.Guest {
	g.Addresses = slices.DeleteFunc(slices.Clone(g.Addresses), func(a state.Address) bool { return a.Prefix.Addr().Is4() })
	g.Routes = slices.DeleteFunc(slices.Clone(g.Routes), func(r state.Route) bool { return r.Dst.Addr().Is4() })
	return g
}

func fromResult(r *types100.Result, id string) (guestconfig.Guest, error) {
	return guestconfig.FromResult(r, guestconfig.Query{ContainerID: id, IfName: "eth0", Queues: 1})
}

// testAsBooted wants the guest to have just what its consumer read, and nothing of the other family.
func testAsBooted(t *testing.T, p *pod) {
	t.Helper()
	i := p.vm.Event.Info
	if p.source != "" && p.vm.Event.Source != string(p.source) {
		t.Errorf("%s: want it configured from %s, got %s", p.id, p.source, p.vm.Event.Source)
	}
	if i.MAC != p.guest.MAC || i.MTU != p.guest.MTU || len(i.Tentative) > 0 {
		t.Errorf("%s: want MAC %s and MTU %d, got %+v", p.id, p.guest.MAC, p.guest.MTU, i)
	}
	var want, got []netip.Prefix
	for _, a := range p.guest.Addresses {
		want = append(want, a.Prefix)
	}
	for _, s := range i.Addresses {
		a, err := netip.ParsePrefix(s)
		check(t, err)
		if !a.Addr().IsLinkLocalUnicast() {
			got = append(got, a)
		}
	}
	slices.SortFunc(got, netip.Prefix.Compare)
	slices.SortFunc(want, netip.Prefix.Compare)
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("%s: the guest's addresses (-want +got):\n%s", p.id, diff)
	}
}
