package shortcut_test

import (
	"testing"

	"github.com/tapir-cni/tapir/test/bench/guest"
)

// flows are one of each family and direction.
func flows(a, b *machine) []*flow {
	var out []*flow
	for family := range families {
		out = append(out, converse(a, b, family), converse(b, a, family))
	}
	return out
}

func goOn(all []*flow, when string) {
	for _, f := range all {
		f.t.Helper()
		f.goesOn(when)
	}
}

func end(all []*flow) {
	for _, f := range all {
		f.t.Helper()
		f.ends()
	}
}

// The shortcut is switched under long flows, while the host drops what its conntrack finds invalid: flows of before live on, by the
// default path once they had it, and new ones take the shortcut wherever it is on.
func TestSwitchingUnderFlows(t *testing.T) {
	for name, card := range map[string]int{"no offloads": guest.OffloadNone, "TSO": guest.OffloadTSO} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			a, b := n.boot("a", conf("native", nil)), n.boot("b", conf("native", nil))
			a.offload(card)
			b.offload(card)
			long := flows(a, b)
			ofA, ofB := both(a, b, func() { goOn(long, "at first") })
			for _, w := range []ways{ofA, ofB} {
				w.wantTaken(t, "at first", "xdp_to_guest")
				if n := w["xdp_pass_conntrack"]; n > 0 {
					t.Errorf("at first: %d frames on the default path: %v", n, w)
				}
			}
			for _, step := range []struct {
				what string
				args [][]string
				on   bool
			}{
				{"off for one", [][]string{{"off", "a"}}, false},
				{"off for both", [][]string{{"off", "b"}}, false},
				{"on for one", [][]string{{"on", "b", "--mode", "native"}}, false},
				{"on for both", [][]string{{"on", "a", "--mode", "native"}}, true},
				{"generic", [][]string{{"on", "a", "--mode", "generic"}, {"on", "b", "--mode", "generic"}}, true},
				{"mixed", [][]string{{"on", "a", "--mode", "native"}}, true},
			} {
				for _, args := range step.args {
					n.ctl(append([]string{"xdp"}, args...)...)
				}
				goOn(long, step.what)
				fresh := converse(a, b, ipv4)
				w := a.during(func() { fresh.goesOn(step.what) })
				if got := w.taken() > 0; got != step.on {
					t.Errorf("%s: a new flow on the shortcut: %t, want %t: %v", step.what, got, step.on, w)
				}
				if step.on && w["xdp_pass_conntrack"]+w["tc_pass_conntrack"] == 0 {
					t.Errorf("%s: no frame of the old flows kept the default path: %v", step.what, w)
				}
				fresh.ends()
			}
			end(long)
		})
	}
}
