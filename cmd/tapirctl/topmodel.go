package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/page"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/state"
)

// minute is how many samples a sparkline goes back.
const minute = 60

// topRow is one attachment, as "top -o json" prints it. Rates are of the time since the sample before; nil where there was none, or where a counter
// began anew.
type topRow struct {
	watch.ID
	Pod      string       `json:"pod,omitempty"` // namespace/name
	Kind     string       `json:"kind"`
	Status   state.Status `json:"status"`
	Why      string       `json:"why,omitempty"` // why a device or the namespace could not be read
	Device   string       `json:"device"`
	Program  string       `json:"program,omitempty"` // that holds a queue
	Attached int          `json:"attached"`          // queues
	NAPI     int          `json:"napi"`              // queues with NAPI; -1: unknown
	Threaded string       `json:"threaded"`          // yes, no or unknown
	Shortcut string       `json:"shortcut,omitempty"`

	Counters page.Counters `json:"counters"`
	Rates    *topRates     `json:"rates"`

	from, to, drops []float64 // of the last minute, oldest first: bits and frames a second
}

// topRates are per second.
type topRates struct {
	FromFrames float64 `json:"fromFrames"`
	FromBits   float64 `json:"fromBits"`
	ToFrames   float64 `json:"toFrames"`
	ToBits     float64 `json:"toBits"`
	Dropped    float64 `json:"dropped"` // frames, either way
}

func (r topRow) name() string {
	if r.Pod != "" {
		return r.Pod + " " + r.IfName
	}
	return short(r.ContainerID) + " " + r.IfName
}

func (r topRow) dropped() uint64 { return r.Counters.RingDrops + r.Counters.Refused }

// sortKeys are the orders, by the key that chooses them.
var sortKeys = []struct {
	key     rune
	name    string
	compare func(a, b topRow) int // what comes first is less
}{
	{'n', "name", func(a, b topRow) int { return strings.Compare(a.name(), b.name()) }},
	{'f', "from", func(a, b topRow) int { return cmp.Compare(b.rates().FromBits, a.rates().FromBits) }},
	{'t', "to", func(a, b topRow) int { return cmp.Compare(b.rates().ToBits, a.rates().ToBits) }},
	{'d', "drops", func(a, b topRow) int {
		return cmp.Or(cmp.Compare(b.rates().Dropped, a.rates().Dropped), cmp.Compare(b.dropped(), a.dropped()))
	}},
	{'u', "queues", func(a, b topRow) int { return cmp.Compare(b.Attached, a.Attached) }},
}

func sortNames() (names []string) {
	for _, k := range sortKeys {
		names = append(names, k.name)
	}
	return names
}

func (r topRow) rates() topRates {
	if r.Rates == nil {
		return topRates{}
	}
	return *r.Rates
}

// topModel is what top knows: the rows of the last sample, and what is needed for the next one's rates.
type topModel struct {
	at       time.Time
	rows     []topRow
	problems []string
	sort     string // of [sortKeys]
	reverse  bool
	first    int // row that is shown first
	paused   bool

	before map[watch.ID]topRow
	since  time.Time
}

// take makes a sample the last one.
func (m *topModel) take(s *measure.Sample) {
	if !m.since.IsZero() && !s.Time.After(m.since) {
		return // the same one
	}
	past := s.Time.Sub(m.since).Seconds()
	next := make(map[watch.ID]topRow, len(s.Attachments))
	m.rows = m.rows[:0]
	for _, a := range s.Attachments {
		r := rowOf(a, s.QueuesErr != nil)
		if before, ok := m.before[r.ID]; ok {
			r.follow(before, past)
		}
		next[r.ID] = r
		m.rows = append(m.rows, r)
	}
	m.before, m.since, m.at = next, s.Time, s.Time
	m.problems = slices.Clone(s.Problems)
	if s.QueuesErr != nil {
		m.problems = append(m.problems, "NAPI is unknown: "+s.QueuesErr.Error())
	}
	m.arrange()
}

func rowOf(a *measure.Attachment, queuesUnknown bool) topRow {
	r := topRow{
		ID: a.ID, Kind: page.KindOf(a.Record), Status: a.Record.Status, Device: a.Record.TAP.Name, Threaded: unknown, NAPI: -1,
		Shortcut: a.Record.XDP.Mode, Counters: page.CountersOf(a),
	}
	if a.Why != nil {
		r.Why = a.Why.Error()
	}
	if a.Record.PodName != "" {
		r.Pod = a.Record.PodNamespace + "/" + a.Record.PodName
	}
	if r.Device == "" {
		r.Device = a.Record.Host.Name
	}
	if a.TAP != nil {
		r.Attached = a.TAP.Queues
	}
	if !queuesUnknown && len(a.Queues) >= r.Attached { // of one that no process was seen to hold nothing is known
		r.NAPI = 0
		for _, q := range a.Queues {
			if q.NAPI {
				r.NAPI++
			}
			for _, h := range q.Holders {
				r.Program = h.Comm
			}
		}
	}
	if t := a.NAPI.Threaded; t != nil {
		r.Threaded = yesNo(*t != 0)
	}
	return r
}

// follow gives rates to a row that was there before.
func (r *topRow) follow(before topRow, past float64) {
	now, was := r.Counters, before.Counters
	r.from, r.to, r.drops = before.from, before.to, before.drops
	if past <= 0 || now.FromFrames < was.FromFrames || now.ToFrames < was.ToFrames || r.dropped() < before.dropped() {
		return
	}
	per := func(now, was uint64) float64 { return float64(now-was) / past }
	r.Rates = &topRates{
		FromFrames: per(now.FromFrames, was.FromFrames), FromBits: 8 * per(now.FromBytes, was.FromBytes),
		ToFrames: per(now.ToFrames, was.ToFrames), ToBits: 8 * per(now.ToBytes, was.ToBytes), Dropped: per(r.dropped(), before.dropped()),
	}
	push := func(list []float64, v float64) []float64 {
		list = append(slices.Clone(list), v)
		return list[max(0, len(list)-minute):]
	}
	r.from, r.to, r.drops = push(r.from, r.Rates.FromBits), push(r.to, r.Rates.ToBits), push(r.drops, r.Rates.Dropped)
}

func (m *topModel) arrange() {
	compare := sortKeys[0].compare
	for _, k := range sortKeys {
		if k.name == m.sort {
			compare = k.compare
		}
	}
	slices.SortStableFunc(m.rows, func(a, b topRow) int {
		c := cmp.Or(compare(a, b), strings.Compare(a.ID.String(), b.ID.String()))
		if m.reverse {
			return -c
		}
		return c
	})
}

// queues is the column of queues: how many are attached, and what runs on them.
func (r topRow) queues() string {
	switch {
	case r.Kind == "plain":
		return "-"
	case r.Attached == 0:
		return "no VMM"
	case r.NAPI < 0:
		return fmt.Sprintf("%d ?", r.Attached)
	case r.NAPI == 0:
		return fmt.Sprintf("%d no NAPI", r.Attached)
	case r.NAPI < r.Attached:
		return fmt.Sprintf("%d, %d NAPI", r.Attached, r.NAPI)
	case r.Threaded == yes:
		return fmt.Sprintf("%d NAPI thr", r.Attached)
	}
	return fmt.Sprintf("%d NAPI", r.Attached)
}
