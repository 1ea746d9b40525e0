package state

import (
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStateShrinksAfterAPeak(t *testing.T) {
	s := newStore(t)
	const peak, stay = 12000, 10
	// What a compaction leaves that was killed.
	fillStore(t, s, 0)
	if err := os.WriteFile(s.dbPath()+".new", []byte("cut sho"), 0o600); err != nil {
		t.Fatal(err)
	}
	fillStore(t, s, peak)
	before := size(t, s)
	update(t, s, func(tx *Tx) error {
		for i := stay; i < peak; i++ {
			if _, _, err := tx.ReleaseLease(key(2 * i)); err != nil {
				return err
			}
			if err := tx.Delete(key(2 * i)); err != nil {
				return err
			}
		}
		return nil
	})
	if after := size(t, s); after > before/20 {
		t.Errorf("file: %d bytes at the peak, %d after it", before, after)
	}
	if list, err := os.ReadDir(s.dir); err != nil || len(list) != 2 {
		t.Errorf("files: want lock and state.db, got %v, %v", list, err)
	}
	update(t, s, func(tx *Tx) error {
		if got := attachments(t, tx, ""); len(got) != stay {
			t.Errorf("attachments: want %d, got %d", stay, len(got))
		}
		for i := range stay {
			got, ok, err := tx.Lease(key(2 * i))
			if diff := cmp.Diff(lease(2*i), got, compare); diff != "" || !ok || err != nil {
				t.Errorf("lease %d, %v, %v (-want +got):\n%s", i, ok, err, diff)
			}
		}
		checkRunsAreApart(t, tx, stay)
		return errors.Join(tx.Put(attachment(1)), tx.PutLease(lease(1)))
	})
	if info, err := os.Stat(s.dbPath()); err != nil || info.Mode() != 0o600 {
		t.Errorf("file: got %v, %v", info, err)
	}
}

func size(t *testing.T, s *Store) int64 {
	t.Helper()
	info, err := os.Stat(s.dbPath())
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
