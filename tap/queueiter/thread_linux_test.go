package queueiter_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/tap"
	"golang.org/x/sys/unix"
)

// Threads of two TAPs of one name carry one name too; only the queue tells which is whose.
func TestEachQueueKnowsItsThread(t *testing.T) {
	require(t)
	threads := map[int]string{}
	it := iterator(t)
	for _, queues := range []int{1, 2} {
		ns, in := newTAP(t, "tap-eth0", queues)
		openQueues(t, tap.QueueOptions{Netns: ns, Name: "tap-eth0", Count: queues, NAPI: true})
		for _, q := range of(t, it, in) {
			if q.Thread != 0 {
				t.Errorf("not threaded: want no thread, got %+v", q)
			}
		}
		threaded := tap.Setting{NAPI: true, Threaded: true}
		if err := threaded.Apply(ns, "tap-eth0"); err != nil {
			t.Fatal(err)
		}
		for _, q := range of(t, it, in) {
			comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", q.Thread))
			if err != nil || !strings.HasPrefix(string(comm), "napi/tap-eth0-") {
				t.Errorf("want a thread of the TAP, got %d, %q, %v", q.Thread, comm, err)
			}
			if other, ok := threads[q.Thread]; ok {
				t.Errorf("thread %d polls queues in %s and %s", q.Thread, other, ns)
			}
			threads[q.Thread] = ns
		}
	}
	if len(threads) != 3 {
		t.Errorf("want 3 threads, got %v", threads)
	}
	ns, in := newTAP(t, "tap0", 1)
	openQueues(t, tap.QueueOptions{Netns: ns, Name: "tap0", Count: 1})
	if got := of(t, it, in); len(got) != 1 || got[0].Thread != 0 {
		t.Errorf("without NAPI: want no thread, got %+v", got)
	}
	for thread := range threads {
		if _, err := unix.SchedGetAttr(thread, 0); err != nil {
			t.Errorf("thread %d: %v", thread, err)
		}
	}
}
