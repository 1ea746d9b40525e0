package reconcile

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Outcome is what became of a finding.
type Outcome string

// The outcomes.
const (
	Waiting   Outcome = "waiting"   // it looks dead; the grace time runs
	Repaired  Outcome = "repaired"  // put right, or removed
	Reported  Outcome = "reported"  // by policy, or there is no repair
	Failed    Outcome = "failed"    // the repair did not succeed; it is tried again
	Contested Outcome = "contested" // it came back too often: somebody else makes it so, and it is reported alone for a while
	Planned   Outcome = "planned"   // what would be repaired, but for the dry run
)

// Finding is one thing that is or was wrong.
type Finding struct {
	Kind    Kind      `json:"kind"`
	Object  string    `json:"object"` // the attachment as network/container id/ifname, or what it is of the node
	Thing   string    `json:"thing"`  // of it: a device, an address; may be empty
	What    string    `json:"what"`   // wanted and got
	Outcome Outcome   `json:"outcome"`
	Error   string    `json:"error,omitempty"` // of a repair that failed
	Time    time.Time `json:"time"`            // when it became so
}

func (f Finding) name() string { return string(f.Kind) + "\x00" + f.Object + "\x00" + f.Thing }

// Result is what was found and done of one kind since the start.
type Result struct {
	Kind   Kind   `json:"kind"`
	Policy Policy `json:"policy"`

	Found     uint64 `json:"found"` // each once for as long as it lasts
	Repaired  uint64 `json:"repaired"`
	Reported  uint64 `json:"reported"`
	Failed    uint64 `json:"failed"` // attempts
	Contested uint64 `json:"contested"`

	Open int      `json:"open"`           // findings that are there now
	Last *Finding `json:"last,omitempty"` // the latest, whatever became of it
}

// record is all findings and counts. Its methods may be called by several goroutines at once.
type record struct {
	log *slog.Logger

	mu     sync.Mutex
	counts map[Kind]*Result
	open   map[string]Finding
}

func newRecord(log *slog.Logger) *record {
	r := &record{log: log, counts: map[Kind]*Result{}, open: map[string]Finding{}}
	for _, k := range Kinds() {
		r.counts[k] = &Result{Kind: k}
	}
	return r
}

// put takes all findings of one object, and of those kinds alone where some are named: what was open of it and is not among them is over.
func (r *record) put(object string, kinds []Kind, now []Finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, f := range r.open {
		if f.Object != object || len(kinds) > 0 && !slices.Contains(kinds, f.Kind) {
			continue
		}
		if !slices.ContainsFunc(now, func(n Finding) bool { return n.name() == name }) {
			delete(r.open, name)
		}
	}
	for _, f := range now {
		r.take(f)
	}
}

// has tells whether something of an object is open.
func (r *record) has(object string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.open {
		if f.Object == object {
			return true
		}
	}
	return false
}

// keep ends the findings of kinds whose objects are none of those.
func (r *record) keep(kinds []Kind, objects map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, f := range r.open {
		if slices.Contains(kinds, f.Kind) && !objects[f.Object] {
			delete(r.open, name)
		}
	}
}

// take counts a finding and logs it where it is new, or another than before.
func (r *record) take(f Finding) {
	if f.Time.IsZero() {
		f.Time = time.Now()
	}
	c := r.counts[f.Kind]
	if c == nil {
		c = &Result{Kind: f.Kind}
		r.counts[f.Kind] = c
	}
	old, was := r.open[f.name()]
	if !was {
		c.Found++
	}
	same := was && old.Outcome == f.Outcome && old.What == f.What && old.Error == f.Error
	if same {
		f.Time = old.Time
	}
	switch f.Outcome {
	case Repaired:
		c.Repaired++
	case Failed:
		c.Failed++
	case Reported, Planned:
		if !same {
			c.Reported++
		}
	case Contested:
		if !same {
			c.Contested++
		}
	}
	c.Last = &f
	if f.Outcome == Repaired {
		delete(r.open, f.name())
	} else {
		r.open[f.name()] = f
	}
	if !same {
		r.tell(f)
	}
}

func (r *record) tell(f Finding) {
	args := []any{"kind", string(f.Kind), "object", f.Object, "reason", f.What}
	if f.Thing != "" {
		args = append(args, "thing", f.Thing)
	}
	if f.Error != "" {
		args = append(args, "error", strings.ReplaceAll(f.Error, "\n", "; "))
	}
	switch f.Outcome {
	case Repaired:
		r.log.Warn("put right or removed", args...)
	case Waiting:
		r.log.Info("looks dead; waiting", args...)
	case Planned:
		r.log.Warn("would put right or remove", args...)
	case Contested:
		r.log.Error("differs again; others change it, and it is left to them for now", args...)
	case Failed:
		r.log.Error("could not put right or remove", args...)
	default:
		r.log.Warn("differs", args...)
	}
}

// results are the counts by kind, in the order of [Kinds].
func (r *record) results(p Policies) []Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Result, 0, len(r.counts))
	for _, k := range Kinds() {
		c := *r.counts[k]
		c.Policy = p.Of(k)
		for _, f := range r.open {
			if f.Kind == k {
				c.Open++
			}
		}
		out = append(out, c)
	}
	return out
}

// findings are those that are there now, oldest first.
func (r *record) findings() []Finding {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.open), func(a, b Finding) int {
		if c := a.Time.Compare(b.Time); c != 0 {
			return c
		}
		return strings.Compare(a.name(), b.name())
	})
}
