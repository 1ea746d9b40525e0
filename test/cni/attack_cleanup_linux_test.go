package cni_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
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
			wantCode(t, out, codeTryAgain) // clean-up after clean-up took the programs away
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

// Where the clean-up cannot see the sandboxes' paths, as in a container, no pod is dead.
func TestCleanupThatCannotSeeTheSandboxes(t *testing.T) {
	n := newNode(t)
	p := n.pod("alive", conf(nil))
	g := boot(p, p.add())
	script := `mount -t tmpfs none "$1" && exec "$2" cleanup --yes`
	cmd := exec.Command("unshare", "-m", "sh", "-c", script, "sh", filepath.Dir(p.netns), filepath.Join(os.Getenv(binDirEnv), "tapirctl"))
	out := n.runCmd(cmd)
	if out.code != 0 {
		t.Errorf("clean-up: %s", out)
	}
	wantText(t, string(out.stdout), "kept", "1 attachments use them")
	p.works("CHECK", nil)
	g.wantPing(nodeIP4, nodeIP6)
}

// A device of others with an alias like tapir's is not taken for an attachment, and no DEL removes it.
func TestForeignDeviceWithTapirsAlias(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	p.add()
	n.in(func() {
		for name, alias := range map[string]string{"foreign0": "tapir:pods/c1/eth0", "foreign1": "tapir:pods/c2/eth0"} {
			addTap(t, name)
			if err := netlink.LinkSetAlias(link(t, name), alias); err != nil {
				t.Fatal(err)
			}
		}
	})
	if err := os.RemoveAll(stateDir); err != nil {
		t.Fatal(err)
	}
	other := n.pod("c2", conf(nil))
	other.works("DEL", nil)
	p.works("DEL", nil)
	for _, name := range []string{"foreign0", "foreign1"} {
		if !slices.Contains(n.linkNames(), name) {
			t.Errorf("%s is gone", name)
		}
	}
}
