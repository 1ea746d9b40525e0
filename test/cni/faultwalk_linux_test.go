package cni_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

// A mode is a kind of ADD, whose steps are made to fail one by one.
type mode struct {
	name string
	// pod prepares a pod whose ADD would succeed, and names what else its failed ADD must leave alone.
	pod func(t *testing.T, n *node) (p *pod, others func() []string)
}

var modes = []mode{
	{"TAP", func(_ *testing.T, n *node) (*pod, func() []string) { return n.pod("c1", conf(nil)), nil }},
	{"multi-queue TAP by tcx with masquerade", func(_ *testing.T, n *node) (*pod, func() []string) {
		return n.pod("c1", conf(object{"ipMasq": true, "queues": 2, "redirect": "tcx"})), nil
	}},
	{"plain pod", func(_ *testing.T, n *node) (*pod, func() []string) {
		return n.pod("c1", conf(object{"when": "annotated"})), nil
	}},
	{"after bridge", func(t *testing.T, n *node) (*pod, func() []string) {
		c := n.chain("c1", neighbours[0].conf.with(object{"ipam": neighbours[0].hostLocal(t.TempDir())}), chainConf(nil))
		return c.pod, c.sandbox
	}},
	{"after bridge by clsact", func(t *testing.T, n *node) (*pod, func() []string) {
		c := n.chain("c1", neighbours[0].conf.with(object{"ipam": neighbours[0].hostLocal(t.TempDir())}), chainConf(object{"redirect": "clsact"}))
		return c.pod, c.sandbox
	}},
	{"addresses of host-local", func(t *testing.T, n *node) (*pod, func() []string) {
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
	w.before, w.kept = n.snapshot(w.p.netns), w.others()
	return w
}

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
	if diff := cmp.Diff(w.before, w.n.snapshot(w.p.netns)); diff != "" {
		ok = false
		w.t.Errorf("%s with %s failing (-before +after):\n%s", what, run.hit, diff)
	}
	if diff := cmp.Diff(w.kept, w.others()); diff != "" {
		ok = false
		w.t.Errorf("%s with %s failing, what others have (-before +after):\n%s", what, run.hit, diff)
	}
	if noTemp(w.t); !ok {
		w.t.Logf("%s said %s", what, run)
	}
}

// wantError wants the plugin to have said what failed, in a CNI error with a code and nothing beside it.
func (w *walk) wantError(run faulted) {
	w.t.Helper()
	var e types.Error
	if err := json.Unmarshal(run.stdout, &e); err != nil || e.Code == 0 || e.Msg == "" || run.code != 1 {
		w.t.Errorf("ADD with %s failing: want a CNI error with a code, got %s", run.hit, run)
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
			for nth := 1; ; nth++ {
				run := w.add(nth)
				switch {
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
			if failed < 30 {
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
			for nth := 1; nth <= total; nth += 4 {
				run := w.add(nth)
				if run.code == 0 {
					t.Errorf("ADD with %s and all later calls failing: %s", run.hit, run)
				} else {
					w.wantError(run)
				}
				w.del(run)
				w.wantClean("DEL after ADD", run)
			}
		})
	}
}

// The kernel does what it is asked and its answer is lost: ADD cannot know. DEL cleans up all the same.
func TestDelCleansUpAfterLostAnswers(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			w := newWalk(t, m, fault{calls: answerCalls})
			for nth := 1; ; nth += 2 {
				run := w.add(nth)
				if run.code != 0 {
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
