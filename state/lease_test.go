package state

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// clock is a settable time since boot.
func clock(s *Store) *time.Duration {
	now := time.Hour
	s.now = func() time.Duration { return now }
	return &now
}

func status(t *testing.T, tx *Tx, addr netip.Addr) AddressUser {
	t.Helper()
	u, err := tx.AddressUser(addr)
	if err != nil {
		t.Fatalf("AddressUser(%s): %v", addr, err)
	}
	return u
}

func TestLeaseIsUniqueByKeyAndByAddress(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		if err := tx.PutLease(lease(1)); err != nil {
			return err
		}
		again := lease(2)
		again.Key = key(1)
		if err := tx.PutLease(again); !errors.Is(err, ErrExists) {
			t.Errorf("second lease of the attachment: want ErrExists, got %v", err)
		}
		// In another network, with a free address first: all or nothing.
		other := Lease{Key: Key{"other", "x", "eth0"}, Addresses: []Address{address(2), address(1)}}
		var inUse *AddressInUseError
		if err := tx.PutLease(other); !errors.As(err, &inUse) || inUse.Holder != key(1) {
			t.Errorf("lease of a leased address: want AddressInUseError of %q, got %v", key(1), err)
		}
		if u := status(t, tx, address(2).Prefix.Addr()); u.Status != AddressFree {
			t.Errorf("the refused lease's first address: got %+v, want free", u)
		}
		twice := Lease{Key: key(3), Addresses: []Address{address(3), address(3)}}
		if err := tx.PutLease(twice); !errors.As(err, &inUse) {
			t.Errorf("lease of an address twice: want AddressInUseError, got %v", err)
		}
		got, ok, err := tx.Lease(key(1))
		if diff := cmp.Diff(lease(1), got, compare); diff != "" || !ok || err != nil {
			t.Errorf("lease, %v, %v (-want +got):\n%s", ok, err, diff)
		}
		return nil
	})
}

func TestReleasedAddressRestsThenIsFree(t *testing.T) {
	s := newStore(t)
	now := clock(s)
	addr := address(1).Prefix.Addr()
	l := lease(1)
	l.ReuseDelay = 30 * time.Second
	free := func(tx *Tx, want bool, when string) {
		t.Helper()
		if _, err := tx.EndRests(10); err != nil {
			t.Errorf("%s: EndRests: %v", when, err)
		}
		if got, ok, err := tx.NextFree(addr, addr); ok != want || err != nil {
			t.Errorf("%s: NextFree: want %v, got %s, %v, %v", when, want, got, ok, err)
		}
	}
	update(t, s, func(tx *Tx) error {
		if err := tx.PutLease(l); err != nil {
			return err
		}
		free(tx, false, "leased")
		if _, ok, err := tx.ReleaseLease(key(1)); !ok || err != nil {
			t.Errorf("ReleaseLease: got %v, %v", ok, err)
		}
		if _, ok, err := tx.ReleaseLease(key(1)); ok || err != nil {
			t.Errorf("second ReleaseLease: got %v, %v", ok, err)
		}
		free(tx, false, "just released")
		*now += 10 * time.Second
		if u := status(t, tx, addr); u != (AddressUser{Status: AddressResting, Rest: 20 * time.Second}) {
			t.Errorf("after 10 s: got %+v", u)
		}
		*now += 20*time.Second - 1
		free(tx, false, "just before the end")
		*now++
		free(tx, true, "at the end")
		return nil
	})
}

func TestClockThatGoesBackEndsRests(t *testing.T) {
	s := newStore(t)
	now := clock(s)
	l := lease(1)
	l.ReuseDelay = 30 * time.Second
	update(t, s, func(tx *Tx) error {
		if err := tx.PutLease(l); err != nil {
			return err
		}
		if _, _, err := tx.ReleaseLease(key(1)); err != nil {
			return err
		}
		*now -= time.Second
		if n, err := tx.EndRests(10); n != 1 || err != nil {
			t.Errorf("EndRests after the clock went back: want 1, got %d, %v", n, err)
		}
		return nil
	})
}

func TestRestingAddressCanBeLeasedByName(t *testing.T) {
	s := newStore(t)
	clock(s)
	l := lease(1)
	l.ReuseDelay = 30 * time.Second
	update(t, s, func(tx *Tx) error {
		if err := tx.PutLease(l); err != nil {
			return err
		}
		if _, _, err := tx.ReleaseLease(key(1)); err != nil {
			return err
		}
		l.Key = key(2)
		if err := tx.PutLease(l); err != nil {
			t.Errorf("lease of a resting address: %v", err)
		}
		if k, _, err := tx.atLeast(bucketResting, nil); k != nil || err != nil {
			t.Errorf("the queue still has %x, %v", k, err)
		}
		return nil
	})
}

func TestEndRestsIsBounded(t *testing.T) {
	s := newStore(t)
	now := clock(s)
	update(t, s, func(tx *Tx) error {
		for i := range 10 {
			l := lease(i)
			l.ReuseDelay = time.Second
			if err := tx.PutLease(l); err != nil {
				return err
			}
			if _, _, err := tx.ReleaseLease(key(i)); err != nil {
				return err
			}
		}
		*now += time.Second
		for _, want := range []int{4, 4, 2, 0} {
			if got, err := tx.EndRests(4); got != want || err != nil {
				t.Errorf("EndRests(4): want %d, got %d, %v", want, got, err)
			}
		}
		return nil
	})
}

func TestUsageCountsOneRange(t *testing.T) {
	s := newStore(t)
	now := clock(s)
	update(t, s, func(tx *Tx) error {
		for i := range 20 {
			l := lease(i)
			l.ReuseDelay = time.Duration(i) * time.Second
			if err := tx.PutLease(l); err != nil {
				return err
			}
			if i%4 == 3 {
				if _, _, err := tx.ReleaseLease(key(i)); err != nil {
					return err
				}
			}
		}
		six := Lease{Key: key(99), Addresses: []Address{{Prefix: netip.MustParsePrefix("fd00::1/64")}}}
		if err := tx.PutLease(six); err != nil {
			return err
		}
		*now += 2 * time.Second
		got, err := tx.Usage(address(5).Prefix.Addr(), address(15).Prefix.Addr())
		if want := (Usage{Leased: 8, Resting: 3, FirstRest: 5 * time.Second}); got != want || err != nil {
			t.Errorf("usage of 11 addresses: want %+v, got %+v, %v", want, got, err)
		}
		all, err := tx.Usage(address(0).Prefix.Addr(), netip.MustParseAddr("255.255.255.255"))
		if all.Leased+all.Resting != 20 || err != nil {
			t.Errorf("usage of all IPv4 addresses: got %+v, %v", all, err)
		}
		return nil
	})
}

// model is the used addresses as a set.
type model map[netip.Addr]bool

func (m model) next(first, last netip.Addr) (netip.Addr, bool) {
	for a := first; a.IsValid() && !last.Less(a); a = a.Next() {
		if !m[a] {
			return a, true
		}
	}
	return netip.Addr{}, false
}

func TestRunsAgreeWithASet(t *testing.T) {
	for _, base := range []string{"10.0.0.0", "255.255.255.192", "0.0.0.0", "fd00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffc0"} {
		t.Run(base, func(t *testing.T) { checkRuns(t, netip.MustParseAddr(base), rand.New(rand.NewPCG(1, 2))) })
	}
}

// checkRuns marks 64 addresses from base on used and free, at random, and compares each next free address.
func checkRuns(t *testing.T, base netip.Addr, r *rand.Rand) {
	addrs := []netip.Addr{base}
	for len(addrs) < 64 {
		addrs = append(addrs, addrs[len(addrs)-1].Next())
	}
	s := newStore(t)
	m := model{}
	update(t, s, func(tx *Tx) error {
		for step := range 4000 {
			a := addrs[r.IntN(64)]
			// Long phases of mostly filling and mostly emptying, so that runs of all lengths come up.
			if fill := step/500%2 == 0; m[a] && (!fill || r.IntN(8) == 0) {
				if err := tx.markFree(a); err != nil {
					return err
				}
				delete(m, a)
			} else if !m[a] && (fill || r.IntN(8) == 0) {
				if err := tx.markUsed(a); err != nil {
					return err
				}
				m[a] = true
			}
			first, last := addrs[r.IntN(64)], addrs[r.IntN(64)]
			want, wantOK := m.next(first, last)
			got, ok, err := tx.NextFree(first, last)
			if err != nil || ok != wantOK || got != want {
				t.Fatalf("step %d: NextFree(%s, %s): want %s, %v, got %s, %v, %v", step, first, last, want, wantOK, got, ok, err)
			}
			if step%50 == 0 {
				checkRunsAreApart(t, tx, len(m))
			}
		}
		return nil
	})
}

// checkRunsAreApart checks that runs neither touch nor overlap, and hold as many addresses as are used.
func checkRunsAreApart(t *testing.T, tx *Tx, used int) {
	t.Helper()
	var before netip.Addr
	count := 0
	err := tx.each(bucketRuns, nil, func(k, v []byte) error {
		r, _, err := tx.runAtMost(netip.AddrFrom16([16]byte(k)).Unmap())
		if err != nil {
			return err
		}
		if before.IsValid() && !before.Next().Less(r.first) {
			t.Errorf("run %s to %s touches the one that ends at %s", r.first, r.last, before)
		}
		before = r.last
		for a := r.first; a.IsValid() && !r.last.Less(a); a = a.Next() {
			count++
		}
		return nil
	})
	if err != nil || count != used {
		t.Errorf("runs hold %d addresses, want %d; %v", count, used, err)
	}
}
