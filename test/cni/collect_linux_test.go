package cni_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/plugin"
	"github.com/tapir-cni/tapir/state"
)

// ids are the container ids of the attachments that are recorded.
func (n *node) ids() (out []string) {
	var list []struct{ ContainerID string }
	n.ctlJSON(&list, "list")
	for _, a := range list {
		out = append(out, a.ContainerID)
	}
	slices.Sort(out)
	return out
}

// gc runs tapirctl gc with the live sandboxes on its input, whose attachments may be as young as they are.
func (n *node) gc(live string, flags ...string) answer {
	return n.run([]byte(live), os.Environ(), "tapirctl", append([]string{"gc", "--live", "-", "--grace", "0s"}, flags...)...)
}

func TestCollectRemovesWhatTheRuntimeHasNot(t *testing.T) {
	n := newNode(t)
	alive, dead, other := n.pod("alive", conf(nil)), n.pod("dead", conf(nil)), n.pod("other", conf(object{"name": "others"}))
	g := boot(alive, alive.add())
	dead.add()
	other.add()

	// The dry run says what would go, and nothing goes.
	out := n.gc("alive\n")
	wantText(t, string(out.stdout), "would remove", "pods/dead/eth0", "others/other/eth0", "tapirctl gc --yes")
	wantSame(t, "after the dry run", []string{"alive", "dead", "other"}, n.ids())

	out = n.gc("\n alive \nunknown\n", "--yes")
	wantText(t, string(out.stdout), "removed", "pods/dead/eth0", "others/other/eth0")
	wantSame(t, "after the collection", []string{"alive"}, n.ids())
	g.wantPing(nodeIP4, nodeIP6)

	// Its address is free again for who asks for it.
	again := n.pod("again", dead.conf)
	again.args = "IP=10.9.0.3"
	again.add()
}

func TestCollectKeepsTheYoungAndWhatIsBeingAdded(t *testing.T) {
	n := newNode(t)
	p := n.pod("young", conf(nil))
	p.add()
	out := n.run([]byte("other\n"), os.Environ(), "tapirctl", "gc", "--live", "-", "--yes")
	wantText(t, string(out.stdout), "kept", "pods/young/eth0", "younger than 1m0s")
	wantSame(t, "the young one", []string{"young"}, n.ids())

	hold, err := state.AcquireHold(t.Context(), plugin.DefaultStateDir, state.Key{Network: "pods", ContainerID: "young", IfName: "eth0"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	n.gc("other\n", "--yes")
	wantSame(t, "the one that is held", []string{"young"}, n.ids())
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	n.gc("other\n", "--yes")
	wantSame(t, "control: the one that nobody holds", []string(nil), n.ids())
}

// An empty list is more often a fault than an empty node.
func TestCollectDoubtsAnEmptyList(t *testing.T) {
	n := newNode(t)
	n.pod("c1", conf(nil)).add()
	if out := n.gc("", "--yes"); out.code != 1 || !strings.Contains(string(out.stderr), "--allow-empty") {
		t.Errorf("an empty list: want exit code 1 and the way out, got %s", out)
	}
	wantSame(t, "after an empty list", []string{"c1"}, n.ids())
	if out := n.gc("", "--yes", "--allow-empty"); out.code != 0 {
		t.Errorf("--allow-empty: %s", out)
	}
	wantSame(t, "after --allow-empty", []string(nil), n.ids())
	for _, flags := range [][]string{nil, {"--live", "-", "--runtime-endpoint", "unix:///run/x"}} {
		if out := n.ctl(append([]string{"gc"}, flags...)...); out.code != 2 {
			t.Errorf("gc %v: want exit code 2, got %s", flags, out)
		}
	}
}

// The list comes from the runtime by crictl: a stand-in says what it was asked and answers as crictl does, which is not
// built here.
func TestCollectAsksTheRuntimeByCrictl(t *testing.T) {
	n := newNode(t)
	for _, id := range []string{"kept", "gone"} {
		n.pod(id, conf(nil)).add()
	}
	dir := t.TempDir()
	asked := filepath.Join(dir, "asked")
	crictl := func(script string) answer {
		text := fmt.Sprintf("#!/bin/sh\necho \"$@\" > %s\n%s\n", asked, script)
		if err := os.WriteFile(filepath.Join(dir, "crictl"), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		env := append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		return n.run(nil, env, "tapirctl", "gc", "--runtime-endpoint", "unix:///run/cri.sock", "--grace", "0s", "--yes")
	}
	if out := crictl("echo 'connect: connection refused' >&2; exit 1"); out.code != 1 || !strings.Contains(string(out.stderr), "connection refused") {
		t.Errorf("a runtime that is down: want exit code 1 and crictl's words, got %s", out)
	}
	wantSame(t, "with the runtime down", []string{"gone", "kept"}, n.ids())
	if out := crictl("echo kept"); out.code != 0 {
		t.Errorf("gc: %s", out)
	}
	wantSame(t, "after the collection", []string{"kept"}, n.ids())
	words, err := os.ReadFile(asked)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(words), "--runtime-endpoint unix:///run/cri.sock pods --quiet --no-trunc\n"; got != want {
		t.Errorf("what crictl was asked: want %q, got %q", want, got)
	}
}
