package tap_test

import (
	"testing"

	"github.com/tapir-cni/tapir/tap"
)

func TestTrafficHasItsRule(t *testing.T) {
	for _, tt := range []struct {
		name    string
		traffic tap.Traffic
		want    string
	}{
		{"nothing seen yet", tap.Traffic{MTU: 1500}, "quiet"},
		{"large frames, few of them", tap.Traffic{MTU: 1500, BytesPerFrame: 1514, FramesPerSecond: 999}, "quiet"},
		{"acknowledgements", tap.Traffic{MTU: 1500, BytesPerFrame: 66, FramesPerSecond: 20e3}, "small"},
		{"just under half the MTU", tap.Traffic{MTU: 1500, BytesPerFrame: 749, FramesPerSecond: 20e3}, "small"},
		{"both ways at once", tap.Traffic{MTU: 1500, BytesPerFrame: 790, FramesPerSecond: 20e3}, "full"},
		{"bulk without TSO", tap.Traffic{MTU: 1500, BytesPerFrame: 1514, FramesPerSecond: 200e3}, "full"},
		{"bulk in a VLAN", tap.Traffic{MTU: 1500, BytesPerFrame: 1518, FramesPerSecond: 200e3}, "full"},
		{"bulk with a large MTU", tap.Traffic{MTU: 9000, BytesPerFrame: 9014, FramesPerSecond: 50e3}, "full"},
		{"small to a large MTU", tap.Traffic{MTU: 9000, BytesPerFrame: 1514, FramesPerSecond: 50e3}, "small"},
		{"bulk with TSO", tap.Traffic{MTU: 1500, BytesPerFrame: 64e3, FramesPerSecond: 20e3}, "gso"},
		{"a little of it is GSO", tap.Traffic{MTU: 1500, BytesPerFrame: 1519, FramesPerSecond: 20e3}, "gso"},
	} {
		if got := tap.Choose(tt.traffic).Name; got != tt.want {
			t.Errorf("%s: want rule %q, got %q", tt.name, tt.want, got)
		}
	}
}

// Settings without effect would mislead who reads them.
func TestRulesHoldTogether(t *testing.T) {
	for _, r := range tap.Rules() {
		s := r.Setting
		if !s.NAPI && s != (tap.Setting{}) {
			t.Errorf("%s: how to poll without NAPI: %+v", r.Name, s)
		}
		if s.Batch && !s.Threaded {
			t.Errorf("%s: a policy for threads that are not there", r.Name)
		}
		if (s.GROFlushTimeout > 0) != (s.DeferHardIRQs > 0) {
			t.Errorf("%s: the kernel waits only where both are set, got %s and %d", r.Name, s.GROFlushTimeout, s.DeferHardIRQs)
		}
		if r.Name == "" || r.Why == "" {
			t.Errorf("a rule without name or reason: %+v", r)
		}
	}
}

// Of a TAP that nobody sent anything through yet, the queue that a VMM opens now must be able to run threads later.
func TestUnknownTrafficKeepsNAPI(t *testing.T) {
	if got := tap.Choose(tap.Traffic{MTU: 1500}).Setting; got != (tap.Setting{NAPI: true}) {
		t.Errorf("want NAPI alone, got %+v", got)
	}
}
