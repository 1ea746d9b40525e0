package tuner

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/tapir-cni/tapir/agent/watch"
)

// Kind is what a decision is about.
type Kind string

// The kinds of decisions.
const (
	KindRule     Kind = "rule"     // another rule applies to what the guest sends
	KindAttach   Kind = "attach"   // a VMM attached, or tapird began: what belongs to the queue is set anew
	KindThreads  Kind = "threads"  // policy and CPUs of NAPI threads that are new
	KindRing     Kind = "ring"     // the ring's length
	KindProfile  Kind = "profile"  // another profile, or one that cannot be had
	KindGiveBack Kind = "giveBack" // everything as it was
	KindUplink   Kind = "uplink"
)

// Result is what became of a decision.
type Result string

// The results.
const (
	Done   Result = "done"
	Failed Result = "failed" // a part of it at least
	DryRun Result = "dryRun" // it was not carried out
)

// Setting is one setting that a decision changed.
type Setting struct {
	Name   string `json:"name"` // a file of the device's sysfs as in "gro_flush_timeout", or "threads/policy", "threads/cpus"
	Before string `json:"before"`
	After  string `json:"after"`
}

// Decision is one thing that the tuner decided.
type Decision struct {
	Time       time.Time `json:"time"`
	Attachment watch.ID  `json:"attachment,omitzero"` // zero for an uplink
	Device     string    `json:"device"`
	Kind       Kind      `json:"kind"`
	From       string    `json:"from,omitempty"` // rule, profile or length before
	To         string    `json:"to"`
	Why        string    `json:"why"`
	Settings   []Setting `json:"settings,omitempty"` // that were changed; none: all was right already
	Result     Result    `json:"result"`
	Error      string    `json:"error,omitempty"`
}

// Count is how often something was decided.
type Count struct {
	Kind   Kind   `json:"kind"`
	To     string `json:"to"` // rule, profile, "grown", "shrunk", or empty
	Result Result `json:"result"`
	N      uint64 `json:"n"`
}

// State is what the tuner thinks of one TAP now.
type State struct {
	Attachment watch.ID `json:"attachment"`
	Profile    string   `json:"profile"`
	Rule       string   `json:"rule"`
	Candidate  string   `json:"candidate,omitempty"` // a rule that the last sample spoke for
	Why        string   `json:"why,omitempty"`       // of the rule
	Ring       int      `json:"ring"`                // frames
	RingBefore int      `json:"ringBefore"`          // what is given back
	Lost       uint64   `json:"lost"`                // frames to the guest that resizes of the ring cost
	NoNAPI     bool     `json:"noNAPI,omitempty"`    // no queue runs NAPI, so that the rule sets nothing
}

// history keeps what was decided.
type history struct {
	mu     sync.Mutex
	recent []Decision // oldest first
	counts map[Count]uint64
	states map[watch.ID]State
	lost   uint64
}

// recentDecisions is how many are kept.
const recentDecisions = 512

func (h *history) note(d Decision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.recent) == recentDecisions {
		h.recent = slices.Delete(h.recent, 0, 1)
	}
	h.recent = append(h.recent, d)
	to := ""
	switch d.Kind {
	case KindRule:
		to = d.To
	case KindRing:
		to = "grown"
		if len(d.To) < len(d.From) || len(d.To) == len(d.From) && d.To < d.From {
			to = "shrunk"
		}
	}
	if h.counts == nil {
		h.counts = map[Count]uint64{}
	}
	h.counts[Count{Kind: d.Kind, To: to, Result: d.Result}]++
}

// Decisions are the latest, newest first.
func (t *Tuner) Decisions() []Decision {
	t.history.mu.Lock()
	defer t.history.mu.Unlock()
	list := slices.Clone(t.history.recent)
	slices.Reverse(list)
	return list
}

// Counts are all decisions since the Tuner was made, by kind, object and result.
func (t *Tuner) Counts() []Count {
	t.history.mu.Lock()
	defer t.history.mu.Unlock()
	list := make([]Count, 0, len(t.history.counts))
	for c, n := range t.history.counts {
		c.N = n
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.To, b.To), cmp.Compare(a.Result, b.Result))
	})
	return list
}

// State is what the tuner thinks of one attachment's TAP; ok is false where it has not looked at it, or leaves it alone.
func (t *Tuner) State(id watch.ID) (s State, ok bool) {
	t.history.mu.Lock()
	defer t.history.mu.Unlock()
	s, ok = t.history.states[id]
	return s, ok
}

// LostByResize are the frames to guests that resizes of rings cost, as far as the redirect programs' counters tell, since the Tuner was made.
func (t *Tuner) LostByResize() uint64 {
	t.history.mu.Lock()
	defer t.history.mu.Unlock()
	return t.history.lost
}
