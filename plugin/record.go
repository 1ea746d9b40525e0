package plugin

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// record is the attachment as far as the plan, the node, the interface of the plugin before and another IPAM plugin decide
// it. Addresses of tapir-ipam and ifindexes are still to come.
func (a *apply) record(ctx context.Context) (*state.Attachment, error) {
	p := a.plan
	rec := &state.Attachment{
		Key: p.Key, Status: state.Pending, Created: time.Now().UTC().Truncate(time.Millisecond), Netns: p.Netns, PodName: p.PodName, PodNamespace: p.PodNamespace,
		Placement: PlacementPod, DAN: p.DAN, VMM: p.VMM, DNS: p.DNS, SpoofCheck: p.SpoofCheck, Programs: a.progs.Digest(), Chained: p.Chained,
	}
	if !p.Plain {
		rec.TAP = state.Device{Name: p.TapName, MAC: xdp.GatewayMAC.String()}
		rec.Queues, rec.Owner, rec.GroupID, rec.TxQueue, rec.NoNAPI, rec.Profile = p.Queues, p.Owner, p.Group, p.TxQueue, p.NoNAPI, p.Profile
	}
	a.recordShortcut(rec)
	if p.Chained {
		return rec, a.recordForeign(rec)
	}
	if p.OnHost {
		rec.Placement = PlacementHost
	} else {
		rec.Pod = state.Device{Name: p.Key.IfName, MAC: p.MAC.String()}
		rec.Host = state.Device{Name: p.HostName, MAC: xdp.GatewayMAC.String()}
	}
	rec.GuestMAC, rec.FixedMAC, rec.Guest = p.MAC.String(), p.FixedMAC, p.Inside
	method, err := redirectMethod(p.Redirect)
	if err != nil {
		return nil, err
	}
	rec.Redirect = string(method)
	if p.Delegate != "" {
		if err := a.delegateIPAM(ctx, rec); err != nil {
			return nil, err
		}
	}
	return rec, a.recordMTU(rec)
}

// recordForeign takes what the interface of the plugin before decides.
func (a *apply) recordForeign(rec *state.Attachment) error {
	f, err := readForeign(a.pod, a.plan)
	if err != nil {
		return err
	}
	link := f.link.Attrs()
	rec.Pod = state.Device{Name: link.Name, Index: link.Index, MAC: link.HardwareAddr.String()}
	rec.GuestMAC, rec.MTU = rec.Pod.MAC, link.MTU
	rec.Addresses, rec.Routes = f.addresses, f.routes
	rec.Answer, rec.AnswerMAC = f.answered, f.gatewayMAC.String()
	if dns := a.plan.prev.DNS; rec.DNS.Empty() {
		rec.DNS = state.DNS(dns)
	}
	return a.netns.Do(func(ns.NetNS) error {
		method, err := foreignMethod(a.plan.Redirect, link.Index)
		rec.Redirect = string(method)
		return err
	})
}

// delegateIPAM asks another IPAM plugin for the addresses.
func (a *apply) delegateIPAM(ctx context.Context, rec *state.Attachment) error {
	p := a.plan
	a.undo.push("lease of "+p.Delegate, func() error { return delegate(ctx, "DEL", p.Delegate, p.stdin) })
	d, err := delegateAdd(ctx, p.Delegate, p.stdin)
	if err != nil {
		return err
	}
	if err := p.refuseInside(d.addresses); err != nil {
		return err
	}
	giveGateways(d.addresses)
	rec.Addresses, rec.Routes = d.addresses, routesFor(d.routes, d.addresses)
	for _, addr := range d.addresses {
		p.Subnets = append(p.Subnets, addr.Prefix.Masked())
	}
	if rec.DNS.Empty() {
		rec.DNS = d.dns
	}
	return nil
}

func (a *apply) recordMTU(rec *state.Attachment) error {
	if rec.MTU = a.plan.MTU; rec.MTU == 0 {
		var err error
		if rec.MTU, err = defaultRouteMTU(a.host); err != nil {
			return err
		}
	}
	if rec.MTU < minIPv6MTU && hasIPv6(a.plan.Subnets) {
		return withCode(types.ErrInvalidNetworkConfig, fmt.Errorf("mtu: IPv6 wants at least %d, got %d of the configuration or the default route's device; set \"mtu\" or leave IPv6 out of the ranges", minIPv6MTU, rec.MTU))
	}
	return nil
}

// exceptions are the destinations that the attachment reaches with its own address.
func exceptions(rec *state.Attachment, p *Plan) []netip.Prefix { return noMasq(p.Subnets, p.NoMasq) }

// redirectMethod is the hook that "redirect" leads to on devices of tapir's own. There "auto" is clsact: each attach to
// tcx, and each detach, waits for an RCU grace period with the kernel's RTNL lock held, 12 ms here, which one ADD would do
// twice and a node full of ADDs in turn (docs/benchmarks.md has both).
func redirectMethod(want string) (xdp.Method, error) {
	if want != redirectTCX {
		return xdp.MethodClsact, nil
	}
	if err := xdp.HaveTCX(); err != nil {
		return "", fmt.Errorf("redirect %q: %w; set \"redirect\" to \"auto\" or \"clsact\"", want, err)
	}
	return xdp.MethodTCX, nil
}

// foreignMethod is the hook on the interface of another plugin, in the calling thread's netns. Frames meet tcx before the
// filters of a qdisc: where somebody has one, tcx would go round what hangs on it.
func foreignMethod(want string, index int) (xdp.Method, error) {
	behindAll, err := xdp.ForeignMethod(index)
	if err != nil || want == redirectAuto {
		return behindAll, err
	}
	method, err := redirectMethod(want)
	if err == nil && method == xdp.MethodTCX && behindAll != xdp.MethodTCX {
		err = withCode(types.ErrInvalidNetworkConfig, fmt.Errorf("redirect %q: the interface has an ingress or clsact qdisc, whose filters would no longer see the guest's frames; set \"redirect\" to \"auto\"", want))
	}
	return method, err
}
