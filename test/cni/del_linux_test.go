package cni_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// warm does one ADD and DEL, so that what all attachments share is there: pins, nftables table, state, sysctls.
func (n *node) warm(c object) {
	n.t.Helper()
	p := n.pod("warm", c)
	p.add()
	p.works("DEL", nil)
}

func TestDelBeforeAnyAddLeavesNothing(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(object{"ipMasq": true}))
	before := n.snapshot(p.netns)
	p.works("DEL", nil)
	wantSame(t, "DEL before any ADD", before, n.snapshot(p.netns))
	for _, path := range []string{stateDir, pinDir} {
		if exists(path) {
			t.Errorf("DEL before any ADD made %s", path)
		}
	}
}

// A DEL that names the host's own netns must not take it for the sandbox.
func TestDelWithHostNetnsTouchesNoHostLink(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	p.add()
	n.in(func() { // as if somebody had moved a device of the attachment out
		addTap(t, "moved")
		mustDo(t, netlink.LinkSetAlias(link(t, "moved"), "tapir:pods/c1/eth0"))
	})
	p.netns = n.netns
	p.fails("DEL", codeNetns, nil) // of the CNI library, after tapir has done its work
	if names := n.linkNames(); !slices.Equal(names, []string{"lo", "up0", "moved"}) {
		t.Errorf("links of the node after DEL: %q", names)
	}
}

func TestGCOnBareNodeMakesNothing(t *testing.T) {
	n := newNode(t)
	p := n.pod("a", conf(object{"cni.dev/valid-attachments": []object{}, "turbo": true, "queues": "many"}))
	before := n.snapshot()
	p.works("GC", nil)
	wantSame(t, "after GC", before, n.snapshot())
	if exists(stateDir) || exists(pinDir) {
		t.Error("GC made the state directory or pins")
	}
}

func TestDelRemovesEverything(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipMasq": true, "queues": 2})
	n.warm(c)
	for _, tt := range []struct {
		name string
		// before runs between ADD and DEL.
		before func(t *testing.T, p *pod)
		over   object
	}{
		{"as runtimes call it", func(*testing.T, *pod) {}, nil},
		{"without netns", func(_ *testing.T, p *pod) { p.netns = "" }, nil},
		{"netns gone", func(t *testing.T, p *pod) { removeNetns(t, p.netns) }, nil},
		{"netns gone and not named", func(t *testing.T, p *pod) { removeNetns(t, p.netns); p.netns = "" }, nil},
		{"netns is an ordinary file now", func(t *testing.T, p *pod) {
			removeNetns(t, p.netns)
			if err := os.WriteFile(p.netns, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"another netns under that path", func(t *testing.T, p *pod) { removeNetns(t, p.netns); p.netns = testnode.NewNetns(t) }, nil},
		{"keys that this version does not know", func(*testing.T, *pod) {}, object{"turbo": true, "queues": "many", "xdp": object{"mode": "warp"}}},
		{"empty prevResult", func(*testing.T, *pod) {}, object{"prevResult": object{}}},
		{"TAP deleted", func(t *testing.T, p *pod) { deleteLink(t, p.netns, "tap-eth0") }, nil},
		{"veth deleted", func(t *testing.T, p *pod) { deleteLink(t, p.netns, "eth0") }, nil},
		{"devices renamed", func(t *testing.T, p *pod) {
			testnode.In(t, p.netns, func() {
				for _, name := range []string{"eth0", "tap-eth0"} {
					if err := netlink.LinkSetName(link(t, name), "new-"+name); err != nil {
						t.Fatal(err)
					}
				}
			})
		}, nil},
		{"group taken off", func(t *testing.T, p *pod) {
			testnode.In(t, p.netns, func() {
				if err := netlink.LinkSetGroup(link(t, "tap-eth0"), 0); err != nil {
					t.Fatal(err)
				}
			})
		}, nil},
		{"state lost", func(t *testing.T, _ *pod) {
			if err := os.RemoveAll(stateDir); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"pins lost", func(t *testing.T, _ *pod) {
			if err := os.RemoveAll(pinDir); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"nftables table lost", func(_ *testing.T, p *pod) { p.n.tool("nft", "delete", "table", "inet", "tapir") }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := n.pod("c1", c)
			netns := p.netns
			before := n.snapshot()
			r := p.add()
			host := hostEnd(t, r)
			tt.before(t, p)
			p.works("DEL", tt.over)
			after := n.snapshot()
			if tt.name == "nftables table lost" {
				before = without(before, "table ")
			}
			wantSame(t, "the node", before, after)
			for _, name := range n.linkNames() {
				if name == host {
					t.Errorf("the host end %s is still there", name)
				}
			}
			if info, err := os.Stat(netns); err == nil && info.Size() == 0 && isNetns(netns) {
				testnode.In(t, netns, func() {
					if links := allLinks(t); len(links) != 1 {
						t.Errorf("the sandbox still has %d links, want lo alone", len(links))
					}
				})
			}
			p.works("DEL", tt.over) // and again
			noTemp(t)
		})
	}
}

// without takes out the lines that start so.
func without(lines []string, prefixes ...string) (out []string) {
	for _, l := range lines {
		keep := true
		for _, p := range prefixes {
			keep = keep && !strings.HasPrefix(l, p)
		}
		if keep {
			out = append(out, l)
		}
	}
	return out
}

func isNetns(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && fs.Type == unix.NSFS_MAGIC
}

func removeNetns(t testing.TB, path string) {
	t.Helper()
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func deleteLink(t testing.TB, netns, name string) {
	t.Helper()
	testnode.In(t, netns, func() {
		if err := netlink.LinkDel(link(t, name)); err != nil {
			t.Fatal(err)
		}
	})
}

// tool runs a tool of the system on the node.
func (n *node) tool(name string, args ...string) {
	n.t.Helper()
	if out := n.runCmd(exec.Command(name, args...)); out.code != 0 {
		n.t.Fatalf("%s %q: %s", name, args, out)
	}
}
