package cni_test

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addTap makes an ordinary TAP in the netns of the calling thread.
func addTap(t testing.TB, name string) {
	t.Helper()
	l := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_ONE_QUEUE, Queues: 1}
	if err := netlink.LinkAdd(l); err != nil {
		t.Fatal(err)
	}
	for _, f := range l.Fds {
		_ = f.Close()
	}
}

// TestFailedAddLeavesNothing makes ADD fail at each of its steps. What was there before must be there afterwards, and
// nothing else.
func TestFailedAddLeavesNothing(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipMasq": true, "queues": 2, "ipam": ranges("10.9.0.0/16", "fd00:9::/64")})
	first := n.pod("first", c)
	r := first.add()
	end := hostEndOf(t, n, "doomed", c)
	for _, tt := range []struct {
		name string
		over object
		code uint
		want []string
		prep func(t *testing.T, p *pod)
	}{
		{"the host's own netns", nil, codeNetns, []string{"host's own network namespace"}, func(_ *testing.T, p *pod) { p.netns = n.netns }},
		{"no netns there", nil, codeNetns, []string{"/run/netns/none"}, func(_ *testing.T, p *pod) { p.netns = "/run/netns/none" }},
		{"netns is a file", nil, codeNetns, []string{"/etc/hostname"}, func(_ *testing.T, p *pod) { p.netns = "/etc/hostname" }},
		{"the same attachment twice", nil, codeBusy, []string{"the attachment exists since"}, func(_ *testing.T, p *pod) { p.id, p.netns = "first", first.netns }},
		{"the same attachment in another netns", nil, codeBusy, []string{"the attachment exists since"}, func(_ *testing.T, p *pod) { p.id = "first" }},
		{"another pod with that ifname in the netns", nil, codeBusy, []string{"exists"}, func(_ *testing.T, p *pod) { p.netns = first.netns }},
		{"the same, another TAP name", object{"tapName": "tap1"}, codeBusy, []string{"eth0", "exists"}, func(_ *testing.T, p *pod) { p.netns = first.netns }},
		{"TAP name taken", nil, codeBusy, []string{"tap-eth0", "exists"}, func(t *testing.T, p *pod) {
			testnode.In(t, p.netns, func() { addTap(t, "tap-eth0") })
		}},
		{"CNI_IFNAME taken", nil, codeBusy, []string{"eth0", "exists"}, func(t *testing.T, p *pod) {
			testnode.In(t, p.netns, func() { addTap(t, "eth0") })
		}},
		{"host end's name taken", nil, codeBusy, []string{end, "exists"}, func(t *testing.T, _ *pod) { n.in(func() { addTap(t, end) }) }},
		{"the node routes the address", nil, codeBusy, []string{"10.9.0.99", "routes that address already"}, func(t *testing.T, p *pod) {
			p.args = "IP=10.9.0.99"
			n.in(func() { addRoute(t, "10.9.0.99/32", hopIP4) })
		}},
		{"MAC taken", object{"mac": r.Interfaces[1].Mac}, codeBusy, []string{r.Interfaces[1].Mac, "first"}, nil},
		{"address taken", nil, codeTryAgain, []string{"10.9.0.2", "first"}, func(_ *testing.T, p *pod) { p.args = "IP=10.9.0.2" }},
		{"no range left", object{"ipam": ranges("10.20.0.0/30")}, codeExhausted, []string{"no free address in 10.20.0.0/30"}, func(_ *testing.T, p *pod) {
			full := n.pod("full", p.conf.with(object{"ipam": ranges("10.20.0.0/30")}))
			full.add()
		}},
		{"state directory below a file", object{"stateDir": "/etc/hostname/tapir"}, codeIO, []string{"/etc/hostname"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := n.pod("doomed", c.with(tt.over))
			if tt.prep != nil {
				tt.prep(t, p)
			}
			netns := testnode.NewNetns(t) // where the pod has none
			if isNetns(p.netns) {
				netns = p.netns
			}
			before := n.snapshot(netns, first.netns)
			wantText(t, p.fails("ADD", tt.code, nil), tt.want...)
			wantSame(t, "after the failed ADD", before, n.snapshot(netns, first.netns))
			noTemp(t)
			n.undoPrep(end)
		})
	}
	first.works("CHECK", nil)
	boot(first, r).wantPing(nodeIP4, nodeIP6)
}

// hostEndOf is the name that the host end of a pod of that id will have.
func hostEndOf(t *testing.T, n *node, id string, c object) string {
	t.Helper()
	p := n.pod(id, c)
	defer p.works("DEL", nil)
	return hostEnd(t, p.add())
}

// "mtu": 0 asks for what the default route's device has, which IPv6 may not run on.
func TestDefaultRouteMTUBelowIPv6s(t *testing.T) {
	n := newNode(t)
	n.in(func() {
		if err := netlink.LinkSetMTU(link(t, "up0"), 1200); err != nil {
			t.Fatal(err)
		}
	})
	p := n.pod("c1", conf(nil))
	before := without(n.snapshot(p.netns), "none")
	wantText(t, p.fails("ADD", codeConfig, nil), "mtu", "IPv6 wants at least 1280, got 1200")
	wantSame(t, "after the failed ADD", before, n.snapshot(p.netns))
	p.conf = conf(object{"ipam": ranges("10.9.0.0/24")})
	if r := p.add(); r.Interfaces[1].Mtu != 1200 {
		t.Errorf("IPv4 alone: mtu %d, want 1200", r.Interfaces[1].Mtu)
	}
}

// undoPrep takes back what a case prepared on the node.
func (n *node) undoPrep(end string) {
	n.t.Helper()
	n.in(func() {
		if l, err := netlink.LinkByName(end); err == nil {
			_ = netlink.LinkDel(l)
		}
		_ = netlink.RouteDel(&netlink.Route{Dst: ipNet(netip.MustParsePrefix("10.9.0.99/32")), Gw: hopIP4.AsSlice()})
	})
}

// The masquerade is the last step: all others are taken back.
func TestFailedMasqueradeLeavesNothing(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipMasq": true, "queues": 2})
	n.warm(c)
	for _, line := range n.nftables() {
		if name, ok := strings.CutPrefix(line, "table tapir set skip4-"); ok { // of which the name is that of the set of pods
			name = "pods4-" + strings.Fields(name)[0]
			n.tool("nft", "delete table inet tapir; add table inet tapir; add set inet tapir "+name+" { type inet_service; }")
			break
		}
	}
	p := n.pod("doomed", c)
	before := n.snapshot(p.netns)
	out := p.call("ADD", nil)
	wantText(t, string(out.stdout), "masquerade", "nf_tables")
	if out.code == 0 {
		t.Error("ADD succeeded: the test shows nothing")
	}
	wantSame(t, "after the failed ADD", before, n.snapshot(p.netns))
	n.tool("nft", "delete", "table", "inet", "tapir")
	p.add()
	p.works("CHECK", nil)
}

// A runtime tries a failing ADD again and again: it must not use up the range for others.
func TestFailingAddDoesNotUseUpTheRange(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipam": ranges("10.9.0.0/29", "fd00:9::/64")}) // five addresses
	p := n.pod("doomed", c)
	testnode.In(t, p.netns, func() { addTap(t, "eth0") })
	for range 12 {
		p.fails("ADD", codeBusy, nil)
	}
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		n.pod(id, c).add()
	}
}

func TestExhaustedRangeIsNoFaultOfTheNode(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipam": ranges("10.9.0.0/29", "fd00:9::/64")})
	var pods []*pod
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		p := n.pod(id, c)
		p.add()
		pods = append(pods, p)
	}
	before := n.snapshot()
	p := n.pod("f", c)
	wantText(t, p.fails("ADD", codeExhausted, nil), "no free address in 10.9.0.0/29", "5 leased", "3 reserved")
	wantSame(t, "the IPv6 address is not kept either", before, n.snapshot())
	p.works("STATUS", nil)
	pods[0].works("DEL", nil)
	wantText(t, p.fails("ADD", codeExhausted, nil), "4 leased", "1 resting") // for reuseDelay
	p.conf = c.with(object{"ipam": ranges("10.9.0.0/28", "fd00:9::/64")})
	p.add()
}

// A stopped process that holds the lock of the state must not hold every ADD of the node for ever.
func TestStateLockedByStoppedProcess(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	n.warm(p.conf)
	holder := exec.Command("flock", "--no-fork", filepath.Join(stateDir, "lock"), "sleep", "100")
	n.start(holder)
	defer kill(holder)
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if name, _ := os.ReadFile("/proc/" + itoa(holder.Process.Pid) + "/comm"); strings.TrimSpace(string(name)) == "sleep" {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("flock did not get the lock")
		}
	}
	if err := holder.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	before := without(entryLines(t), "none")
	start := time.Now()
	out := p.call("ADD", nil)
	if took := time.Since(start); took < time.Second || took > 15*time.Second {
		t.Errorf("ADD took %s, want a bounded wait of about 5 s", took)
	}
	wantText(t, wantCode(t, out, codeTryAgain), "lock", itoa(holder.Process.Pid))
	wantSame(t, "map entries", before, without(entryLines(t), "none"))
	kill(holder)
	p.add()
}

func TestPodsWithTwoInterfacesLiveSideBySide(t *testing.T) {
	n := newNode(t)
	a := n.pod("c1", conf(nil))
	b := &pod{n: n, id: "c1", netns: a.netns, ifName: "eth1", conf: conf(object{"name": "storage", "ipam": ranges("10.8.0.0/24", "fd00:8::/64")})}
	c := &pod{n: n, id: "c2", netns: a.netns, ifName: "eth2", conf: a.conf}
	var results []*types100.Result
	for _, p := range []*pod{a, b, c} {
		results = append(results, p.add())
	}
	for i, p := range []*pod{a, b, c} {
		g := boot(p, results[i])
		g.wantPing(nodeIP4, nodeIP6)
	}
	b.works("DEL", nil)
	a.works("CHECK", nil)
	c.works("CHECK", nil)
	c.works("DEL", nil)
	a.works("CHECK", nil)
}
