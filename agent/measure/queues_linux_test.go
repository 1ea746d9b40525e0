package measure_test

import (
	"sync"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/tap"
)

// A queue that stays open is in each sample, with its TAP: a sample has no reading whose turn is left to chance.
func TestEachSampleHasTheQueue(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	p.open(1)
	n := start(t, measure.Config{MaxAge: time.Nanosecond})
	const samples = 200
	missed := 0
	for range samples {
		s := n.sample()
		if s.QueuesErr != nil || len(s.Problems) != 0 || len(s.Attachments) != 1 {
			t.Fatalf("want one attachment and no problems, got %d, %v and %q", len(s.Attachments), s.QueuesErr, s.Problems)
		}
		a := s.Attachments[0]
		if a.TAP == nil || a.TAP.Queues != 1 {
			t.Fatalf("want a TAP with one queue, got %+v", a.TAP)
		}
		if len(a.Queues) != 1 {
			missed++
		}
	}
	if missed != 0 {
		t.Errorf("want the queue in each sample, %d of %d are without it", missed, samples)
	}
}

// Devices and queues are read one after the other. Those of a queue that comes and goes all the time agree all the same: one look would differ in some
// 5 samples of a hundred.
func TestASampleAgreesWithItself(t *testing.T) {
	requireNode(t)
	p := add(t, `"queues": 2,`)
	p.open(1)
	n := start(t, measure.Config{MaxAge: time.Nanosecond})
	n.sample()
	stop := make(chan struct{})
	var opener sync.WaitGroup
	opener.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			if err := visit(p); err != nil {
				t.Error(err)
				return
			}
		}
	})
	seen := map[int]int{}
	differ, samples := 0, 0
	for until := time.Now().Add(patience); samples < 3000 && time.Now().Before(until); samples++ {
		a := n.sample().Attachments[0]
		seen[len(a.Queues)]++
		if a.TAP == nil || a.TAP.Queues != len(a.Queues) {
			differ++
		}
	}
	close(stop)
	opener.Wait()
	if differ*100 > samples {
		t.Errorf("want devices and queues to agree, they differ in %d of %d samples", differ, samples)
	}
	if seen[1] == 0 || seen[2] == 0 || len(seen) != 2 {
		t.Errorf("want samples with one queue and with two, got %v", seen)
	}
}

// visit opens a queue for a millisecond.
func visit(p *pod) error {
	q, err := tap.OpenQueues(tap.QueueOptions{Netns: p.netns, Name: "tap-eth0", Count: 1, NAPI: true})
	if err != nil {
		return err
	}
	time.Sleep(time.Millisecond)
	return q.Close()
}
