package state

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
)

// BenchmarkTransaction is what one CNI call pays for the state, with few and with many leases held: opening the file,
// one change, closing it.
func BenchmarkTransaction(b *testing.B) {
	for _, held := range []int{1, 1000, 60000} {
		s := newStore(b)
		for from := 0; from < held; from += 1000 {
			update(b, s, func(tx *Tx) error {
				for i := from; i < min(held, from+1000); i++ {
					if err := tx.PutLease(lease(2 * i)); err != nil {
						return err
					}
				}
				return nil
			})
		}
		b.Run(fmt.Sprintf("nothing/held=%d", held), func(b *testing.B) {
			for b.Loop() {
				if err := s.View(b.Context(), func(*Tx) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("open-for-writing/held=%d", held), func(b *testing.B) {
			undo := fmt.Errorf("undo")
			for b.Loop() {
				if err := s.Update(b.Context(), func(*Tx) error { return undo }); !errors.Is(err, undo) {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("attachment/held=%d", held), func(b *testing.B) {
			a := attachment(200001)
			for b.Loop() {
				update(b, s, func(tx *Tx) error { return tx.Put(a) })
			}
		})
	}
}

func BenchmarkNextFree(b *testing.B) {
	s := newStore(b)
	fillStore(b, s, 60000)
	first, last := address(0).Prefix.Addr(), netip.MustParseAddr("10.255.255.255")
	view(b, s, func(tx *Tx) error {
		for b.Loop() {
			if _, _, err := tx.NextFree(first, last); err != nil {
				b.Fatal(err)
			}
		}
		return nil
	})
}
