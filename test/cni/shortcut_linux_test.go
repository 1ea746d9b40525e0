package cni_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/xdp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// withShortcut is a configuration with the shortcut in a mode.
func withShortcut(mode string) object { return conf(object{"xdp": object{"mode": mode}}) }

// xdpRow is what the tests read of a row of "tapirctl xdp".
type xdpRow struct {
	ContainerID, Wanted, Mode, Why string
	Current, Flagged, Limited      bool
	Native, Generic, Taken, Passed uint64
	Counters                       map[string]xdp.Counter
}

// xdpRow is the pod's.
func (p *pod) xdpRow() xdpRow {
	p.n.t.Helper()
	var rows []xdpRow
	p.n.ctlJSON(&rows, "xdp", p.id)
	if len(rows) != 1 {
		p.n.t.Fatalf("tapirctl xdp %s: want one row, got %v", p.id, rows)
	}
	return rows[0]
}

func TestGuestsTakeTheShortcutInEachMode(t *testing.T) {
	for _, tt := range []struct{ mode, redirect, got string }{
		{"auto", "auto", "native"}, {"native", "tcx", "native"}, {"generic", "auto", "generic"},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			n := newNode(t)
			before := n.snapshot()
			c := withShortcut(tt.mode).with(object{"redirect": tt.redirect})
			a, b := n.pod("a", c), n.pod("b", c)
			a.works("STATUS", nil)
			ga, gb := boot(a, a.add()), boot(b, b.add())
			ga.wantPing(gb.ip[true], gb.ip[false])
			gb.wantPing(ga.ip[true], ga.ip[false])
			ga.wantPing(nodeIP4, nodeIP6, ga.gw[true], ga.gw[false]) // the default path is as it was
			n.wantTaken(t, a, true, true)
			n.wantTaken(t, b, true, true)
			for _, p := range []*pod{a, b} {
				row := p.xdpRow()
				if row.Mode != tt.got || row.Wanted != tt.mode || !row.Current || row.Flagged || row.Taken == 0 || p == a && row.Passed == 0 {
					t.Errorf("%s: got %+v", p.id, row)
				}
				if runs := map[string]uint64{"native": row.Native, "generic": row.Generic}; runs[tt.got] == 0 {
					t.Errorf("%s: no %s run: %+v", p.id, tt.got, row)
				}
				p.works("CHECK", nil)
				p.works("DEL", nil)
			}
			if left := shortcutLines(t); len(left) > 0 {
				t.Errorf("after DEL the shortcut still has %q", left)
			}
			wantSame(t, "after DEL", before, n.snapshot())
		})
	}
}

// One side with the shortcut and one without use the default path in both directions.
func TestShortcutNeedsBothSides(t *testing.T) {
	n := newNode(t)
	a, b := n.pod("a", withShortcut("auto")), n.pod("b", conf(nil))
	ga, gb := boot(a, a.add()), boot(b, b.add())
	ga.wantPing(gb.ip[true], gb.ip[false])
	n.wantTaken(t, a, true, false)
	if row := b.xdpRow(); row.Mode != "off" || row.Why != "xdp.mode is off" {
		t.Errorf("without the shortcut: got %+v", row)
	}
	if row := a.xdpRow(); row.Counters["tc_pass_no_target"].Frames == 0 {
		t.Errorf("no frame passed for want of a target: %+v", row)
	}
}

// Another pod that gets the address at once is the only one who gets its frames.
func TestReusedAddressLeadsToItsNewPodAlone(t *testing.T) {
	n := newNode(t)
	pool := ranges("10.9.0.0/24", "fd00:9::/64").with(object{"reuseDelay": "0s"})
	for _, mode := range []string{"off", "auto"} {
		c := withShortcut("auto").with(object{"ipam": pool})
		a, b := n.pod("a"+mode, c), n.pod("b"+mode, c)
		b.args = "IP=10.9.0.50,fd00:9::50"
		ga, gb := boot(a, a.add()), boot(b, b.add())
		ga.wantPing(gb.ip[true], gb.ip[false])
		n.wantTaken(t, a, true, true)
		b.works("DEL", nil)
		next := n.pod("c"+mode, withShortcut(mode).with(object{"ipam": pool}))
		next.args = b.args
		gc := boot(next, next.add())
		if gc.ip != nil && gc.ip[true] != gb.ip[true] {
			t.Fatalf("the new pod has %s, want %s", gc.ip[true], gb.ip[true])
		}
		ga.wantPing(gc.ip[true], gc.ip[false])
		next.works("DEL", nil)
		a.works("DEL", nil)
	}
}

// An entry that a crash left is taken out by the next ADD that gets the address, whatever its mode.
func TestStaleEntryIsDroppedByTheNextADD(t *testing.T) {
	n := newNode(t)
	keeper := n.pod("keeper", withShortcut("auto"))
	keeper.add()
	s := n.shortcut()
	dead := xdp.Participant{TAP: 4000, Host: 4002, MAC: gatewayMAC, Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.60/32")}, MTU: 1400, Counters: 4000}
	for _, mode := range []string{"off", "generic"} {
		mustDo(t, s.Join(dead))
		mustDo(t, s.Publish(dead.TAP))
		if targets, err := s.Published(); err != nil || targets[netip.MustParseAddr("10.9.0.60")] != dead.TAP {
			t.Fatalf("the entry is not there: %v, %v", targets, err)
		}
		p := n.pod("new"+mode, withShortcut(mode))
		p.args = "IP=10.9.0.60"
		p.add()
		targets, err := s.Published()
		mustDo(t, err)
		if got := targets[netip.MustParseAddr("10.9.0.60")]; got == dead.TAP || mode == "off" && got != 0 {
			t.Errorf("mode %s: the address leads to ifindex %d", mode, got)
		}
		p.works("DEL", nil)
	}
	mustDo(t, s.Leave(dead.TAP, dead.Host))
	// The address of another plugin's interface, too.
	after := n.chain("chained", neighbours[1].conf.with(object{"ipam": neighbours[1].static(60)}), chainConf(nil))
	dead.Addresses = []netip.Prefix{netip.MustParsePrefix("10.23.0.60/32")}
	mustDo(t, s.Join(dead))
	mustDo(t, s.Publish(dead.TAP))
	after.add()
	if targets, err := s.Published(); err != nil || targets[netip.MustParseAddr("10.23.0.60")] != 0 {
		t.Errorf("after another plugin's ADD: the address leads to %v, %v", targets, err)
	}
	after.works("DEL", nil)
	after.delBefore()
	mustDo(t, s.Leave(dead.TAP, dead.Host))
	// What nobody has is the clean-up's.
	mustDo(t, s.Join(dead))
	mustDo(t, s.Publish(dead.TAP))
	if out := n.ctl("cleanup", "--yes"); out.code != 0 || !strings.Contains(string(out.stdout), "shortcut of ifindex 4000") {
		t.Errorf("clean-up of an entry that nobody has: %s", out)
	}
	if got := shortcutLines(t); len(got) == 0 || strings.Contains(fmt.Sprint(got), "4000") {
		t.Errorf("after the clean-up: got %q", got)
	}
	keeper.works("CHECK", nil)
}

func TestCheckSeesWhatTheShortcutLost(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", withShortcut("native"))
	r := p.add()
	tap, s := p.tapIndex(), n.shortcut()
	p.works("CHECK", nil)
	wantText(t, p.fails("CHECK", codeDiffers, object{"xdp": object{"mode": "off"}}), "xdp.mode: want off, got native")

	testnode.In(t, p.netns, func() { mustDo(t, s.DetachTAP(tap)) })
	wantText(t, p.fails("CHECK", codeDiffers, nil), "tap-eth0: XDP mode: want native, got off")
	if row := p.xdpRow(); row.Mode != "off" || row.Why != "somebody took the program off" {
		t.Errorf("a TAP without its program: got %+v", row)
	}
	testnode.In(t, p.netns, func() { attachForeignXDP(t, "tap-eth0") })
	wantText(t, p.fails("CHECK", codeDiffers, nil), `tap-eth0: has XDP program "others"`)
	if out := n.ctl("xdp", "on", "c1"); out.code != 1 || !strings.Contains(string(out.stderr), "not tapir's") {
		t.Errorf("a foreign program was replaced: %s", out)
	}
	testnode.In(t, p.netns, func() { mustDo(t, netlink.LinkSetXdpFd(link(t, "tap-eth0"), -1)) })

	if out := n.ctl("xdp", "on", "c1", "--mode", "native"); out.code != 0 {
		t.Fatalf("put it right: %s", out)
	}
	p.works("CHECK", nil)
	n.in(func() { mustDo(t, s.DetachHost(link(t, hostEnd(t, r)).Attrs().Index, xdp.MethodClsact)) })
	wantText(t, p.fails("CHECK", codeDiffers, nil), hostEnd(t, r)+": the shortcut's program is not attached")
	mustDo(t, s.Withdraw(uint32(tap)))
	wantText(t, p.fails("CHECK", codeDiffers, nil), "10.9.0.2 leads to the tap with ifindex 0")
	p.works("DEL", nil)
}

// On a kernel that lacks something, here its types, mode auto is off and says why; a mode that was named is an error.
func TestAutoIsOffWhereTheKernelLacksSomething(t *testing.T) {
	n := newNode(t)
	const types = "/sys/kernel/btf"
	mustDo(t, unix.Mount("none", types, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(types, 0) })
	before := n.snapshot()
	a, b := n.pod("a", withShortcut("auto")), n.pod("b", conf(nil))
	ga, gb := boot(a, a.add()), boot(b, b.add())
	ga.wantPing(gb.ip[true], gb.ip[false], nodeIP4)
	a.works("CHECK", nil)
	if row := a.xdpRow(); row.Mode != "off" || row.Wanted != "auto" || !strings.Contains(row.Why, "the shortcut is unsupported here") {
		t.Errorf("mode auto: got %+v", row)
	}
	wantText(t, string(n.ctl("doctor").stdout), "shortcut of pods/a/eth0", "wanted auto, is off")
	for _, mode := range []string{"native", "generic"} {
		p := n.pod(mode, withShortcut(mode))
		wantText(t, p.fails("ADD", 101, nil), "the shortcut is unsupported here", "kernel 6.2")
		wantText(t, p.fails("STATUS", codeUnavailable, nil), "the shortcut is unsupported here")
	}
	a.works("STATUS", nil)
	a.works("DEL", nil)
	b.works("DEL", nil)
	wantSame(t, "after DEL", before, n.snapshot())
}

// A state that was lost is made anew with the mode, and the clean-up of such a record leaves no entry.
func TestRebuiltStateKnowsTheMode(t *testing.T) {
	n := newNode(t)
	a, b := n.pod("a", withShortcut("generic")), n.pod("b", conf(nil))
	before := n.snapshot()
	a.add()
	b.add()
	mustDo(t, os.Remove(filepath.Join(stateDir, "state.db")))
	var list []struct {
		ContainerID string
		XDP         struct{ Mode string }
		Rebuilt     bool
	}
	n.ctlJSON(&list, "list")
	modes := map[string]string{}
	for _, l := range list {
		if !l.Rebuilt {
			t.Errorf("%s: the record was not rebuilt: the test shows nothing", l.ContainerID)
		}
		modes[l.ContainerID] = l.XDP.Mode
	}
	if diff := cmp.Diff(map[string]string{"a": "generic", "b": ""}, modes); diff != "" {
		t.Errorf("modes (-want +got):\n%s", diff)
	}
	if out := n.ctl("xdp", "flag", "a"); out.code != 0 {
		t.Errorf("flag a rebuilt one: %s", out)
	}
	for _, p := range []*pod{a, b} {
		p.works("DEL", nil)
	}
	wantSame(t, "after DEL", before, n.snapshot())
}

// attachForeignXDP puts a program of another software on a device of the calling thread's netns.
func attachForeignXDP(t *testing.T, dev string) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "others", Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	mustDo(t, err)
	defer prog.Close()
	mustDo(t, netlink.LinkSetXdpFd(link(t, dev), prog.FD()))
}

// The mode and the flag act in the middle of a flow, and the TAP never goes down for it.
func TestModeAndFlagChangeUnderAFlow(t *testing.T) {
	n := newNode(t)
	c0 := withShortcut("auto").with(object{"ipMasq": true}) // whose rules make the node track connections
	a, b := n.pod("a", c0), n.pod("b", c0)
	sa, sb := bootStack(a, a.add(), offloadTSO), bootStack(b, b.add(), offloadNone)
	c := converse(t, sa.netns, sb.netns, sb.ip[true])
	flows := func(what string, some bool) {
		t.Helper()
		before := n.taken(a)
		bits := rate(t, c.client, c.server, 200*time.Millisecond, 300*time.Millisecond)
		if bits < 1e6 {
			t.Errorf("%s: %.0f bit/s go through", what, bits)
		}
		after := n.taken(a)
		if after < before {
			before = 0 // the counters begin anew with "xdp on"
		}
		if some != (after > before) {
			t.Errorf("%s: %d frames took the shortcut, want some: %t; %v", what, after-before, some, n.paths(a))
		}
	}
	do := func(args ...string) {
		t.Helper()
		if out := n.ctl(append([]string{"xdp"}, args...)...); out.code != 0 {
			t.Fatalf("tapirctl xdp %q: %s", args, out)
		}
	}
	flows("at first", true)
	do("flag", "b")
	flows("flagged", false)
	do("unflag", "b")
	flows("a flow that conntrack knows by now", false)
	c = converse(t, sa.netns, sb.netns, sb.ip[true])
	flows("a new flow, not flagged", true)
	do("off", "a")
	if row := a.xdpRow(); row.Mode != "off" || !strings.Contains(row.Why, "tapirctl xdp off") {
		t.Errorf("turned off: got %+v", row)
	}
	a.works("CHECK", nil)
	if bits := rate(t, c.client, c.server, 200*time.Millisecond, 300*time.Millisecond); bits < 1e6 {
		t.Errorf("turned off: %.0f bit/s go through", bits)
	}
	do("on", "a", "--mode", "generic")
	a.works("CHECK", nil)
	c = converse(t, sa.netns, sb.netns, sb.ip[true])
	flows("a new flow, generic", true)
	do("flag", "a")
	do("off", "a")
	do("on", "a")
	if row := a.xdpRow(); !row.Flagged || row.Mode != "native" {
		t.Errorf("a flag survives off and on: got %+v", row)
	}
	do("upgrade")
	for _, p := range []*pod{a, b} {
		p.works("CHECK", nil)
		p.works("DEL", nil)
	}
}

// Wherever "tapirctl xdp on" or "off" is killed, DEL leaves no entry.
func TestKilledModeChangeIsCleanedUpByDel(t *testing.T) {
	n := newNode(t)
	n.pod("sharer", withShortcut("auto")).add()
	// The kills are spread over the length that a change has on this machine, now.
	whole := n.pod("whole", conf(nil))
	whole.add()
	began := time.Now()
	for _, verb := range []string{"on", "off"} {
		if out := n.ctl("xdp", verb, whole.id); out.code != 0 {
			t.Fatalf("tapirctl xdp %s: %s", verb, out)
		}
	}
	length := time.Since(began) / 2
	whole.works("DEL", nil)
	before := n.snapshot()
	killed := 0
	for i := range 24 {
		from, verb := conf(nil), "on"
		if i%2 == 1 {
			from, verb = withShortcut("auto"), "off"
		}
		p := n.pod(fmt.Sprint("c", i), from)
		p.add()
		cmd := exec.Command(filepath.Join(os.Getenv(binDirEnv), "tapirctl"), "xdp", verb, p.id)
		n.start(cmd)
		time.Sleep(rand.N(length))
		kill(cmd)
		if !cmd.ProcessState.Exited() {
			killed++
		}
		p.works("DEL", nil)
		wantSame(t, fmt.Sprintf("round %d, %s", i, verb), before, n.snapshot())
		if t.Failed() {
			return
		}
	}
	if killed < 5 {
		t.Errorf("only %d of 24 were killed: the test shows nothing", killed)
	}
}

func TestTraceSaysWhichPathAndWhy(t *testing.T) {
	n := newNode(t)
	a, b := n.pod("a", withShortcut("auto")), n.pod("b", withShortcut("auto"))
	ga, gb := boot(a, a.add()), boot(b, b.add())
	ga.wantPing(gb.ip[true])
	type line struct{ Path, Reason, Why, Source, Dest string }
	trace := func(ping func()) (lines []line) {
		t.Helper()
		out := make(chan answer)
		go func() {
			out <- n.ctl("trace", "--attachment", "a", "--to", gb.ip[true].String(), "--proto", "icmp", "--count", "2", "--timeout", "20s", "-o", "json")
		}()
		for {
			select {
			case got := <-out:
				if got.code != 0 {
					t.Fatalf("trace: %s", got)
				}
				for text := range strings.Lines(string(got.stdout)) {
					var l line
					mustDo(t, json.Unmarshal([]byte(text), &l))
					lines = append(lines, l)
				}
				return lines
			case <-time.After(50 * time.Millisecond):
				ping()
			}
		}
	}
	ping := func() { ga.ping(gb.ip[true]) }
	for _, l := range trace(ping) {
		if l.Path != "shortcut by XDP" || l.Reason != "xdp_to_guest" || l.Why == "" {
			t.Errorf("on the shortcut: got %+v", l)
		}
	}
	if out := n.ctl("xdp", "flag", "b"); out.code != 0 {
		t.Fatal(out)
	}
	lines := trace(ping)
	if len(lines) != 2 || lines[0].Path != "host end" || lines[1].Path != "default" || lines[1].Reason != "tc_pass_flagged" {
		t.Errorf("flagged: want the TAP to pass it and the host end to say why, got %+v", lines)
	}
	if out := n.ctl("trace", "--attachment", "a", "--to", "192.0.2.1", "--timeout", "200ms"); out.code != 0 || !strings.Contains(string(out.stderr), "no frame of that flow") {
		t.Errorf("a flow without frames: %s", out)
	}
	// Killed, a trace leaves the next one free to begin.
	endless := exec.Command(filepath.Join(os.Getenv(binDirEnv), "tapirctl"), "trace", "--attachment", "a", "--timeout", "0")
	n.start(endless)
	time.Sleep(300 * time.Millisecond)
	if out := n.ctl("trace", "--attachment", "a", "--timeout", "1ms"); out.code != 1 || !strings.Contains(string(out.stderr), "another trace is running") {
		t.Errorf("two traces at once: %s", out)
	}
	kill(endless)
	if lines := trace(ping); len(lines) != 2 {
		t.Errorf("after a killed trace: got %+v", lines)
	}
	off := n.pod("off", conf(nil))
	off.add()
	if out := n.ctl("trace", "--attachment", "off"); out.code != 1 || !strings.Contains(string(out.stderr), "xdp.mode is off") {
		t.Errorf("an attachment without the shortcut: %s", out)
	}
	if out := n.ctl("trace", "--attachment", "a", "--proto", "tpc"); out.code != 2 {
		t.Errorf("an unknown protocol: %s", out)
	}
}

func TestWatchShowsCountersAgainAndAgain(t *testing.T) {
	n := newNode(t)
	a, b := n.pod("a", withShortcut("auto")), n.pod("b", withShortcut("auto"))
	ga, gb := boot(a, a.add()), boot(b, b.add())
	ga.wantPing(gb.ip[true])
	var out bytes.Buffer
	cmd := exec.Command(filepath.Join(os.Getenv(binDirEnv), "tapirctl"), "xdp", "a", "--watch", "50ms")
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	n.start(cmd)
	time.Sleep(600 * time.Millisecond)
	mustDo(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	if looks := strings.Count(out.String(), "CONTAINER  IFNAME  TAP"); looks < 2 {
		t.Errorf("want several looks, got %d", looks)
	}
	wantText(t, out.String(), "RATE", "xdp_to_guest", "native")
}

// An ADD without the shortcut does not pin it, one with it leaves its programs to the clean-up.
func TestCleanUpRemovesShortcutAndUplink(t *testing.T) {
	n := newNode(t)
	plain := n.pod("plain", conf(nil))
	plain.add()
	plain.works("DEL", nil)
	if pins, err := filepath.Glob(filepath.Join(pinDir, "maps-*")); err != nil || len(pins) > 0 {
		t.Errorf("an ADD without the shortcut pinned %q (%v)", pins, err)
	}
	p := n.pod("c1", conf(object{"xdp": object{"mode": "auto", "uplink": "up0"}}))
	if text := p.fails("ADD", codeConfig, object{"xdp": object{"mode": "auto", "uplink": "up1"}}); !strings.Contains(text, `no device "up1"`) {
		t.Errorf("an uplink that is not there: %s", text)
	}
	if left := n.stateLines(); len(left) > 0 {
		t.Errorf("the refused ADD left %q", left)
	}
	p.add()
	attached := func() (on bool) {
		n.in(func() { x := link(t, "up0").Attrs().Xdp; on = x != nil && x.Attached })
		return on
	}
	if !attached() {
		t.Error("the uplink has no XDP program")
	}
	p.works("DEL", nil)
	if !attached() {
		t.Error("the uplink is shared, and went with an attachment")
	}
	if out := n.ctl("cleanup", "--yes"); out.code != 0 || !strings.Contains(string(out.stdout), "uplink") {
		t.Errorf("clean-up: %s", out)
	}
	if attached() {
		t.Error("after the clean-up the uplink has its XDP program")
	}
	n.in(func() { attachForeignXDP(t, "up0") })
	if text := p.fails("ADD", codeBusy, nil); !strings.Contains(text, `"others"`) {
		t.Errorf("a foreign program on the uplink: %s", text)
	}
	n.in(func() { mustDo(t, netlink.LinkSetXdpFd(link(t, "up0"), -1)) })
}

// shortcutLines are the entries in the pinned maps of the shortcut.
func shortcutLines(t testing.TB) (lines []string) {
	t.Helper()
	s, err := xdp.OpenLayout(pinDir, xdp.ShortcutLayout())
	if err != nil {
		return nil // nothing is pinned
	}
	defer s.Close()
	all, err := s.Participants()
	mustDo(t, err)
	for tap := range all {
		has, lookErr := s.HasDevice(tap)
		mustDo(t, lookErr)
		lines = append(lines, fmt.Sprintf("shortcut of ifindex %d, device %t", tap, has))
	}
	targets, err := s.Published()
	mustDo(t, err)
	for addr, tap := range targets {
		lines = append(lines, fmt.Sprintf("shortcut to %s at ifindex %d", addr, tap))
	}
	return lines
}
