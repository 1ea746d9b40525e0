package cni_test

import (
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Clean-ups beside the first and only ADDs of a node: an ADD that succeeds has all it needs, whatever they take away.
func TestCleanupWhileOnlyAddsRun(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipMasq": true, "ipam": ranges("10.9.0.0/16", "fd00:9::/64")})
	p := n.pod("only", c)
	failed := 0
	const rounds = 15
	for range rounds {
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 3 {
				if out := n.ctl("cleanup", "--yes"); out.code != 0 {
					t.Errorf("clean-up: %s", out)
				}
			}
		})
		out := p.call("ADD", nil)
		wg.Wait()
		if out.code != 0 {
			wantCode(t, out, codeIO) // the programs were taken away before their first use
			failed++
		} else {
			p.works("CHECK", nil)
			for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
				if v := n.readSysctl(name); v != "1" {
					t.Errorf("%s is %s with a pod that was just added", name, v)
				}
			}
		}
		p.works("DEL", nil)
		if out := n.ctl("cleanup", "--yes"); out.code != 0 {
			t.Errorf("clean-up: %s", out)
		}
	}
	if failed == rounds {
		t.Error("no ADD succeeded: the test shows nothing")
	}
}

// First ADDs at once: what one has changed already is not what the node had before.
func TestFirstAddsAtOnceRememberTheNodesSysctls(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipam": ranges("10.9.0.0/16", "fd00:9::/64")})
	pods := []*pod{n.pod("a", c), n.pod("b", c), n.pod("c", c), n.pod("d", c)}
	before := n.forwardingSysctls()
	for range 5 {
		var wg sync.WaitGroup
		for _, p := range pods {
			wg.Go(func() {
				if out := p.call("ADD", nil); out.code != 0 {
					t.Errorf("ADD of %s: %s", p.id, out)
				}
			})
		}
		wg.Wait()
		for _, p := range pods {
			p.works("DEL", nil)
		}
		if out := n.ctl("cleanup", "--yes", "--state-dir", stateDir, "--state-dir", stateDir+"/"); out.code != 0 {
			t.Errorf("clean-up: %s", out)
		}
		wantSame(t, "sysctls after the clean-up", before, n.forwardingSysctls())
	}
}

// An ADD that cannot turn forwarding on has saved the old value; the clean-up must not fail to put back what is there.
func TestCleanupWithReadOnlySysctls(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""))
	defer func() { must(unix.Unmount("/proc/sys", 0)) }()
	must(unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	wantText(t, p.fails("ADD", codeIO, nil), "turn forwarding on", "read-only")
	p.works("DEL", nil)
	out := n.ctl("cleanup", "--yes")
	if out.code != 0 || exists(stateDir) {
		t.Errorf("clean-up: state there %t: %s", exists(stateDir), strings.TrimSpace(out.String()))
	}
}
