package main

import (
	"fmt"
	"time"

	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/test/bench/goal"
	"golang.org/x/sys/unix"
)

// A guest is what the VMM's device offers the guest's kernel.
type guest struct {
	name    string
	offload int // TUN_F_*
}

// The guests. Packets are of 1500 bytes; the last hands over up to 64 kB at a time.
var (
	bare     = guest{"bare", 0}                                                  // neither TSO nor checksums: a unikernel
	checksum = guest{"checksum", unix.TUN_F_CSUM}                                // TSO off, checksums left to the host
	tso      = guest{"tso", unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6} // what VMMs offer
)

// A load is who sends what. The zero value has no guest.
type load struct {
	guest   guest
	streams int  // TCP connections at once
	down    bool // the node sends, and the guest's frames are acknowledgements
}

func (l load) String() string {
	name := l.guest.name
	if l.streams > 1 {
		name += fmt.Sprintf("-x%d", l.streams)
	}
	if l.down {
		name += "-down"
	}
	return name
}

// small says that the guest's frames are no larger than the MTU, and that they are what is measured.
func (l load) small() bool { return l.guest.offload&unix.TUN_F_TSO4 == 0 && !l.down }

// A Row is one setting under one load.
type Row struct {
	Load    string      `json:"load"`
	Name    string      `json:"name"`
	Setting tap.Setting `json:"setting"`
	Rule    string      `json:"rule,omitempty"`   // of tap.Choose, for the setting that it chose
	Failed  string      `json:"failed,omitempty"` // why it could not be measured

	Gbits    goal.Sample `json:"gbitPerSecond"`
	Reads    goal.Sample `json:"readsPerGB"`
	Written  goal.Sample `json:"bytesPerFrameWritten"`      // by the VMM to the TAP
	Received goal.Sample `json:"bytesPerFrameReceived"`     // by the stack, at the host end
	CPU      goal.Sample `json:"cpuSecondsPerGB"`           // of the whole machine, others' work included
	Receiver goal.Sample `json:"receiverCPUSecondsPerGB"`   // the receiving thread
	Pump     goal.Sample `json:"pumpCPUSecondsPerGB"`       // both directions
	Poll     goal.Sample `json:"pollThreadCPUSecondsPerGB"` // the NAPI thread
	Dropped  goal.Sample `json:"guestFramesDropped"`        // by the guest's TAP: 0, or the pump was late

	load   load
	apart  bool      // the pump and the NAPI thread keep to a CPU each
	rounds []float64 // mean Gbit/s of each round
}

// add takes what a round gave, measured one or more times.
func (r *Row) add(measured []measurement) {
	var sum float64
	for _, m := range measured {
		gb := float64(m.bytes) / 1e9
		perGB := func(d time.Duration) float64 { return d.Seconds() / gb }
		rate := gb * 8 / m.took.Seconds()
		sum += rate
		r.Gbits = append(r.Gbits, rate)
		r.Reads = append(r.Reads, float64(m.reads)/gb)
		r.Written = append(r.Written, m.written.bytesPerFrame())
		r.Received = append(r.Received, m.received.bytesPerFrame())
		r.CPU = append(r.CPU, perGB(m.machine))
		r.Receiver = append(r.Receiver, perGB(m.receiver))
		r.Pump = append(r.Pump, perGB(m.pump))
		r.Poll = append(r.Poll, perGB(m.poll))
		r.Dropped = append(r.Dropped, float64(m.guestDropped))
	}
	r.rounds = append(r.rounds, sum/float64(len(measured)))
}

// against is the median over the rounds of this row's throughput divided by the other's in the same round, so that what the
// machine did meanwhile meets both.
func (r *Row) against(base *Row) float64 {
	var ratios goal.Sample
	for i := range min(len(r.rounds), len(base.rounds)) {
		ratios = append(ratios, r.rounds[i]/base.rounds[i])
	}
	return ratios.Median()
}

// measured says whether every round gave a value.
func (r *Row) measured() bool { return r.Failed == "" && len(r.rounds) > 0 }

func (r *Row) chosen() bool { return r.Rule != "" }

// base says whether the others of its load are compared with it.
func (r *Row) base() bool { return !r.Setting.NAPI && !r.chosen() }

func newRow(l load, s tap.Setting) *Row {
	return &Row{Load: l.String(), Name: settingName(s), Setting: s, load: l}
}

func settingName(s tap.Setting) string {
	if !s.NAPI {
		return "no NAPI"
	}
	name := "NAPI"
	if s.Threaded {
		name += ", threaded"
	}
	if s.Batch {
		name += " batch"
	}
	if s.GROFlushTimeout > 0 {
		name += fmt.Sprintf(", %d us", s.GROFlushTimeout.Microseconds())
	}
	return name
}
