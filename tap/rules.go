package tap

import "time"

// Setting is how the kernel polls the queues of a TAP. The zero value is a TAP without NAPI.
type Setting struct {
	NAPI            bool          `json:"napi"`            // IFF_NAPI on each queue; it belongs to the open file, so it comes with the next open
	Threaded        bool          `json:"threaded"`        // a kernel thread a queue polls it, beside the writer
	Batch           bool          `json:"batch"`           // that thread is SCHED_BATCH; see [Setting.ApplyThread]
	GROFlushTimeout time.Duration `json:"groFlushTimeout"` // how long GRO may wait for a segment that continues another; 0: until the poll ends
	DeferHardIRQs   int           `json:"deferHardIRQs"`   // polls after which GRO waits that long; 1 where there is a timeout
}

// Traffic is what was seen of a TAP over some seconds, in the direction that NAPI serves: from the guest. The driver counts a frame for
// each that the VMM writes, before GRO (rx_packets and rx_bytes of the device).
type Traffic struct {
	MTU             int     // of the TAP, in bytes
	BytesPerFrame   float64 // mean, Ethernet header included
	FramesPerSecond float64 // of all queues
}

// A Rule is the setting for a kind of traffic. What it says of the traffic is data, so that it can be shown, and replaced.
type Rule struct {
	Name string `json:"name"`
	Why  string `json:"why,omitempty"` // for people: what the setting brings there

	// It applies to traffic of fewer frames a second and of a mean frame below so many MTUs; 0: whatever that is. A frame may be longer than
	// the MTU by its Ethernet header and one VLAN tag and counts as one of the MTU's size then.
	FramesBelow float64 `json:"framesBelow,omitempty"`
	SizeBelow   float64 `json:"sizeBelow,omitempty"` // below half an MTU: 0.5; 1: up to the MTU

	Setting Setting `json:"setting"`
}

// frameOverhead is what a frame may be longer than the MTU by: the Ethernet header and one VLAN tag.
const frameOverhead = 18

// Applies tells whether the rule is one for the traffic.
func (r Rule) Applies(t Traffic) bool {
	if r.FramesBelow > 0 && t.FramesPerSecond >= r.FramesBelow {
		return false
	}
	switch r.SizeBelow {
	case 0:
		return true
	case 1:
		return t.BytesPerFrame <= float64(t.MTU+frameOverhead)
	}
	return t.BytesPerFrame < r.SizeBelow*float64(t.MTU)
}

// rules are tried in this order; the last takes all that is left. Each is held against a TAP without NAPI by `make bench-napi`, which
// docs/napi.md explains.
//
// An open queue keeps the NAPI that it has, so a rule without NAPI means for it: no threads, no timeout; and NAPI for the next
// VMM only if the rule says so. Not among what decides is how many CPUs are idle: where frames are full, threads paid on an idle machine
// and on a busy one; where they are not, they cost most on a busy one.
var rules = []Rule{
	{
		Name: "quiet", FramesBelow: 1000,
		Why:     "few frames: the write that brings one delivers it, and NAPI is there when more come",
		Setting: Setting{NAPI: true},
	},
	{
		Name: "small", SizeBelow: 0.5,
		Why: "mostly acknowledgements and small messages, which GRO cannot merge: NAPI would only add a hand-over",
	},
	{
		Name: "full", SizeBelow: 1,
		Why:     "frames of the MTU's size: GRO merges what a thread that does not interrupt the writer finds waiting",
		Setting: Setting{NAPI: true, Threaded: true, Batch: true, GROFlushTimeout: 50 * time.Microsecond, DeferHardIRQs: 1},
	},
	{
		Name: "gso",
		Why:  "frames that the guest left whole: there is nothing to merge",
	},
}

// Rules are all rules, in the order in which [Choose] tries them.
func Rules() []Rule { return append([]Rule(nil), rules...) }

// Choose gives the rule for the traffic.
func Choose(t Traffic) Rule { return ChooseFrom(rules, t) }

// ChooseFrom gives the first of the rules that applies; the last where none does. There must be one.
func ChooseFrom(rules []Rule, t Traffic) Rule {
	for _, r := range rules {
		if r.Applies(t) {
			return r
		}
	}
	return rules[len(rules)-1]
}
