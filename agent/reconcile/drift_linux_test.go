package reconcile_test

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/journal"
	"github.com/tapir-cni/tapir/agent/reconcile"
	"github.com/tapir-cni/tapir/plugin"
	"github.com/tapir-cni/tapir/xdp"
	"github.com/vishvananda/netlink"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func command(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", args, err, out)
	}
}

func sysctl(t testing.TB, name, value string) {
	t.Helper()
	must(t, os.WriteFile("/proc/sys/"+name, []byte(value), 0))
}

// A damage is a change by hand, and whether the reconciler hears of it by itself or sees it when it looks at everything.
type damage struct {
	kind   reconcile.Kind
	keys   string // of the pod
	silent bool
	unseen bool // CHECK does not look there
	do     func(t *testing.T, p *pod)
}

func inPod(f func(t *testing.T, p *pod)) func(*testing.T, *pod) {
	return func(t *testing.T, p *pod) { p.in(func() { f(t, p) }) }
}

func host(t testing.TB, p *pod) netlink.Link { t.Helper(); return link(t, p.recorded().Host.Name) }

var damages = map[string]damage{
	"qdisc of the TAP": {kind: "qdisc", do: inPod(func(t *testing.T, _ *pod) { command(t, "tc", "qdisc", "replace", "dev", "tap-eth0", "root", "pfifo") })},
	"token bucket": {kind: "qdisc", keys: `"runtimeConfig": {"bandwidth": {"ingressRate": 80000000, "ingressBurst": 8000000, "egressRate": 80000000, "egressBurst": 8000000}},`,
		do: func(t *testing.T, p *pod) { command(t, "tc", "qdisc", "del", "dev", p.recorded().Host.Name, "root") }},
	"program of the TAP":     {kind: "program", do: inPod(func(t *testing.T, _ *pod) { command(t, "tc", "qdisc", "del", "dev", "tap-eth0", "clsact") })},
	"program of the pod end": {kind: "program", do: inPod(func(t *testing.T, _ *pod) { command(t, "tc", "filter", "del", "dev", "eth0", "ingress") })},
	"program by tcx": {kind: "program", keys: `"redirect": "tcx",`, silent: true, do: inPod(func(t *testing.T, p *pod) {
		progs, err := xdp.Open(bpffs)
		must(t, err)
		defer progs.Close()
		must(t, progs.Detach(p.recorded().TAP.Index, xdp.RoleGuest, xdp.MethodTCX))
	})},
	"program of a plain pod": {kind: "program", keys: `"when": "annotated",`, do: func(t *testing.T, p *pod) {
		command(t, "tc", "qdisc", "del", "dev", p.recorded().Host.Name, "clsact")
	}},
	"entry": {kind: "entry", silent: true, do: func(t *testing.T, p *pod) {
		progs, err := xdp.Open(bpffs)
		must(t, err)
		defer progs.Close()
		must(t, progs.Delete(uint32(p.recorded().TAP.Index)))
	}},
	"entry that differs": {kind: "entry", silent: true, do: func(t *testing.T, p *pod) {
		progs, err := xdp.Open(bpffs)
		must(t, err)
		defer progs.Close()
		index := uint32(p.recorded().TAP.Index)
		e, err := progs.Lookup(index)
		must(t, err)
		e.SpoofCheck = !e.SpoofCheck
		must(t, progs.Update(index, e))
	}},
	"MTU of the TAP": {kind: "link", do: inPod(func(t *testing.T, _ *pod) { must(t, netlink.LinkSetMTU(link(t, "tap-eth0"), 1280)) })},
	"MAC of the TAP": {kind: "link", do: inPod(func(t *testing.T, _ *pod) {
		must(t, netlink.LinkSetHardwareAddr(link(t, "tap-eth0"), net.HardwareAddr{2, 0, 0, 0, 0, 1}))
	})},
	"MAC of the host end": {kind: "link", do: func(t *testing.T, p *pod) {
		must(t, netlink.LinkSetHardwareAddr(host(t, p), net.HardwareAddr{2, 0, 0, 0, 0, 2}))
	}},
	"host end down": {kind: "link", do: func(t *testing.T, p *pod) { must(t, netlink.LinkSetDown(host(t, p))) }},
	"alias":         {kind: "link", do: func(t *testing.T, p *pod) { must(t, netlink.LinkSetAlias(host(t, p), "")) }},
	"neighbour": {kind: "neighbour", do: func(t *testing.T, p *pod) {
		command(t, "ip", "neigh", "del", p.recorded().Addresses[0].Prefix.Addr().String(), "dev", p.recorded().Host.Name)
	}},
	"neighbour that is not permanent": {kind: "neighbour", do: func(t *testing.T, p *pod) {
		command(t, "ip", "neigh", "replace", p.recorded().Addresses[1].Prefix.Addr().String(), "lladdr", "02:00:00:00:00:03", "nud", "stale", "dev", p.recorded().Host.Name)
	}},
	"route": {kind: "route", do: func(t *testing.T, p *pod) {
		command(t, "ip", "route", "del", p.recorded().Addresses[0].Prefix.Addr().String(), "dev", p.recorded().Host.Name)
	}},
	"IPv6 route": {kind: "route", do: func(t *testing.T, p *pod) {
		command(t, "ip", "-6", "route", "del", p.recorded().Addresses[1].Prefix.Addr().String(), "dev", p.recorded().Host.Name)
	}},
	"gateway":       {kind: "gateway", do: func(t *testing.T, p *pod) { command(t, "ip", "-4", "addr", "flush", "dev", p.recorded().Host.Name) }},
	"IPv6 gateway":  {kind: "gateway", do: func(t *testing.T, p *pod) { command(t, "ip", "-6", "addr", "flush", "dev", p.recorded().Host.Name) }},
	"forwarding":    {kind: "forwarding", unseen: true, do: func(t *testing.T, _ *pod) { sysctl(t, "net/ipv4/ip_forward", "0") }},
	"v6 forwarding": {kind: "forwarding", unseen: true, do: func(t *testing.T, _ *pod) { sysctl(t, "net/ipv6/conf/all/forwarding", "0") }},
	"forwarding of the host end": {kind: "forwarding", unseen: true, do: func(t *testing.T, p *pod) {
		sysctl(t, "net/ipv4/conf/"+p.recorded().Host.Name+"/forwarding", "0")
	}},
	"chain": {kind: "masquerade", keys: `"ipMasq": true,`, do: func(t *testing.T, _ *pod) { command(t, "nft", "flush", "ruleset") }},
	"rules": {kind: "masquerade", keys: `"ipMasq": true,`, unseen: true, do: func(t *testing.T, p *pod) {
		command(t, "nft", "flush", "chain", "inet", "tapir", p.recorded().Masquerade)
	}},
	"address of the chain": {kind: "masquerade", keys: `"ipMasq": true,`, do: func(t *testing.T, p *pod) {
		command(t, "nft", "flush", "set", "inet", "tapir", "pods4-"+p.recorded().Masquerade)
	}},
	"XDP of the TAP": {kind: "shortcut", keys: `"xdp": {"mode": "auto"},`, do: inPod(func(t *testing.T, _ *pod) { command(t, "ip", "link", "set", "dev", "tap-eth0", "xdp", "off") })},
	"shortcut's addresses": {kind: "shortcut", keys: `"xdp": {"mode": "auto"},`, silent: true, do: func(t *testing.T, p *pod) {
		s, err := xdp.OpenShortcut(bpffs)
		must(t, err)
		defer func() { must(t, s.Close()) }()
		must(t, s.Withdraw(uint32(p.recorded().TAP.Index), p.recorded().Addresses[0].Prefix.Addr()))
	}},
	"TAP on the host": {kind: "qdisc", keys: `"placement": "host",`, do: func(t *testing.T, p *pod) {
		command(t, "tc", "qdisc", "replace", "dev", p.recorded().TAP.Name, "root", "pfifo")
	}},
	"route of a TAP on the host": {kind: "route", keys: `"placement": "host",`, do: func(t *testing.T, p *pod) {
		command(t, "ip", "route", "del", p.recorded().Addresses[0].Prefix.Addr().String(), "dev", p.recorded().TAP.Name)
	}},
	"Kata's file": {kind: "dan", silent: true, keys: `"placement": "host", "vmm": "kata",`, do: func(t *testing.T, p *pod) { must(t, os.Remove(p.recorded().DAN)) }},
}

// Each change is put right, and CHECK has nothing to say afterwards; where the policy is to report alone it stays, which shows that the
// change is one, and that it is the reconciler who puts it right.
func TestChangesArePutRight(t *testing.T) {
	byKeys := map[string][]string{}
	for name, d := range damages {
		byKeys[d.keys] = append(byKeys[d.keys], name)
	}
	for keys, names := range byKeys {
		requireNode(t)
		p := add(t, keys)
		if wrong := p.wrong(); len(wrong) > 0 {
			t.Fatalf("before: %q", wrong)
		}
		m := start(t, reconcile.Options{})
		for _, name := range names {
			t.Run(name, func(t *testing.T) { isPutRight(t, m, p, damages[name]) })
		}
		m.stop()
	}
}

func isPutRight(t *testing.T, m *mender, p *pod, d damage) {
	report, repair := reconcile.Policies{}, reconcile.Options{Grace: grace, Every: 24 * time.Hour, MaxRepairs: 100}
	for _, k := range reconcile.Kinds() {
		report[k] = reconcile.Report
	}
	before := m.result(d.kind)
	m.Reload(reconcile.Options{Grace: grace, Every: 24 * time.Hour, Policies: report})
	d.do(t, p)
	if d.silent {
		m.Reload(reconcile.Options{Grace: grace, Every: 24 * time.Hour, Policies: report})
	}
	eventually(t, "the change is reported", func() bool { return m.result(d.kind).Reported > before.Reported && m.result(d.kind).Open > 0 })
	if wrong := p.wrong(); len(wrong) == 0 && !d.unseen {
		t.Fatal("CHECK does not see the change")
	}
	if got := m.result(d.kind).Repaired; got != before.Repaired {
		t.Fatalf("want it reported alone, got %d repairs", got-before.Repaired)
	}

	right := func(than uint64) func() bool {
		return func() bool { return m.result(d.kind).Repaired > than && len(m.Findings()) == 0 && len(p.wrong()) == 0 }
	}
	m.Reload(repair)
	eventually(t, "what is there is put right", right(before.Repaired))

	// And heard of where it can be, from a state that is right.
	n := m.result(d.kind).Repaired
	d.do(t, p)
	if d.silent {
		m.Reload(repair)
	}
	eventually(t, "it is put right again", right(n))
}

// With strict filtering, what the guest sends is dropped where a rule leads what goes to it another way.
func TestReversePathFilteringIsLoosenedWhereItWouldDrop(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	end := p.recorded().Host.Name
	ip := p.recorded().Addresses[0].Prefix.Addr().String()
	sysctl(t, "net/ipv4/conf/all/rp_filter", "1")
	t.Cleanup(func() { sysctl(t, "net/ipv4/conf/all/rp_filter", "0") })
	m := start(t, reconcile.Options{})
	never(t, time.Second, "it is loosened where nothing is dropped", func() bool { return m.result("rp-filter").Found > 0 })
	command(t, "ip", "route", "add", ip, "dev", "lo", "table", "77")
	command(t, "ip", "rule", "add", "to", ip, "lookup", "77")
	t.Cleanup(func() {
		command(t, "ip", "rule", "del", "to", ip, "lookup", "77")
		command(t, "ip", "route", "flush", "table", "77")
	})
	eventually(t, "it is loosened", func() bool {
		v, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + end + "/rp_filter")
		return err == nil && strings.TrimSpace(string(v)) == "2"
	})
	if v, _ := os.ReadFile("/proc/sys/net/ipv4/conf/all/rp_filter"); strings.TrimSpace(string(v)) != "1" {
		t.Error("the node's own setting was changed")
	}
}

// A ring that the tuner chose is no change; one that nobody wrote down is, and is reported unless the configuration says more.
func TestTheRingIsTheTuners(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	m := start(t, reconcile.Options{})
	set := func(n int) { p.in(func() { must(t, netlink.LinkSetTxQLen(link(t, "tap-eth0"), n)) }) }
	must(t, m.j.Record(journal.Change{Part: "tuner", Object: p.key().String(), Index: p.recorded().TAP.Index, Setting: "tx_queue_len", Before: "1000", After: "2000"}))
	set(2000)
	never(t, time.Second, "the tuner's ring is a finding", func() bool { return m.result("ring").Found > 0 })
	set(3000)
	eventually(t, "another length is reported", func() bool { return m.result("ring").Reported == 1 })
	m.Reload(reconcile.Options{Grace: grace, Every: 24 * time.Hour, Policies: reconcile.Policies{"ring": reconcile.Repair}})
	eventually(t, "it is put right", func() bool { return m.result("ring").Repaired == 1 })
	p.in(func() {
		if n := link(t, "tap-eth0").Attrs().TxQLen; n != 2000 {
			t.Errorf("want the tuner's 2000, got %d", n)
		}
	})
}

// Of another plugin's interface nothing is touched but tapir's program.
func TestAnotherPluginsInterfaceIsLeftAlone(t *testing.T) {
	requireNode(t)
	p := newPod(t, `"prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "x"}], "ips": [{"address": "10.50.0.2/24", "gateway": "10.50.0.1", "interface": 0}]},`)
	p.in(func() {
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", MTU: 1450}, PeerName: "peer0"}))
		must(t, netlink.LinkSetUp(link(t, "eth0")))
		must(t, netlink.LinkSetUp(link(t, "peer0")))
		command(t, "ip", "addr", "add", "10.50.0.2/24", "dev", "eth0")
	})
	p.add()
	m := start(t, reconcile.Options{})
	eventually(t, "it was looked at", func() bool { return len(m.Findings()) == 0 })
	p.in(func() {
		must(t, netlink.LinkSetMTU(link(t, "eth0"), 1300))
		must(t, netlink.LinkSetAlias(link(t, "eth0"), "mine"))
		command(t, "ip", "addr", "flush", "dev", "eth0")
		progs, err := xdp.AttachedForeign(link(t, "eth0").Attrs().Index)
		must(t, err)
		must(t, xdp.DetachForeign(link(t, "eth0").Attrs().Index, progs.TAP))
	})
	m.Reload(reconcile.Options{Grace: grace, Every: 24 * time.Hour})
	eventually(t, "the program is back", func() bool { return m.result("program").Repaired == 1 })
	p.in(func() {
		l := link(t, "eth0").Attrs()
		if l.MTU != 1300 || l.Alias != "mine" {
			t.Errorf("the interface was changed: MTU %d, alias %q", l.MTU, l.Alias)
		}
		if got, err := xdp.AttachedForeign(l.Index); err != nil || int(got.TAP) != p.recorded().TAP.Index {
			t.Errorf("want the program that leads to the TAP, got %+v, %v", got, err)
		}
	})
	for _, r := range m.Results() {
		if r.Found > 0 && r.Kind != "program" {
			t.Errorf("found more: %+v", r)
		}
	}
}

// Somebody who wants it otherwise is not fought.
func TestWhatComesBackIsLeftToOthers(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	m := start(t, reconcile.Options{MaxRepairs: 3, Per: time.Hour})
	ip, end := p.recorded().Addresses[0].Prefix.Addr().String(), p.recorded().Host.Name
	for n := range uint64(3) {
		command(t, "ip", "route", "del", ip, "dev", end)
		eventually(t, "it is put right", func() bool { return m.result("route").Repaired == n+1 })
	}
	command(t, "ip", "route", "del", ip, "dev", end)
	eventually(t, "it is told of", func() bool { return m.result("route").Contested == 1 })
	never(t, time.Second, "it is put right once more", func() bool { return m.result("route").Repaired > 3 })
	// Other things are put right all the same.
	command(t, "ip", "neigh", "del", ip, "dev", end)
	eventually(t, "the neighbour is back", func() bool { return m.result("neighbour").Repaired == 1 })
	if !strings.Contains(m.log.String(), "others change it") {
		t.Error("the log does not say so")
	}
}

func TestADryRunChangesNothing(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	command(t, "ip", "route", "del", p.recorded().Addresses[0].Prefix.Addr().String(), "dev", p.recorded().Host.Name)
	m := start(t, reconcile.Options{Mode: reconcile.DryRun})
	eventually(t, "it is told of", func() bool {
		f := m.Findings()
		return len(f) == 1 && f[0].Outcome == reconcile.Planned
	})
	var out strings.Builder
	must(t, m.Plan(t.Context(), &out))
	if want := "reconcile: repair " + p.key().String() + ": route " + p.recorded().Addresses[0].Prefix.Addr().String(); !strings.Contains(out.String(), want) {
		t.Errorf("want %q in the plan, got %s", want, out.String())
	}
	if len(p.wrong()) == 0 {
		t.Error("it was put right")
	}
}

// What no property finds, CHECK finds neither: each of its words has a kind here.
func TestAnAttachmentThatIsRightHasNoFindings(t *testing.T) {
	requireNode(t)
	for _, keys := range []string{"", `"when": "annotated",`, `"placement": "host",`, `"ipMasq": true, "xdp": {"mode": "auto"}, "redirect": "tcx", "queues": 2,`} {
		p := add(t, keys)
		got, err := plugin.Drift{StateDir: p.dir, BPFFS: bpffs}.Look(p.recorded())
		if err != nil || len(got) != 0 {
			t.Errorf("%s: %v, %v", keys, got, err)
		}
	}
}
