package queueiter_test

import (
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/tap/queueiter"
)

// TestReadWhileQueuesAndTAPsComeAndGo reads while files are closed and devices deleted under the iterator: each record is of one
// moment, so an attached queue has the device's name, netns and what all queues of it are opened with.
func TestReadWhileQueuesAndTAPsComeAndGo(t *testing.T) {
	require(t)
	stays, staysInode := newTAP(t, "tap-stays", 2)
	goes := testnode.NewNetns(t)
	goesInode := inode(t, goes)
	openQueues(t, tap.QueueOptions{Netns: stays, Name: "tap-stays", Count: 1, NAPI: true})
	it := iterator(t)

	stop := make(chan struct{})
	var wg sync.WaitGroup
	churn := func(round func() error) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := round(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	churn(func() error {
		q, err := tap.OpenQueues(tap.QueueOptions{Netns: stays, Name: "tap-stays", Count: 3, NAPI: true})
		if err != nil {
			return err
		}
		return q.Close()
	})
	churn(func() error { return createAndDelete(t, goes) })

	came, went, deleted := 0, 0, 0
	// On a busy machine the threads may take turns rarely: look until each has been seen.
	deadline := time.Now().Add(patience)
	for looks := 0; looks < 200 || (came == 0 || went == 0 || deleted == 0) && time.Now().Before(deadline); looks++ {
		all, err := it.Read()
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		for _, q := range all {
			want, ours := map[uint32]string{staysInode: "tap-stays", goesInode: "tap-goes"}[q.Device.Netns]
			if !ours {
				continue // another program's, or just opened, or its device was just deleted
			}
			if q.Device.Name != want || q.NAPI != (want == "tap-stays") {
				t.Fatalf("torn record %+v", q)
			}
			if want == "tap-stays" {
				count++
			} else {
				deleted++
			}
		}
		switch {
		case count == 0:
			t.Fatal("the queue that stays is missing")
		case count > 1:
			came++
		default:
			went++
		}
	}
	close(stop)
	wg.Wait()
	if came == 0 || went == 0 || deleted == 0 {
		t.Errorf("want looks with and without the queues that come and go, and at a TAP before it is deleted, got %d, %d and %d", came, went, deleted)
	}
}

// TestReadWhileProcessesComeAndGo reads while processes and threads come and go, among them such that hold files of the driver, at which a reading
// stops and goes on: a queue that one process holds all the time is in each.
func TestReadWhileProcessesComeAndGo(t *testing.T) {
	require(t)
	ns, in := newTAP(t, "tap-stays", 1)
	q := openQueues(t, tap.QueueOptions{Netns: ns, Name: "tap-stays", Count: 1, NAPI: true})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	storm := func(round func()) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					round()
				}
			}
		})
	}
	for range 2 {
		storm(func() {
			const script = "exec 3<>" + tap.Device + "; (exec 4<>" + tap.Device + "; :) & (:) & wait"
			if out, err := exec.Command("/bin/sh", "-c", script).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	storm(func() {
		var threads sync.WaitGroup
		for range 8 {
			threads.Go(func() {
				runtime.LockOSThread() // without an unlock: the thread ends
				time.Sleep(100 * time.Microsecond)
			})
		}
		threads.Wait()
	})
	runtime.LockOSThread() // the process ends with the thread that started it
	defer runtime.UnlockOSThread()
	start(t, q.FDs(), "sleep", "infinity") // its pid is later than some of the storm's
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	it := iterator(t)
	others, missed, reads := 0, 0, 0
	for until := time.Now().Add(patience); reads < 4000 && time.Now().Before(until); reads++ {
		all, err := it.Read()
		if err != nil {
			t.Fatal(err)
		}
		stays := slices.ContainsFunc(all, func(q queueiter.Queue) bool { return q.Device.Netns == in })
		if !stays {
			missed++
		} else if len(all) > 1 {
			others++
		}
	}
	close(stop)
	wg.Wait()
	if missed != 0 || others == 0 {
		t.Errorf("want the queue in each of %d readings, and those of others in some, got %d without it and %d with others", reads, missed, others)
	}
}

// createAndDelete makes a TAP, opens a queue of it, and deletes the TAP under the open queue.
func createAndDelete(t *testing.T, ns string) (err error) {
	testnode.In(t, ns, func() {
		if err = tap.Create(tap.Spec{Name: "tap-goes", Queues: 1}); err != nil {
			return
		}
		var q *tap.Queues
		if q, err = tap.OpenQueues(tap.QueueOptions{Name: "tap-goes", Count: 1}); err != nil {
			return
		}
		defer q.Close() //nolint:errcheck // its device is gone
		var conn *rtnl.Conn
		if conn, err = rtnl.Open(); err != nil {
			return
		}
		defer conn.Close()
		err = conn.DeleteLink(q.Index)
	})
	return err
}
