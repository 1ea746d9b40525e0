package cni_test

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// counting is a BPF program that counts frames and lets them pass on to whoever comes next.
type counting struct {
	t    testing.TB
	prog *ebpf.Program
	m    *ebpf.Map
}

func newCounting(t testing.TB) *counting {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "others", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"), // TC_ACT_UNSPEC, TCX_NEXT
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(prog.Close(), m.Close()) })
	return &counting{t, prog, m}
}

func (c *counting) frames() (n uint64) {
	c.t.Helper()
	if err := c.m.Lookup(uint32(0), &n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// attachFilter puts the program on the ingress of eth0's clsact qdisc, in the calling thread's netns.
func (c *counting) attachFilter() {
	c.t.Helper()
	if err := netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: link(c.t, "eth0").Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
		Fd:          c.prog.FD(), Name: "others", DirectAction: true,
	}); err != nil {
		c.t.Fatal(err)
	}
}

// A stranger is what somebody else has on the pod's interface.
type stranger struct {
	name string
	// setUp puts it there, in the calling thread's netns, and gives what counts the frames it sees.
	setUp func(t *testing.T) (frames func() uint64)
	// redirects are the values of that key it is tried with; tcx is refused where others have a qdisc.
	redirects []string
}

func tcHere(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("tc", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("tc %q: %v: %s", args, err, out)
	}
	return string(out)
}

var strangers = []stranger{
	{"clsact with a BPF filter", func(t *testing.T) func() uint64 {
		tcHere(t, "qdisc", "add", "dev", "eth0", "clsact")
		c := newCounting(t)
		c.attachFilter()
		return c.frames
	}, []string{"auto", "tcx"}},
	{"clsact without filters", func(t *testing.T) func() uint64 { tcHere(t, "qdisc", "add", "dev", "eth0", "clsact"); return nil }, []string{"clsact"}},
	{"ingress with u32, as Kata", func(t *testing.T) func() uint64 {
		tcHere(t, "qdisc", "add", "dev", "eth0", "ingress")
		tcHere(t, "filter", "add", "dev", "eth0", "parent", "ffff:", "protocol", "ip", "u32", "match", "ip", "dst", "192.0.2.1/32", "flowid", "1:1")
		return nil
	}, []string{"auto"}},
	{"a tcx program", func(t *testing.T) func() uint64 {
		c := newCounting(t)
		if err := ebpflink.RawAttachProgram(ebpflink.RawAttachProgramOptions{Target: link(t, "eth0").Attrs().Index, Program: c.prog, Attach: ebpf.AttachTCXIngress}); err != nil {
			t.Fatal(err)
		}
		return c.frames
	}, []string{"auto", "clsact"}},
	{"a tcx program and clsact with a filter", func(t *testing.T) func() uint64 {
		c := newCounting(t)
		if err := ebpflink.RawAttachProgram(ebpflink.RawAttachProgramOptions{Target: link(t, "eth0").Attrs().Index, Program: c.prog, Attach: ebpf.AttachTCXIngress}); err != nil {
			t.Fatal(err)
		}
		tcHere(t, "qdisc", "add", "dev", "eth0", "clsact")
		f := newCounting(t)
		f.attachFilter()
		return func() uint64 { return min(c.frames(), f.frames()) }
	}, []string{"auto"}},
	{"tbf on egress, as bandwidth", func(t *testing.T) func() uint64 {
		tcHere(t, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "100mbit", "burst", "64k", "latency", "20ms")
		return nil
	}, []string{"auto"}},
}

// What others have on the interface stays at ADD and at DEL, and keeps seeing the guest's frames.
func TestChainedKeepsOthersOnTheInterface(t *testing.T) {
	for _, s := range strangers {
		for _, redirect := range s.redirects {
			t.Run(s.name+" "+redirect, func(t *testing.T) {
				testStranger(t, s, redirect)
			})
		}
	}
}

func testStranger(t *testing.T, s stranger, redirect string) {
	n := newNode(t)
	p := n.pod("vm", chainConf(object{"result": "firecracker", "redirect": redirect}))
	n.wire(p, onLinkGateway)
	p.conf["prevResult"], _ = shapes[0].parse(t, p.netns)
	var frames func() uint64
	testnode.In(t, p.netns, func() { frames = s.setUp(t) })
	untouched := p.sandbox()
	if redirect == "tcx" {
		wantText(t, p.fails("ADD", 7, nil), `redirect "tcx"`, `"auto"`)
		p.works("DEL", nil)
		wantSame(t, "the sandbox after the failed ADD", untouched, p.sandbox())
		n.in(func() { deleteLinkHere(t, "cali0") })
		return
	}

	r := p.add()
	for _, line := range untouched {
		if !strings.Contains(strings.Join(p.sandbox(), "\n"), line) {
			t.Errorf("after ADD the sandbox has no %q", line)
		}
	}
	g := bootSDK(p, r)
	counts := frames != nil
	if !counts {
		frames = func() uint64 { return 0 }
	}
	before := frames()
	sent := sentByQdisc(t, p)
	g.wantPing(g.gw[true], nodeIP4)
	g.wantPingBy(netip.MustParseAddr("fd00:30::1"), netip.MustParseAddr("fd00:30::1"))
	if seen := frames() - before; counts && seen < 3 {
		t.Errorf("the program that was there saw %d of the 3 answers to the guest", seen)
	}
	if strings.HasPrefix(s.name, "tbf") && sentByQdisc(t, p) <= sent {
		t.Error("the guest's frames passed by the qdisc that was there")
	}
	p.works("CHECK", object{"prevResult": r})
	p.works("DEL", object{"prevResult": r})
	wantSame(t, "the sandbox after DEL", untouched, p.sandbox())
	n.in(func() { deleteLinkHere(t, "cali0") })
}

// sentByQdisc is how many bytes the root qdisc of the interface has sent.
func sentByQdisc(t testing.TB, p *pod) (bytes uint64) {
	t.Helper()
	testnode.In(t, p.netns, func() {
		list, err := netlink.QdiscList(link(t, "eth0"))
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range list {
			if a := q.Attrs(); a.Parent == netlink.HANDLE_ROOT && a.Statistics != nil {
				bytes += a.Statistics.Basic.Bytes
			}
		}
	})
	return bytes
}

// A program of tapir's own that is there already is somebody's running microVM.
func TestChainedTwiceOnOneInterfaceIsRefused(t *testing.T) {
	for _, redirect := range []string{"auto", "clsact"} {
		t.Run(redirect, func(t *testing.T) {
			n := newNode(t)
			p := n.pod("first", chainConf(object{"result": "firecracker", "redirect": redirect}))
			n.wire(p, onLinkGateway)
			p.conf["prevResult"], _ = shapes[0].parse(t, p.netns)
			g := bootSDK(p, p.add())
			before := n.snapshot(p.netns)
			sandbox := p.sandbox()
			second := *p
			for _, tt := range []struct{ id, tap string }{{"first", ""}, {"second", ""}, {"second", "other0"}} {
				second.id, second.conf = tt.id, p.conf.with(object{"tapName": tt.tap})
				text := second.fails("ADD", 102, nil)
				if tt.id == "second" {
					wantText(t, text, map[bool]string{true: "02:30:00:00:00:05", false: "eth0"}[strings.Contains(text, "MAC")])
					second.works("DEL", nil) // the runtime's, for the one that failed
				}
				wantSame(t, "after a second ADD by "+tt.id, before, n.snapshot(p.netns))
				wantSame(t, "the sandbox after a second ADD by "+tt.id, sandbox, p.sandbox())
			}
			// In another network the MAC is no reason: the program is.
			second.conf = p.conf.with(object{"name": "others", "tapName": "other0"})
			wantText(t, second.fails("ADD", 102, nil), `"eth0"`, "TAP of tapir already")
			second.works("DEL", nil)
			wantSame(t, "after a second ADD in another network", before, n.snapshot(p.netns))
			wantSame(t, "the sandbox after a second ADD in another network", sandbox, p.sandbox())
			g.wantPing(g.gw[true], nodeIP4)
			p.works("CHECK", nil)
		})
	}
}

// Whatever has happened to the attachment meanwhile, DEL leaves the interface as the plugin before had it.
func TestChainedDelAfterAccidents(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(t *testing.T, p *pod)
	}{
		{"state lost", func(t *testing.T, _ *pod) {
			if err := os.RemoveAll(stateDir); err != nil {
				t.Fatal(err)
			}
		}},
		{"pins lost", func(t *testing.T, _ *pod) {
			if err := os.RemoveAll(pinDir); err != nil {
				t.Fatal(err)
			}
		}},
		{"state and pins lost", func(t *testing.T, _ *pod) {
			if err := errors.Join(os.RemoveAll(stateDir), os.RemoveAll(pinDir)); err != nil {
				t.Fatal(err)
			}
		}},
		{"TAP deleted", func(t *testing.T, p *pod) { deleteLink(t, p.netns, "tap-eth0") }},
		{"TAP deleted and state lost", func(t *testing.T, p *pod) {
			deleteLink(t, p.netns, "tap-eth0")
			if err := os.RemoveAll(stateDir); err != nil {
				t.Fatal(err)
			}
		}},
		{"no netns named", func(_ *testing.T, p *pod) { p.netns = "" }},
		{"the TAP is down", func(t *testing.T, p *pod) {
			testnode.In(t, p.netns, func() {
				if err := netlink.LinkSetDown(link(t, "tap-eth0")); err != nil {
					t.Fatal(err)
				}
			})
		}},
	} {
		for _, redirect := range []string{"auto", "clsact"} {
			if redirect == "clsact" && !strings.Contains(tt.name, "state lost") {
				continue // the record says what to look for
			}
			t.Run(tt.name+" "+redirect, func(t *testing.T) {
				n := newNode(t)
				p := n.pod("vm", chainConf(object{"redirect": redirect}))
				n.wire(p, onLinkGateway)
				p.conf["prevResult"], _ = shapes[0].parse(t, p.netns)
				untouched := p.sandbox()
				p.add()
				del := *p
				tt.before(t, &del)
				del.works("DEL", nil)
				wantSame(t, "the sandbox after DEL", untouched, p.sandbox())
				p.add() // nothing is in the way
				p.works("CHECK", nil)
				p.works("DEL", nil)
				wantSame(t, "the sandbox after a second life", untouched, p.sandbox())
				n.in(func() { deleteLinkHere(t, "cali0") })
			})
		}
	}
}
