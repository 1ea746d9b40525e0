package cni_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const validKey, olderKey = "cni.dev/valid-attachments", "cni.dev/attachments"

// attachments are those that the state has, as "network/id".
func (n *node) attachments() (out []string) {
	for _, line := range n.stateLines() {
		if name, ok := strings.CutPrefix(line, "attachment "); ok {
			name, _, _ = strings.Cut(name, "/eth0")
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func TestGCRemovesWhatTheRuntimeDoesNotName(t *testing.T) {
	keep := func(ids ...string) []object {
		list := []object{}
		for _, id := range ids {
			list = append(list, object{"containerID": id, "ifname": "eth0"})
		}
		return list
	}
	for _, tt := range []struct {
		name string
		over object
		want []string // of pods/a, pods/b and the other network's storage/a
	}{
		{"one named", object{validKey: keep("a")}, []string{"pods/a", "storage/a"}},
		{"both named", object{validKey: keep("a", "b", "gone")}, []string{"pods/a", "pods/b", "storage/a"}},
		{"none named", object{validKey: keep()}, []string{"storage/a"}},
		{"null", object{validKey: "NULL"}, []string{"storage/a"}},
		{"another interface named", object{validKey: []object{{"containerID": "a", "ifname": "eth1"}}}, []string{"storage/a"}},
		{"by the older key", object{olderKey: keep("b")}, []string{"pods/b", "storage/a"}},
		{"keys of a newer version", object{validKey: keep("a"), "turbo": true, "queues": "many"}, []string{"pods/a", "storage/a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			a, b := n.pod("a", conf(nil)), n.pod("b", conf(nil))
			other := n.pod("a", conf(object{"name": "storage", "ipam": ranges("10.8.0.0/24")}))
			for _, p := range []*pod{a, b, other} {
				p.add()
			}
			caller := &pod{n: n, conf: conf(tt.over)}
			stdin := strings.ReplaceAll(string(marshal(t, caller.conf)), `"NULL"`, "null")
			for range 2 { // it can be repeated
				if out := n.run([]byte(stdin), caller.env("GC"), "tapir"); out.code != 0 || len(out.stdout) > 0 {
					t.Errorf("GC: %s", out)
				}
				if got := n.attachments(); !slices.Equal(got, tt.want) {
					t.Errorf("attachments that stay: %q, want %q", got, tt.want)
				}
			}
			for _, p := range []*pod{a, b, other} {
				if name := p.conf["name"].(string) + "/" + p.id; slices.Contains(tt.want, name) {
					p.works("CHECK", nil)
				} else if strings.Contains(strings.Join(n.snapshot(p.netns), "\n"), "tapir:"+name) {
					t.Errorf("devices of %s are still there", name)
				}
			}
		})
	}
}

// Without the list nothing can be told from GC's call, which is not that nothing lives.
func TestGCWithoutListIsRefused(t *testing.T) {
	n := newNode(t)
	p := n.pod("a", conf(nil))
	p.add()
	wantText(t, p.fails("GC", codeConfig, nil), validKey, "missing")
	p.fails("GC", codeConfig, object{validKey: "all"})
	p.works("CHECK", nil)
}

// Who is being added is in no runtime's list yet.
func TestGCLeavesRunningAddAlone(t *testing.T) {
	n := newNode(t)
	p := n.pod("a", conf(nil))
	p.add()
	// An ADD holds this lock for as long as it runs.
	sum := sha256.Sum256([]byte("pods/a/eth0"))
	hold, err := os.OpenFile(filepath.Join(stateDir, "adding", hex.EncodeToString(sum[:16])), os.O_CREATE|os.O_RDWR, 0o600)
	mustDo(t, err)
	mustDo(t, unix.Flock(int(hold.Fd()), unix.LOCK_EX))
	p.works("GC", object{validKey: []object{}})
	p.works("CHECK", nil)
	mustDo(t, hold.Close())
	p.works("GC", object{validKey: []object{}})
	if got := n.attachments(); len(got) > 0 {
		t.Errorf("once nobody holds it, GC must remove it: %q", got)
	}
}

func TestGCOnBareNodeMakesNothing(t *testing.T) {
	n := newNode(t)
	p := n.pod("a", conf(object{validKey: []object{}}))
	before := n.snapshot()
	p.works("GC", nil)
	wantSame(t, "after GC", before, n.snapshot())
	if exists(stateDir) || exists(pinDir) {
		t.Error("GC made the state directory or pins")
	}
}
