package shortcut_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/xdp"
)

// row is what "tapirctl xdp" says of an attachment.
type row struct {
	ContainerID string                 `json:"containerID"`
	Mode        string                 `json:"mode"`
	Why         string                 `json:"why"`
	Version     string                 `json:"version"`
	Flagged     bool                   `json:"flagged"`
	Native      uint64                 `json:"native"`
	Taken       uint64                 `json:"taken"`
	Counters    map[string]xdp.Counter `json:"counters"`
}

// row asks for the pod's.
func (p *pod) row() row {
	p.n.t.Helper()
	var rows []row
	out := p.n.ctl("xdp", p.id, "-o", "json")
	if err := json.Unmarshal(out, &rows); err != nil || len(rows) != 1 {
		p.n.t.Fatalf("tapirctl xdp %s: want one attachment, got %s (%v)", p.id, out, err)
	}
	return rows[0]
}

// ways are frames by reason.
type ways map[string]uint64

func (w ways) String() string {
	var out []string
	for _, reason := range slices.Sorted(maps.Keys(w)) {
		out = append(out, fmt.Sprintf("%s %d", reason, w[reason]))
	}
	return strings.Join(out, ", ")
}

// taken counts the frames that took the shortcut.
func (w ways) taken() (frames uint64) {
	for reason, n := range w {
		if strings.HasSuffix(reason, "_to_guest") || strings.HasSuffix(reason, "_to_uplink") {
			frames += n
		}
	}
	return frames
}

// during runs f and says what became of the frames that the pod's guest sent meanwhile. Where f turns the shortcut on, they are
// counted from there.
func (p *pod) during(f func()) ways {
	p.n.t.Helper()
	before := p.row().Counters
	f()
	after := ways{}
	for reason, c := range p.row().Counters {
		old := before[reason].Frames
		if c.Frames < old {
			old = 0
		}
		if n := c.Frames - old; n > 0 {
			after[reason] = n
		}
	}
	return after
}

// both is during for two pods.
func both(a, b *machine, f func()) (ofA, ofB ways) {
	a.n.t.Helper()
	ofA = a.during(func() { ofB = b.during(f) })
	return ofA, ofB
}

// wantTaken wants frames under each reason.
func (w ways) wantTaken(t testing.TB, what string, reasons ...string) {
	t.Helper()
	for _, r := range reasons {
		if w[r] == 0 {
			t.Errorf("%s: want frames under %s, got %v", what, r, w)
		}
	}
}

// wantNone wants no frame to have taken the shortcut, and some under each of these reasons.
func (w ways) wantNone(t testing.TB, what string, reasons ...string) {
	t.Helper()
	if n := w.taken(); n > 0 {
		t.Errorf("%s: %d frames took the shortcut, want none: %v", what, n, w)
	}
	w.wantTaken(t, what, reasons...)
}
