package tuner

import (
	"testing"

	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/xdp"
)

// seen is an attachment to whose TAP so many frames were sent, of which so many were read and dropped; the rest is in the ring, or lost.
func seen(sent, read, dropped uint64) *measure.Attachment {
	return &measure.Attachment{TAP: &links.Link{Stats: links.Stats{TxFrames: read, TxDropped: dropped}},
		Frames: map[xdp.Reason]xdp.Counter{xdp.ReasonToGuest: {Frames: sent}}}
}

// What is in the ring when a sample is taken is not lost, however much that is.
func TestFramesThatAResizeCostAreCounted(t *testing.T) {
	inRing := []uint64{300, 7, 900, 0, 12, 450, 80, 0, 3, 600}
	for lost, want := range map[uint64]uint64{0: 0, 25: 25} {
		var l losses
		var reported uint64
		sent := uint64(0)
		for _, waiting := range inRing[:lossSamples] {
			sent += 5000
			l.learn(seen(sent, sent-waiting-100, 100))
		}
		l.begin(func(n uint64) { reported += n })
		if !l.counting() {
			t.Fatal("want it to count")
		}
		for _, waiting := range inRing[lossSamples:] {
			sent += 5000
			l.learn(seen(sent, sent-waiting-100-lost, 100))
		}
		if l.counting() || l.total != want || reported != want {
			t.Errorf("want %d, got %d and %d, still counting %t", want, l.total, reported, l.counting())
		}
	}
	var blind losses
	blind.learn(&measure.Attachment{TAP: &links.Link{}})
	blind.begin(func(uint64) { t.Error("nothing can be said of a TAP without counters") })
	if blind.counting() {
		t.Error("want nothing counted without counters")
	}
}
