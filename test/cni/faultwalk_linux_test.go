package cni_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// A mode is a kind of ADD, whose steps are made to fail one by one.
type mode struct {
	name string
	// stride is how many calls the walk goes on at a time: 1 where the mode has steps of its own that no other has.
	stride int
	// pod prepares a pod whose ADD would succeed, and names what else its failed ADD must leave alone.
	pod func(t *testing.T, n *node) (p *pod, others func() []string)
}

var modes = []mode{
	{"TAP", 1, func(_ *testing.T, n *node) (*pod, func() []string) { return n.pod("c1", conf(nil)), nil }},
	{"multi-queue TAP by tcx with masquerade", 1, func(_ *testing.T, n *node) (*pod, func() []string) {
		return n.pod("c1", conf(object{"ipMasq": true, "queues": 2, "redirect": "tcx"})), nil
	}},
	{"TAP on the host, DAN file, masquerade", 1, func(t *testing.T, n *node) (*pod, func() []string) {
		dir := newDANDir(t)
		// Another interface of the sandbox is in the file already, and stays there.
		p := n.pod("c1", danConf(dir, object{"ipMasq": true, "queues": 2}))
		first := *p
		first.ifName = "net1"
		first.add()
		return p, func() []string { return danLines(dir) }
	}},
	{"shortcut and bandwidth", 3, func(_ *testing.T, n *node) (*pod, func() []string) {
		n.pod("sharer", withShortcut("native")).add() // its programs are there already, as on any node but a new one
		return n.pod("c1", withShortcut("native").with(object{"runtimeConfig": limits})), nil
	}},
	{"clone of a snapshot with the shortcut", 4, func(_ *testing.T, n *node) (*pod, func() []string) {
		c := withShortcut("native").with(object{"guest": snapshot})
		n.pod("sharer", c).add()
		return n.pod("c1", c), nil
	}},
	{"plain pod", 3, func(_ *testing.T, n *node) (*pod, func() []string) {
		return n.pod("c1", conf(object{"when": "annotated"})), nil
	}},
	{"after bridge", 1, func(t *testing.T, n *node) (*pod, func() []string) {
		c := n.chain("c1", neighbours[0].conf.with(object{"ipam": neighbours[0].hostLocal(t.TempDir())}), chainConf(nil))
		return c.pod, c.sandbox
	}},
	{"after bridge by clsact", 3, func(t *testing.T, n *node) (*pod, func() []string) {
		c := n.chain("c1", neighbours[0].conf.with(object{"ipam": neighbours[0].hostLocal(t.TempDir())}), chainConf(object{"redirect": "clsact"}))
		return c.pod, c.sandbox
	}},
	{"addresses of host-local", 2, func(t *testing.T, n *node) (*pod, func() []string) {
		dir := t.TempDir()
		return n.pod("c1", conf(object{"ipam": own.hostLocal(dir)})), func() []string { return hostLocalLeases(t, dir, "pods") }
	}},
}

// harmless are calls whose failure the Go runtime or a cache of it takes care of.
var harmless = []string{"openat /proc/self/cgroup", "openat /proc/self/mountinfo", "openat /sys/fs/cgroup", "openat /sys/devices/"}

func tellsNothing(call string) bool {
	for _, h := range harmless {
		if strings.HasPrefix(call, h) {
			return true
		}
	}
	return false
}

// A walk makes the calls of one ADD fail one after the other.
type walk struct {
	t      *testing.T
	n      *node
	p      *pod
	others func() []string
	before []string
	path   string
	kept   []string // of others
	ignore []string // lines that start so are none of DEL's business
	fault
}

func newWalk(t *testing.T, m mode, f fault) *walk {
	t.Helper()
	n := newNode(t)
	n.warm(conf(object{"ipMasq": true}))
	f.counts = func(call string) bool { return !tellsNothing(call) }
	w := &walk{t: t, n: n, path: filepath.Join(os.Getenv(binDirEnv), "tapir"), fault: f}
	if w.p, w.others = m.pod(t, n); w.others == nil {
		w.others = func() []string { return nil }
	}
	// A pod that runs keeps what all attachments share.
	n.pod("bystander", conf(object{"ipMasq": true})).add()
	w.before, w.kept = n.snapshot(w.p.netns), w.others()
	return w
}

// Nobody can tell afterwards whether an empty clsact qdisc of the pod's interface was made or found.
const emptyClsact = "qdisc clsact ffff: dev eth0"

// add runs ADD with the n-th call failing.
func (w *walk) add(nth int) faulted {
	w.t.Helper()
	f := w.fault
	f.n = nth
	return w.n.faulty(f, w.p.pluginEnv("ADD"), marshal(w.t, w.p.conf), w.path)
}

// wantClean wants both netns, leases, state, map entries, sets and what others have as they were.
func (w *walk) wantClean(what string, run faulted) {
	w.t.Helper()
	ok := true
	if diff := cmp.Diff(without(w.before, w.ignore...), without(w.n.snapshot(w.p.netns), w.ignore...)); diff != "" {
		ok = false
		w.t.Errorf("%s with %s failing (-before +after):\n%s", what, run.hit, diff)
	}
	if diff := cmp.Diff(without(w.kept, w.ignore...), without(w.others(), w.ignore...)); diff != "" {
		ok = false
		w.t.Errorf("%s with %s failing, what others have (-before +after):\n%s", what, run.hit, diff)
	}
	if strings.Contains(run.hit, "flock "+stateDir+"/adding/") {
		w.del(run) // its file was made and not locked; the next holder removes it
	}
	if left, err := filepath.Glob(filepath.Join(stateDir, "adding", "*")); err != nil || len(left) > 0 {
		ok = false
		w.t.Errorf("%s with %s failing left %q (%v)", what, run.hit, left, err)
	}
	if !ok {
		w.t.Logf("%s said %s", what, run)
		w.del(run) // so that the walk can go on
	}
}

// saidResult tells of a run that failed after all: the library looks at CNI_NETNS again when ADD has said its result.
func (f faulted) saidResult() bool { return bytes.Contains(f.stdout, []byte(`"interfaces"`)) }

// wantError wants the plugin to have said what failed, in a CNI error with a code and nothing beside it.
func (w *walk) wantError(run faulted) {
	w.t.Helper()
	var e types.Error
	if err := json.Unmarshal(run.stdout, &e); err != nil || e.Code == 0 || e.Msg == "" || strings.Contains(e.Msg, "\n") || run.code != 1 {
		w.t.Errorf("ADD with %s failing: want a CNI error with a code, in one line, got %s", run.hit, run)
	}
	// The first error is the one that is said; the BPF library's probes, by which it makes maps, swallow theirs.
	if !w.onward && !strings.Contains(run.hit, "bpf command 0") && !strings.Contains(e.Msg+e.Details, unix.EIO.Error()) {
		w.t.Errorf("ADD with %s failing: want that in the error, got %s", run.hit, run)
	}
}

// del runs DEL, which must succeed.
func (w *walk) del(run faulted) {
	w.t.Helper()
	if out := w.p.plugin("tapir", "DEL", w.p.conf); out.code != 0 {
		w.t.Errorf("DEL after ADD with %s failing: %s", run.hit, out)
	}
}

// Each kernel call of ADD fails once. ADD then fails and takes everything back, or it can do without, and is whole.
func TestAddTakesBackWhateverFails(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			w := newWalk(t, m, fault{calls: changingCalls})
			failed, tolerated := 0, map[string]int{}
			for nth := 1; ; nth += m.stride {
				run := w.add(nth)
				switch {
				case run.code != 0 && run.saidResult():
					w.del(run)
				case run.code != 0:
					failed++
					w.wantError(run)
				default:
					if out := w.p.plugin("tapir", "CHECK", w.p.conf); out.code != 0 && run.hit != "" {
						t.Errorf("ADD did without %s, and CHECK says %s", run.hit, out)
					}
					w.del(run)
				}
				w.wantClean("ADD", run)
				if run.hit == "" {
					break
				}
				if run.code == 0 {
					_, what, _ := strings.Cut(run.hit, ", ")
					tolerated[what]++
				}
				if t.Failed() && failed > 200 {
					return
				}
			}
			t.Logf("%d calls failed ADD, it did without %v", failed, tolerated)
			if failed < 60/m.stride {
				t.Errorf("only %d calls failed ADD: the test shows nothing", failed)
			}
		})
	}
}

// From some call on nothing works any more, the rollback included. DEL finds what is left.
func TestDelCleansUpAfterRollbackThatFails(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			w := newWalk(t, m, fault{calls: changingCalls, onward: true})
			total := len(w.add(0).calls)
			w.del(faulted{})
			// Where neither the record was written nor the reservation in the maps could be taken back, DEL cannot
			// know of that: it is the clean-up's, beside a pod that runs.
			whole := w.before
			w.ignore = []string{"endpoints of", "counters of", emptyClsact}
			for nth := 1; nth <= total; nth += 3 + m.stride {
				run := w.add(nth)
				if run.code != 0 && !run.saidResult() {
					w.wantError(run)
				}
				w.del(run)
				w.wantClean("DEL after ADD", run)
			}
			if out := w.n.ctl("cleanup", "--yes"); out.code != 0 {
				t.Errorf("tapirctl cleanup --yes: %s", out)
			}
			wantSame(t, "the clean-up after all this", whole, w.n.snapshot(w.p.netns))
		})
	}
}

// The kernel does what it is asked and its answer is lost: ADD cannot know. DEL cleans up all the same.
func TestDelCleansUpAfterLostAnswers(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			w := newWalk(t, m, fault{calls: answerCalls})
			w.ignore = []string{emptyClsact}
			for nth := 1; ; nth += 1 + m.stride {
				run := w.add(nth)
				if run.code != 0 && !run.saidResult() {
					w.wantError(run)
				}
				w.del(run)
				w.wantClean("DEL after ADD", run)
				if run.hit == "" {
					break
				}
			}
		})
	}
}

// Killed at any call, ADD leaves what it had done so far. DEL finds it.
func TestDelCleansUpAfterAddWasKilled(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			w := newWalk(t, m, fault{calls: changingCalls, kill: true})
			whole := w.before
			w.ignore = []string{"endpoints of", "counters of", emptyClsact}
			for nth := 1; ; nth += 1 + m.stride {
				run := w.add(nth)
				w.del(run)
				w.wantClean("DEL after ADD", run)
				if run.hit == "" {
					break
				}
			}
			if out := w.n.ctl("cleanup", "--yes"); out.code != 0 {
				t.Errorf("tapirctl cleanup --yes: %s", out)
			}
			wantSame(t, "the clean-up after all this", whole, w.n.snapshot(w.p.netns))
		})
	}
}

// The first ADD on a node also makes what all attachments share: mounts, pins, table, sysctls. What of that a failed one
// leaves is whole, and the clean-up's.
func TestFirstAddOnNodeTakesBack(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(object{"ipMasq": true}))
	w := &walk{t: t, n: n, p: p, path: filepath.Join(os.Getenv(binDirEnv), "tapir"), fault: fault{calls: changingCalls}}
	w.counts = func(call string) bool { return !tellsNothing(call) }
	w.others = func() []string { return nil }
	w.before = n.snapshot(p.netns)
	w.ignore = []string{"table ", "chain "}
	failed := 0
	for nth := 1; ; nth += 9 {
		run := w.add(nth)
		if run.code != 0 && !run.saidResult() {
			failed++
			w.wantError(run)
			w.wantClean("the first ADD", run)
			if left, err := filepath.Glob(filepath.Join(pinDir, "tmp-*")); err != nil || len(left) > 0 {
				t.Errorf("the first ADD with %s failing left %q (%v)", run.hit, left, err)
			}
		}
		w.del(run)
		if out := n.ctl("cleanup", "--yes"); out.code != 0 {
			t.Errorf("tapirctl cleanup --yes after ADD with %s failing: %s", run.hit, out)
		}
		wantSame(t, "after the clean-up, "+run.hit, w.before, n.snapshot(p.netns))
		for _, path := range []string{stateDir, pinDir} {
			if exists(path) {
				t.Errorf("after ADD with %s failing the clean-up left %s", run.hit, path)
			}
		}
		if run.hit == "" {
			break
		}
	}
	if failed < 10 {
		t.Errorf("only %d calls failed ADD: the test shows nothing", failed)
	}
}
