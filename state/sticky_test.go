package state

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.etcd.io/bbolt"
)

var web = Pod{Namespace: "default", Name: "web-0"}

// stickyLease is the i-th lease, of that pod.
func stickyLease(i int, pod Pod, rest time.Duration) Lease {
	l := lease(i)
	l.Pod, l.ReuseDelay = pod, rest
	return l
}

// wantRemembered wants these addresses of the pod web.
func wantRemembered(t *testing.T, tx *Tx, what string, want ...netip.Addr) {
	t.Helper()
	got, err := tx.Remembered(key(0), web)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s: remembered addresses (-want +got):\n%s", what, diff)
	}
}

func allWell(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func release(t *testing.T, tx *Tx, i int) {
	t.Helper()
	if _, ok, err := tx.ReleaseLease(key(i)); !ok || err != nil {
		t.Fatalf("release %d: %t, %v", i, ok, err)
	}
}

func TestAPodIsRememberedByItsName(t *testing.T) {
	s := newStore(t)
	now := time.Hour
	s.now = func() time.Duration { return now }
	update(t, s, func(tx *Tx) error {
		ip := address(1).Prefix.Addr()
		allWell(t, tx.PutLease(stickyLease(1, web, time.Minute)))
		wantRemembered(t, tx, "while it has the address")
		release(t, tx, 1)
		wantRemembered(t, tx, "while its own address rests", ip)
		for what, other := range map[string]struct {
			key Key
			pod Pod
		}{
			"another name": {key(0), Pod{"default", "web-1"}}, "another namespace": {key(0), Pod{"prod", "web-0"}}, "no name": {key(0), Pod{Namespace: "default"}},
			"another network": {Key{"other", "c", "eth0"}, web}, "another interface": {Key{"net", "c", "net1"}, web},
		} {
			if got, err := tx.Remembered(other.key, other.pod); err != nil || len(got) > 0 {
				t.Errorf("%s: want nothing remembered, got %v, %v", what, got, err)
			}
		}
		now += time.Minute
		wantRemembered(t, tx, "when the address is free", ip)

		// Another one takes the address and gives it back: that rest is not the pod's.
		l := stickyLease(2, Pod{}, time.Minute)
		l.Addresses = []Address{address(1)}
		allWell(t, tx.PutLease(l))
		wantRemembered(t, tx, "while another has the address")
		release(t, tx, 2)
		wantRemembered(t, tx, "while it rests after another's use")
		now += time.Minute
		wantRemembered(t, tx, "when it has rested", ip)
		now += RememberFor
		wantRemembered(t, tx, "a day later")
		return nil
	})
}

// What a failed ADD took is given back as it was: the pod's own, and at rest for others.
func TestACancelledLeaseLeavesMemoryAndRest(t *testing.T) {
	s := newStore(t)
	now := time.Hour
	s.now = func() time.Duration { return now }
	ip := address(1).Prefix.Addr()
	update(t, s, func(tx *Tx) error {
		allWell(t, tx.PutLease(stickyLease(1, web, time.Minute)))
		release(t, tx, 1)
		now += 20 * time.Second
		l := stickyLease(2, web, 0)
		l.Addresses = []Address{address(1)}
		allWell(t, tx.PutLease(l))
		if _, ok, err := tx.CancelLease(key(2)); !ok || err != nil {
			t.Fatalf("cancel: %t, %v", ok, err)
		}
		wantRemembered(t, tx, "after the cancellation", ip)
		u, err := tx.AddressUser(ip)
		if err != nil || u.Status != AddressResting || u.Rest != 40*time.Second {
			t.Errorf("want the address at rest for 40 s more, got %+v, %v", u, err)
		}
		// Control: what did not rest need not.
		allWell(t, tx.PutLease(stickyLease(3, web, time.Minute)))
		if _, ok, err := tx.CancelLease(key(3)); !ok || err != nil {
			t.Fatalf("cancel: %t, %v", ok, err)
		}
		if u, err := tx.AddressUser(address(3).Prefix.Addr()); err != nil || u.Status != AddressFree {
			t.Errorf("want the address free, got %+v, %v", u, err)
		}
		wantRemembered(t, tx, "after another cancellation", address(3).Prefix.Addr())
		return nil
	})
}

// Memory is bounded in number and in time, and what is remembered twice counts once.
func TestMemoryIsBounded(t *testing.T) {
	s := newStore(t)
	now := time.Hour
	s.now = func() time.Duration { return now }
	pod := func(i int) Pod { return Pod{"default", fmt.Sprintf("pod-%d", i)} }
	count := func(tx *Tx) (n int) {
		t.Helper()
		memories, ordered := 0, 0
		allWell(t, tx.each(bucketSticky, nil, func([]byte, []byte) error { memories++; return nil }),
			tx.each(bucketStickyOrder, nil, func([]byte, []byte) error { ordered++; return nil }))
		counted, err := tx.remembered()
		allWell(t, err)
		if memories != ordered || counted != uint64(memories) {
			t.Errorf("%d memories, %d in order, %d counted: want the same", memories, ordered, counted)
		}
		return memories
	}
	update(t, s, func(tx *Tx) error {
		for i := range MaxRemembered + 50 {
			now += time.Millisecond
			allWell(t, tx.PutLease(stickyLease(i, pod(i), 0)))
			release(t, tx, i)
		}
		if n := count(tx); n != MaxRemembered {
			t.Errorf("after %d releases: want %d memories, got %d", MaxRemembered+50, MaxRemembered, n)
		}
		for i, want := range map[int]bool{0: false, 49: false, 50: true, MaxRemembered + 49: true} {
			if got, err := tx.Remembered(key(0), pod(i)); err != nil || len(got) == 1 != want {
				t.Errorf("pod %d: remembered %t, want %t (%v)", i, len(got) == 1, want, err)
			}
		}
		for range 100 {
			now += time.Millisecond
			allWell(t, tx.PutLease(stickyLease(60, pod(60), 0)))
			release(t, tx, 60)
		}
		if n := count(tx); n != MaxRemembered {
			t.Errorf("after the same pod a hundred times: want %d, got %d", MaxRemembered, n)
		}
		now += RememberFor + time.Hour
		for i := range MaxRemembered / 10 {
			allWell(t, tx.PutLease(stickyLease(i, pod(i), 0)))
			release(t, tx, i)
		}
		if n := count(tx); n != MaxRemembered/10 {
			t.Errorf("a day later: want %d memories, got %d", MaxRemembered/10, n)
		}
		return nil
	})
}

// The file of an earlier tapir has no place for memories.
func TestMemoryInAFileWithoutItsBuckets(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error { return tx.PutLease(stickyLease(1, web, 0)) })
	db, err := bbolt.Open(s.dbPath(), 0o600, nil)
	allWell(t, err)
	allWell(t, db.View(func(tx *bbolt.Tx) error {
		if tx.Bucket(bucketSticky) != nil {
			t.Error("there is a bucket already: the test shows nothing")
		}
		return nil
	}), db.Close())
	view(t, s, func(tx *Tx) error { wantRemembered(t, tx, "without a bucket"); return nil })
	update(t, s, func(tx *Tx) error { release(t, tx, 1); return nil })
	view(t, s, func(tx *Tx) error { wantRemembered(t, tx, "afterwards", address(1).Prefix.Addr()); return nil })
}

// A lease that was rebuilt from the kernel learns at its end whose it was.
func TestALeaseLearnsItsPod(t *testing.T) {
	s := newStore(t, attachment(1))
	update(t, s, func(tx *Tx) error {
		allWell(t, tx.NamePod(key(1), web), tx.NamePod(key(1), Pod{"default", "late"}), tx.NamePod(key(2), web))
		release(t, tx, 1)
		wantRemembered(t, tx, "after the release", address(1).Prefix.Addr())
		return nil
	})
}

// Names that are no pod's are not kept.
func TestOverlongNamesAreNotRemembered(t *testing.T) {
	s := newStore(t)
	long := Pod{Namespace: "default", Name: string(make([]byte, maxPodName+1))}
	update(t, s, func(tx *Tx) error {
		allWell(t, tx.PutLease(stickyLease(1, long, 0)))
		release(t, tx, 1)
		if got, err := tx.Remembered(key(1), long); err != nil || len(got) > 0 {
			t.Errorf("want nothing, got %v, %v", got, err)
		}
		return nil
	})
}
