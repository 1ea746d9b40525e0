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
// docs/napi.md explains.
//
// An open queue keeps the NAPI that it has, so a rule without NAPI means for it: no threads, no timeout; and NAPI for the next
// VMM only if the rule says so. Not among what decides is how many CPUs are idle: where frames are full, threads paid on an idle machine
// and on a busy one; where they are not, they cost most on a busy one.
var rules = []Rule{
	{
		Name:    "quiet",
		Why:     "few frames: the write that brings one delivers it, and NAPI is there when more come",
		Setting: Setting{NAPI: true},
		applies: func(t Traffic) bool { return t.FramesPerSecond < quietRate },
	},
	{
		Name:    "small",
		Why:     "mostly acknowledgements and small messages, which GRO cannot merge: NAPI would only add a hand-over",
		applies: func(t Traffic) bool { return t.BytesPerFrame < float64(t.MTU)/2 },
	},
	{
		Name:    "full",
		Why:     "frames of the MTU's size: GRO merges what a thread that does not interrupt the writer finds waiting",
		Setting: Setting{NAPI: true, Threaded: true, Batch: true, GROFlushTimeout: 50 * time.Microsecond, DeferHardIRQs: 1},
		applies: func(t Traffic) bool { return t.BytesPerFrame <= float64(t.MTU+frameOverhead) },
	},
	{
		Name:    "gso",
		Why:     "frames that the guest left whole: there is nothing to merge",
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
