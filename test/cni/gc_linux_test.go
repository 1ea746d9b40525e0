package cni_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// valid is the list that a runtime gives GC.
func valid(pods ...*pod) []object {
	list := []object{}
	for _, p := range pods {
		list = append(list, object{"containerID": p.id, "ifname": p.ifName})
	}
	return list
}

// attachments are those that the state has.
func (n *node) attachments() (ids []string) {
	n.t.Helper()
	for _, l := range n.stateLines() {
		if f := strings.Fields(l); f[0] == "attachment" {
			ids = append(ids, f[1])
		}
	}
	slices.Sort(ids)
	return ids
}

// tapNames are the TAPs in a netns.
func tapNames(t testing.TB, netns string) (names []string) {
	t.Helper()
	testnode.In(t, netns, func() {
		for _, l := range allLinks(t) {
			if _, ok := l.(*netlink.Tuntap); ok {
				names = append(names, l.Attrs().Name)
			}
		}
	})
	return names
}

// GC removes what the runtime does not name of this network, all of it, and nothing else.
func TestGCRemovesDeadAttachmentsOfItsNetwork(t *testing.T) {
	for _, key := range []string{"cni.dev/valid-attachments", "cni.dev/attachments"} {
		t.Run(key, func(t *testing.T) {
			n := newNode(t)
			c := conf(object{"ipMasq": true})
			others := c.with(object{"name": "others", "ipam": ranges("10.12.0.0/24", "fd00:12::/64")})
			n.warm(c)
			n.warm(others)
			start := n.snapshot()
			dead := n.pod("dead", c)
			dead.add()
			gone := n.pod("gone", c) // its netns went without a DEL
			gone.add()
			removeNetns(t, gone.netns)
			live := n.pod("live", c)
			g := boot(live, live.add())
			other := n.pod("dead", others)
			other.add()
			second := *live // of the live container, but not in the list
			second.ifName = "net1"
			second.add()

			caller := n.pod("", c) // GC has no container id and no netns
			caller.netns, caller.ifName = "", ""
			caller.works("GC", object{key: valid(live)})
			if diff := cmp.Diff([]string{"others/dead/eth0", "pods/live/eth0"}, n.attachments()); diff != "" {
				t.Errorf("attachments after GC (-want +got):\n%s", diff)
			}
			if taps := append(tapNames(t, dead.netns), tapNames(t, live.netns)...); len(taps) != 1 || taps[0] != "tap-eth0" {
				t.Errorf("TAPs of dead and live pod after GC: want that of the live one, got %q", taps)
			}
			g.wantPing(g.gw[true], nodeIP4)
			live.works("CHECK", nil)
			other.works("CHECK", nil)
			caller.works("GC", object{key: []object{}})
			caller.works("GC", object{key: json.RawMessage("null"), "name": "others"})
			wantSame(t, "when GC has removed all", start, n.snapshot())
		})
	}
}

// Without a list nobody can be told from anybody.
func TestGCWithoutListIsRefused(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	p.add()
	before := n.snapshot(p.netns)
	wantText(t, p.fails("GC", 7, nil), "cni.dev/valid-attachments")
	wantText(t, p.fails("GC", 7, object{"cni.dev/valid-attachments": "all"}), "cni.dev/valid-attachments")
	wantSame(t, "after the refused GC", before, n.snapshot(p.netns))
}

// A chained attachment goes with its program, and the interface of the plugin before stays.
func TestGCOfChainedAttachment(t *testing.T) {
	n := newNode(t)
	n.warm(conf(nil))
	c := n.chain("dead", neighbours[1].conf.with(object{"ipam": neighbours[1].static(60)}), chainConf(nil))
	before, sandbox := n.snapshot(c.netns), c.sandbox()
	c.add()
	c.works("GC", object{"prevResult": nil, "cni.dev/valid-attachments": []object{}})
	wantSame(t, "the node after GC", before, n.snapshot(c.netns))
	wantSame(t, "the sandbox after GC", sandbox, c.sandbox())
}

// host-local gets the same list, and frees what tapir has removed.
func TestGCOfDelegatedAttachment(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	live := n.delegated("live", conf(object{"ipam": own.hostLocal(dir)}))
	dead := n.delegated("dead", live.conf)
	for _, p := range []*delegatedPod{live, dead} {
		if out := p.call("ADD", nil); out.code != 0 {
			t.Fatal(out)
		}
	}
	live.works("GC", object{"cni.dev/valid-attachments": valid(live.pod)})
	if got := hostLocalLeases(t, dir, "pods"); len(got) != 2 {
		t.Errorf("leases of host-local after GC: want the live pod's two, got %q", got)
	}
	if taps := tapNames(t, dead.netns); len(taps) > 0 {
		t.Errorf("TAPs of the dead pod after GC: %q", taps)
	}
	live.works("CHECK", nil)
	live.works("DEL", nil)
}

// An attachment whose ADD runs is not in the runtime's list yet; GC waits for nothing and leaves it alone.
func TestGCLeavesAttachmentsInTheMaking(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	p.add()
	var hold *state.Hold
	n.in(func() {
		var err error
		if hold, err = state.AcquireHold(context.Background(), stateDir, state.Key{Network: "pods", ContainerID: "c1", IfName: "eth0"}, time.Second); err != nil {
			t.Fatal(err)
		}
	})
	start := time.Now()
	p.works("GC", object{"cni.dev/valid-attachments": []object{}})
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("GC waited %s for an attachment that is being added", took)
	}
	if got := n.attachments(); len(got) != 1 {
		t.Errorf("attachments after GC: want the held one, got %q", got)
	}
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	p.works("GC", object{"cni.dev/valid-attachments": []object{}})
	if got := n.attachments(); len(got) != 0 {
		t.Errorf("attachments after GC: want none, got %q", got)
	}
}

// ADDs that run while GC runs: each one that ends after GC's look must be whole; each one before must be gone, all of it.
func TestGCBesideRunningAdds(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipMasq": true, "ipam": ranges("10.9.0.0/16", "fd00:9::/64").with(object{"reuseDelay": "0s"})})
	n.warm(c)
	start := n.snapshot()
	for round := range 6 {
		var pods []*pod
		for i := range 3 {
			pods = append(pods, n.pod(fmt.Sprintf("c%d-%d", round, i), c))
		}
		var wg sync.WaitGroup
		outs := make([]answer, len(pods))
		for i, p := range pods {
			wg.Go(func() { outs[i] = p.call("ADD", nil) })
		}
		for range 3 {
			wg.Go(func() { pods[0].works("GC", object{"cni.dev/valid-attachments": []object{}}) })
			time.Sleep(10 * time.Millisecond)
		}
		wg.Wait()
		there := n.attachments()
		for i, p := range pods {
			if outs[i].code != 0 {
				t.Errorf("ADD of %s beside GC: %s", p.id, outs[i])
				continue
			}
			if slices.Contains(there, "pods/"+p.id+"/eth0") {
				p.works("CHECK", nil)
			} else if taps := tapNames(t, p.netns); len(taps) > 0 {
				t.Errorf("GC took the record of %s and left its %q", p.id, taps)
			}
			p.works("DEL", nil)
		}
		wantSame(t, fmt.Sprint("after round ", round), start, n.snapshot())
	}
}

// libcni deletes by its cache what the runtime does not name, and then calls GC with the list by both of its names.
func TestGCByLibcni(t *testing.T) {
	n := newNode(t)
	w := n.network("pods", conf(nil))
	live, dead, lost := n.pod("live", conf(nil)), n.pod("dead", conf(nil)), n.pod("lost", conf(nil))
	w.add(runtimeConf(live, nil))
	w.add(runtimeConf(dead, nil))
	lost.add() // past libcni: its cache does not know it
	n.in(func() {
		err := w.cni.GCNetworkList(context.Background(), w.list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "live", IfName: "eth0"}}})
		if err != nil {
			t.Errorf("GC by libcni: %v", err)
		}
	})
	if diff := cmp.Diff([]string{"pods/live/eth0"}, n.attachments()); diff != "" {
		t.Errorf("attachments after GC (-want +got):\n%s", diff)
	}
	w.check(runtimeConf(live, nil))
	w.del(runtimeConf(live, nil))
}

// coverVarLib gives the tests a /var/lib of their own: cnitool keeps its cache there.
func coverVarLib(t testing.TB) {
	t.Helper()
	if err := unix.Mount("tapir-test", "/var/lib", "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("/var/lib", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// cnitool is libcni at the command line. Its gc sends no list at all.
func TestCnitool(t *testing.T) {
	n := newNode(t)
	netDir := t.TempDir()
	coverVarLib(t)
	list := marshal(t, object{"cniVersion": "1.1.0", "name": "pods", "plugins": []object{
		neighbours[1].conf.with(object{"ipam": neighbours[1].hostLocal(t.TempDir())}), chainConf(nil),
	}})
	if err := os.WriteFile(filepath.Join(netDir, "10-pods.conflist"), list, 0o600); err != nil {
		t.Fatal(err)
	}
	p := n.pod("by cnitool", nil)
	testnode.In(t, p.netns, func() { n.sysctl("net/ipv6/conf/default/accept_dad", "0") })
	cnitool := func(verb string) answer {
		cmd := exec.Command(filepath.Join(refplugins(t), "cnitool"), verb, "pods", p.netns)
		cmd.Env = []string{"NETCONFPATH=" + netDir, "CNI_PATH=" + strings.Join(cniPath(t), ":"), "PATH=" + os.Getenv("PATH")}
		return n.runCmd(cmd)
	}
	sandbox := p.sandbox()
	add := cnitool("add")
	if add.code != 0 {
		t.Fatal(add)
	}
	r := parseResult(t, add.stdout, "1.1.0")
	if i := r.Interfaces[len(r.Interfaces)-1]; i.Name != "tap-eth0" || i.Sandbox != p.netns {
		t.Errorf("the last interface of the result: want the TAP, got %v", i)
	}
	for _, verb := range []string{"check", "status"} {
		if out := cnitool(verb); out.code != 0 {
			t.Errorf("cnitool %s: %s", verb, out)
		}
	}
	if out := cnitool("gc"); out.code == 0 || !strings.Contains(string(out.stdout)+string(out.stderr), "cni.dev/valid-attachments: is missing") {
		t.Errorf("cnitool gc, which sends no list: want tapir's refusal, got %s", out)
	}
	if got := n.attachments(); len(got) > 0 {
		t.Errorf("libcni deletes by its cache before it calls GC; attachments left: %q", got)
	}
	if out := cnitool("del"); out.code != 0 {
		t.Errorf("cnitool del: %s", out)
	}
	wantSame(t, "the sandbox after cnitool del", sandbox, p.sandbox())
}
