package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// check is the verb CHECK: every property that ADD was asked for is compared with the kernel, and all that differ are
// named at once.
func (p *plugin) check(args *skel.CmdArgs) error {
	cfg, fs, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	plan, err := newPlan(cfg, fs, args, !present(cfg.IPAM))
	if err != nil {
		return err
	}
	if plan.Chained && plan.Plain {
		return nil // ADD passed it through
	}
	rec, findings, err := p.recorded(context.Background(), plan)
	if err != nil {
		return err
	}
	if rec.Netns != args.Netns && rec.Netns != "" {
		findings = append(findings, fmt.Sprintf("netns: want %q, got CNI_NETNS %q", rec.Netns, args.Netns))
	}
	if rec.Rebuilt {
		p.recallGuest(&rec, plan)
	}
	findings = append(findings, comparePlan(plan, rec)...)
	findings = append(findings, comparePrevResult(cfg.PrevResult, cfg.CNIVersion, rec)...)
	rec.Netns = args.Netns
	if rec.Rebuilt && !plan.Plain && !rec.OnHost() {
		rec.TAP.Name = plan.TapName
	}
	more, err := p.inspect(rec)
	if err != nil {
		return err
	}
	if findings = append(findings, more...); len(findings) > 0 {
		return withCode(CodeDiffers, fmt.Errorf("check %s: %s", plan.Key, strings.Join(findings, "; ")))
	}
	return nil
}

// recorded is the attachment's record; a lease that differs from it is a finding.
func (p *plugin) recorded(ctx context.Context, plan *Plan) (rec state.Attachment, findings []string, err error) {
	var ok bool
	var lease state.Lease
	err = state.New(state.Config{Dir: plan.StateDir}).View(ctx, func(tx *state.Tx) (err error) {
		if rec, ok, err = tx.Attachment(plan.Key); err != nil {
			return err
		}
		lease, _, err = tx.Lease(plan.Key)
		return err
	})
	if err != nil {
		return rec, nil, err
	}
	if !ok || rec.Status != state.Ready {
		return rec, nil, withCode(CodeDiffers, fmt.Errorf("check %s: there is no finished ADD of it in %q", plan.Key, plan.StateDir))
	}
	if plan.Chained {
		return rec, nil, nil // the lease is another plugin's affair
	}
	if plan.Delegate != "" {
		return rec, nil, delegate(ctx, "CHECK", plan.Delegate, plan.stdin)
	}
	held := map[string]bool{}
	for _, l := range lease.Addresses {
		held[l.Prefix.Addr().String()] = true
	}
	for _, a := range rec.Addresses {
		if ip := a.Prefix.Addr().String(); !held[ip] {
			findings = append(findings, fmt.Sprintf("lease: %s is not leased", ip))
		}
	}
	return rec, findings, nil
}

// comparePlan holds what the configuration asks for now against what ADD made. A record rebuilt from the kernel does
// not know all of it.
func comparePlan(plan *Plan, rec state.Attachment) []string {
	var f findings
	if plan.MAC != nil {
		f.differ("guest MAC", plan.MAC.String(), rec.GuestMAC)
	}
	if plan.MTU != 0 {
		f.differ("mtu", plan.MTU, rec.MTU)
	}
	want := PlacementPod
	if plan.OnHost {
		want = PlacementHost
	}
	f.differ("placement", want, rec.Placement)
	f.differ("guest", guestLine(plan.Inside), guestLine(rec.Guest))
	if rec.Rebuilt {
		return f
	}
	f.differ("DAN file", orNone(plan.DAN), orNone(rec.DAN))
	f.differ("spoofCheck", plan.SpoofCheck, rec.SpoofCheck)
	f.differ("ipMasq", plan.Masquerade, rec.Masquerade != "")
	f.differ("xdp.mode", cmp.Or(string(plan.XDP), string(xdp.ModeOff)), cmp.Or(rec.XDP.Wanted, string(xdp.ModeOff)))
	if plan.Bandwidth != nil {
		f.differ("bandwidth", *plan.Bandwidth, *cmp.Or(rec.Bandwidth, &state.Bandwidth{}))
	}
	if plan.Redirect != redirectAuto {
		f.differ("redirect", plan.Redirect, rec.Redirect)
	}
	if plan.Plain {
		return f
	}
	f.differ("queues", plan.Queues, rec.Queues)
	f.differ("txQueueLen", plan.TxQueue, rec.TxQueue)
	f.differ("tapName", plan.TapName, rec.TAP.Name)
	f.differ("owner", optional(plan.Owner), optional(rec.Owner))
	f.differ("group", optional(plan.Group), optional(rec.GroupID))
	return f
}

// guestLine is the guest's own addresses in a finding.
func guestLine(inside []state.Address) string {
	var parts []string
	for _, a := range inside {
		parts = append(parts, fmt.Sprintf("%s by %s", a.Prefix, a.Gateway))
	}
	return orNone(strings.Join(parts, ", "))
}

func orNone(s string) string { return cmp.Or(s, "none") }

func optional(n *int) string {
	if n == nil {
		return "none"
	}
	return fmt.Sprint(*n)
}

// comparePrevResult holds the result that the runtime kept against the record.
func comparePrevResult(raw json.RawMessage, confVersion string, rec state.Attachment) []string {
	if !present(raw) {
		return nil
	}
	prev, err := parsePrev(raw, confVersion)
	if err != nil {
		return []string{fmt.Sprintf("prevResult: %v", err)}
	}
	var f findings
	if rec.Chained {
		return nil // what stands in it is compared by the plugin that made it
	}
	want := map[string]bool{}
	for _, a := range rec.Addresses {
		want[a.Prefix.String()] = false
	}
	for _, ip := range prev.IPs {
		address := ip.Address.String()
		if rec.Rebuilt { // from host routes, which do not know the link's prefix length
			address = single(addrOf(ip.Address.IP)).String()
		}
		if slices.ContainsFunc(rec.Guest, func(g state.Address) bool { return g.Prefix.String() == ip.Address.String() }) {
			continue // the Firecracker SDK's copy
		}
		if _, ok := want[address]; !ok {
			f = append(f, fmt.Sprintf("prevResult: %s is not this attachment's", &ip.Address))
		}
		want[address] = true
	}
	for ip, seen := range want {
		if !seen {
			f = append(f, fmt.Sprintf("prevResult: %s is missing", ip))
		}
	}
	for _, i := range prev.Interfaces {
		if !rec.OnHost() && i.Name == rec.Pod.Name && i.Sandbox != "" && !rec.Rebuilt {
			f.differ("prevResult: MAC of "+i.Name, rec.Pod.MAC, i.Mac)
		}
	}
	return f
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// resultVersion is the version that a result says it has, else that of the configuration.
func resultVersion(raw []byte, confVersion string) (string, error) {
	var v struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return "", err
	}
	return cmp.Or(v.CNIVersion, confVersion), nil
}

// findings are differences between what was asked for and what is.
type findings []string

// differ adds a finding where want and got are not the same.
func (f *findings) differ(what string, want, got any) {
	if want != got {
		*f = append(*f, fmt.Sprintf("%s: want %v, got %v", what, want, got))
	}
}

// inspect compares an attachment with the kernel and tells what differs. The error is for what could not be read.
func (p *plugin) inspect(rec state.Attachment) (findings, error) {
	netns, err := openSandbox(rec.Netns)
	if err != nil {
		return nil, err
	}
	defer netns.Close()
	host, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	if rec.Rebuilt {
		k := &inspection{rec: rec}
		k.hostSide(host)
		if rec.OnHost() {
			return k.findings, nil
		}
		err = netns.Do(func(ns.NetNS) error { return k.taggedInPod() })
		return k.findings, err
	}
	var progs *xdp.Programs
	var f findings
	if progs, err = xdp.OpenVersion(p.bpffs, rec.Programs); err != nil {
		f = append(f, fmt.Sprintf("programs: %v", err))
	} else {
		defer progs.Close()
		f = append(f, checkEntries(progs, rec)...)
	}
	k := &inspection{rec: rec, progs: progs}
	if s := k.openForCheck(p.bpffs); s != nil {
		defer s.Close()
	}
	if !rec.Chained {
		k.hostSide(host)
		k.masquerade()
	}
	if rec.OnHost() {
		k.findings = append(k.findings, danFindings(&rec)...)
	} else {
		err = netns.Do(func(ns.NetNS) error { return k.inPod() })
	}
	k.hostShortcut()
	return append(f, k.findings...), err
}

// checkEntries compares the attachment's entries in the pinned map.
func checkEntries(progs *xdp.Programs, rec state.Attachment) findings {
	var f findings
	want, err := endpoints(&rec)
	if err != nil {
		return findings{err.Error()}
	}
	for index, w := range want {
		if what := entryDiffers(progs, index, w); what != "" {
			f = append(f, fmt.Sprintf("programs: entry of ifindex %d: %s", index, what))
		}
	}
	return f
}

// entryDiffers says how the entry of an ifindex differs from what it should be, or nothing.
func entryDiffers(progs *xdp.Programs, index uint32, want xdp.Endpoint) string {
	got, err := progs.Lookup(index)
	switch {
	case err != nil:
		return err.Error()
	case !reflect.DeepEqual(want, got):
		return fmt.Sprintf("want %+v, got %+v", want, got)
	}
	return ""
}
