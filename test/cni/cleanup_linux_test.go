package cni_test

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The clean-up of one state directory must not take map entries, pins, table or sysctls from the pods of another.
func TestCleanupLeavesPodsOfOtherStateDirAlone(t *testing.T) {
	n := newNode(t)
	const other = "/run/tapir-other"
	t.Cleanup(func() { n.ctl("cleanup", "--yes", "--state-dir", other) })
	p := n.pod("c1", conf(object{"stateDir": other, "ipMasq": true}))
	r := p.add()
	out := n.ctl("cleanup", "--yes")
	if out.code != 0 {
		t.Errorf("clean-up: %s", out)
	}
	wantText(t, string(out.stdout), "kept", "table, pins, sysctls, state")
	p.works("CHECK", nil)
	g := boot(p, r)
	g.wantPing(nodeIP4, nodeIP6)
	if v := n.readSysctl("net/ipv4/ip_forward"); v != "1" {
		t.Errorf("ip_forward is %s after the clean-up", v)
	}
	p.works("DEL", nil)
	if out := n.ctl("cleanup", "--yes", "--state-dir", other); out.code != 0 || exists(pinDir) || exists(other) {
		t.Errorf("clean-up with --state-dir: pins there %t, state there %t: %s", exists(pinDir), exists(other), out)
	}
}

// An ADD has map entries before it has a record: a clean-up that reads both at the wrong times takes the entries away.
func TestCleanupWhileAddsRun(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipam": ranges("10.9.0.0/16", "fd00:9::/64")})
	n.pod("bystander", c).add()
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		runs := 0
		for {
			select {
			case <-stop:
				done <- runs
				return
			default:
			}
			if out := n.ctl("cleanup", "--yes"); out.code != 0 {
				t.Errorf("clean-up: %s", out)
			}
			runs++
		}
	}()
	var wg sync.WaitGroup
	for _, id := range []string{"a", "b"} {
		p := n.pod(id, c)
		wg.Go(func() {
			for range 20 {
				if out := p.call("ADD", nil); out.code != 0 {
					t.Errorf("ADD: %s", out)
				}
				if out := p.call("CHECK", nil); out.code != 0 {
					t.Errorf("CHECK after a clean-up ran beside ADD: %s", out)
				}
				if out := p.call("DEL", nil); out.code != 0 {
					t.Errorf("DEL: %s", out)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	t.Logf("%d clean-ups ran beside 40 ADDs", <-done)
}

// Records that are rebuilt from the kernel know neither all of the devices nor the sandbox.
func TestCleanupAfterLostState(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipMasq": true})
	dead, alive, newer := n.pod("dead", c), n.pod("alive", c), n.pod("newer", c)
	deadEnd := hostEnd(t, dead.add())
	r := alive.add()
	if err := os.RemoveAll(stateDir); err != nil {
		t.Fatal(err)
	}
	newer.add()
	state := strings.Join(n.stateLines(), "\n")
	for _, lease := range []string{"dead/eth0 [{10.9.0.2/", "alive/eth0 [{10.9.0.3/", "newer/eth0 [{10.9.0.4/"} {
		wantText(t, state, "lease pods/"+lease)
	}
	removeNetns(t, dead.netns)
	n.waitGone(deadEnd)
	if out := n.ctl("cleanup", "--yes"); out.code != 0 {
		t.Errorf("clean-up: %s", out)
	}
	if lines := strings.Join(n.snapshot(), "\n"); strings.Contains(lines, "dead") || strings.Contains(lines, "element 0a090002") {
		t.Errorf("something of the dead pod is left:\n%s", lines)
	}
	newer.works("CHECK", nil)
	boot(alive, r).wantPing(nodeIP4, nodeIP6)
	alive.works("DEL", nil)
}

// waitGone waits for a device that goes with its netns, which the kernel takes apart by and by.
func (n *node) waitGone(name string) {
	n.t.Helper()
	for deadline := time.Now().Add(callPatience); slices.Contains(n.linkNames(), name); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("%s is still there", name)
		}
	}
}

func TestCleanupDryRunChangesNothing(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(object{"ipMasq": true}))
	p.add()
	removeNetns(t, p.netns)
	before := n.snapshot()
	out := n.ctl("cleanup")
	if out.code != 0 {
		t.Errorf("clean-up: %s", out)
	}
	wantText(t, string(out.stdout), "would remove", "attachment", "pods/c1/eth0", "is gone", "table", "inet tapir", "net/ipv4/ip_forward = 0", pinDir, stateDir, "--yes")
	wantSame(t, "after a dry run", without(before, "node-", "endpoints", "counters"), without(n.snapshot(), "node-", "endpoints", "counters"))
	if got := n.ctl("cleanup").stdout; string(got) != string(out.stdout) {
		t.Errorf("a second dry run says something else:\n%s\n%s", out.stdout, got)
	}
	yes := n.ctl("cleanup", "--yes")
	if want := strings.ReplaceAll(string(out.stdout), "would remove", "removed"); len(strings.Fields(want)) == 0 || yes.code != 0 {
		t.Errorf("clean-up: %s", yes)
	}
}
