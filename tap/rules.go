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

// A Rule is the setting for a kind of traffic.
type Rule struct {
	Name    string
	Why     string // for people: what the setting brings there
	Setting Setting

	applies func(Traffic) bool
}

// quietRate is the number of frames a second below which a TAP costs nothing that a setting could save.
const quietRate = 1000

// frameOverhead is what a frame may be longer than the MTU by: the Ethernet header and one VLAN tag.
const frameOverhead = 18

// rules are tried in this order; the last takes all that is left. Each is held against a TAP without NAPI by `make bench-napi`, which
// docs/benchmarks.md explains. All want NAPI on the queue: what else is set can change while a VMM runs, that cannot.
//
// Not among what decides is how many CPUs are idle: the order of the settings was the same on a machine whose CPUs were all busy.
var rules = []Rule{
	{
		Name:    "quiet",
		Why:     "few frames: each is delivered by the write that brings it, with no thread to wake",
		Setting: Setting{NAPI: true},
		applies: func(t Traffic) bool { return t.FramesPerSecond < quietRate },
	},
	{
		Name:    "small",
		Why:     "mostly acknowledgements and small messages, which GRO cannot merge: a thread would only add a hand-over",
		Setting: Setting{NAPI: true},
		applies: func(t Traffic) bool { return t.BytesPerFrame < float64(t.MTU)/2 },
	},
	{
		Name:    "full",
		Why:     "frames of the MTU's size: GRO merges what a thread finds waiting",
		Setting: Setting{NAPI: true, Threaded: true, Batch: true, GROFlushTimeout: 50 * time.Microsecond, DeferHardIRQs: 1},
		applies: func(t Traffic) bool { return t.BytesPerFrame <= float64(t.MTU+frameOverhead) },
	},
	{
		Name:    "gso",
		Why:     "frames that the guest left whole: nothing is to be merged, the thread takes the stack's work off the writer",
		Setting: Setting{NAPI: true, Threaded: true, Batch: true},
		applies: func(Traffic) bool { return true },
	},
}

// Rules are all rules, in the order in which [Choose] tries them.
func Rules() []Rule { return append([]Rule(nil), rules...) }

// Choose gives the rule for the traffic.
func Choose(t Traffic) Rule {
	for _, r := range rules {
		if r.applies(t) {
			return r
		}
	}
	return rules[len(rules)-1]
}
