package ipam

import (
	"fmt"
	"testing"

	"github.com/tapir-cni/tapir/state"
)

// hold leases n addresses of the settings, in transactions of a thousand.
func hold(b *testing.B, store *state.Store, s Settings, n int) {
	b.Helper()
	for from := 0; from < n; from += 1000 {
		update(b, store, func(tx *state.Tx) error {
			for i := from; i < min(n, from+1000); i++ {
				if _, err := Acquire(tx, Request{Key: key(i), Sets: s.Sets}); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// BenchmarkAcquire leases an address and releases it, each in a transaction of its own as CNI calls are, with few and
// with many leases held: the cost must not grow with them.
func BenchmarkAcquire(b *testing.B) {
	for _, subnet := range []string{"10.9.0.0/16", "fd00::/64"} {
		for _, held := range []int{1, 1000, 60000} {
			b.Run(fmt.Sprintf("%s/held=%d", subnet, held), func(b *testing.B) {
				store, s := newStore(b), settings(b, ranges(subnet))
				hold(b, store, s, held)
				benchAcquire(b, store, s)
			})
		}
	}
	// All but one address of a /16: the search has the whole range to go round.
	b.Run("10.9.0.0/16/last", func(b *testing.B) {
		store, s := newStore(b), settings(b, ranges("10.9.0.0/16"))
		hold(b, store, s, 1<<16-4)
		benchAcquire(b, store, s)
	})
	// Every second address is free: 30,000 runs.
	b.Run("10.9.0.0/16/scattered", func(b *testing.B) {
		store, s := newStore(b), settings(b, ranges("10.9.0.0/16"))
		hold(b, store, s, 60000)
		update(b, store, func(tx *state.Tx) error {
			for i := 0; i < 60000; i += 2 {
				if err := Release(tx, key(i)); err != nil {
					return err
				}
			}
			return nil
		})
		benchAcquire(b, store, s)
	})
}

func benchAcquire(b *testing.B, store *state.Store, s Settings) {
	k := key(1 << 20)
	for b.Loop() {
		update(b, store, func(tx *state.Tx) error {
			_, err := Acquire(tx, Request{Key: k, Sets: s.Sets})
			return err
		})
		update(b, store, func(tx *state.Tx) error { return Release(tx, k) })
	}
}
