package queueiter_test

import (
	"os"
	"slices"
	"testing"

	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"golang.org/x/sys/unix"
)

// The kernel lets an iterator visit a million objects a call (MAX_ITER_OBJECTS in kernel/bpf/bpf_iter.c) and then gives EAGAIN where none of them had a
// record. A large node has more open files than that; here one file is open so many times.
func TestReadPastAMillionFilesThatAreNoQueues(t *testing.T) {
	require(t)
	const objects, most = 1_000_000, 200 // files; processes to hold them
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	each := int(min(limit.Max, 100_000)) - 1000
	if each < objects/most {
		t.Skipf("a process may open %d files; set ulimit -n to 10000 or more", limit.Max)
	}
	beforeNS, before := newTAP(t, "tap-before", 1)
	afterNS, after := newTAP(t, "tap-after", 1)
	openQueues(t, tap.QueueOptions{Netns: beforeNS, Name: "tap-before", Count: 1})
	last := openQueues(t, tap.QueueOptions{Netns: afterNS, Name: "tap-after", Count: 1})

	crowd(t, objects/each+1, each)
	start(t, last.FDs(), "sleep", "infinity") // of a later pid
	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	all, err := iterator(t).Read()
	if err != nil {
		t.Fatal(err)
	}
	for _, netns := range []uint32{before, after} {
		if !slices.ContainsFunc(all, func(q queueiter.Queue) bool { return q.Device.Netns == netns }) {
			t.Errorf("want a queue of each TAP, got %+v", all)
		}
	}
}

// crowd starts processes that have a file open so many times each.
func crowd(t *testing.T, processes, each int) {
	t.Helper()
	const lowest = 512 // above what the test has open
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	defer func() {
		if err := unix.CloseRange(lowest, uint(lowest+each), 0); err != nil {
			t.Error(err)
		}
	}()
	for range each {
		if _, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD, lowest); err != nil { // not close-on-exec: the processes inherit it
			t.Fatal(err)
		}
	}
	for range processes {
		start(t, nil, "sleep", "infinity")
	}
}
