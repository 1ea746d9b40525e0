package main

import (
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
)

func TestMain(m *testing.M) { testnode.Main(m) }

// Each row moves frames on a real TAP, and the kernel counts every one of them; only what lets frames gather has them merged.
func TestEachRowMovesFrames(t *testing.T) {
	testnode.Require(t, "root", "tun", "bpf")
	report, err := measure(options{rounds: 1, slice: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for call, answer := range report.Sockets {
		if !strings.HasPrefix(answer, "ENOTSOCK") {
			t.Errorf("%s on a TAP: want ENOTSOCK, got %s", call, answer)
		}
	}
	for _, r := range report.Rows {
		if r.Rate.Median() < 100 || r.Own.Median() <= 0 {
			t.Errorf("%s: %.0f frames a second for %.0f ns each", r, r.Rate.Median(), r.Own.Median())
		}
		if r.Sink != sinkGRO {
			continue
		}
		if got := r.Merged.Median(); (r.NAPI == napiOff || r.NAPI == napiOn) && got != 1 || r.NAPI == napiFlush && got < 2 {
			t.Errorf("%s: %.1f frames an skb", r, got) // a thread may be as fast as the writer: then it merges little
		}
	}
}
