package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func init() {
	// damage opens damaged copies of the image in dir, from the seed that the file seed has on, and works with each.
	helpers["damage"] = func(dir string) {
		image, err := os.ReadFile(filepath.Join(dir, "image"))
		if err != nil {
			fail(dir, err)
		}
		from, _ := strconv.Atoi(os.Getenv("DAMAGE_FROM"))
		to, _ := strconv.Atoi(os.Getenv("DAMAGE_TO"))
		fmt.Print("r")
		for seed := from; seed < to; seed++ {
			_ = os.WriteFile(filepath.Join(dir, "seed"), fmt.Append(nil, seed), 0o600)
			s := storeIn(filepath.Join(dir, "tapir"), attachment(40))
			if err := errors.Join(os.RemoveAll(s.dir), makeDir(s.dir), os.WriteFile(s.dbPath(), damage(image, seed), 0o600)); err != nil {
				fail(dir, err)
			}
			if err := workOn(s); err != nil {
				fail(dir, fmt.Errorf("seed %d: %w", seed, err))
			}
		}
	}
}

// damage changes bytes and bits, and copies pages over others.
func damage(image []byte, seed int) []byte {
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	page := os.Getpagesize()
	b := bytes.Clone(image)
	for range 1 + r.IntN(12) {
		switch i := r.IntN(len(b)); r.IntN(4) {
		case 0:
			b[i] = byte(r.Uint32())
		case 1:
			b[i] ^= 1 << r.IntN(8)
		case 2: // in the head of a page, which bbolt follows
			b[i/page*page+r.IntN(64)] = byte(r.IntN(16))
		case 3:
			from, to := i/page*page, r.IntN(len(b)/page)*page
			if r.IntN(4) == 0 {
				copy(b[to:to+page], b[from:from+page])
			}
		}
	}
	return b
}

// workOn reads everything and changes something, as an ADD, a DEL and a list do.
func workOn(s *Store) error {
	ctx := context.Background()
	for range 2 {
		err := s.Update(ctx, func(tx *Tx) error {
			if err := tx.ForEach("", func(Attachment) error { return nil }); err != nil {
				return err
			}
			if err := tx.ForEachLease("", func(Lease) error { return nil }); err != nil {
				return err
			}
			if _, _, err := tx.ReleaseLease(key(40)); err != nil {
				return err
			}
			if err := tx.PutLease(lease(40)); err != nil && !errors.As(err, new(*AddressInUseError)) {
				return err
			}
			return tx.Put(attachment(40))
		})
		if err != nil && !errors.Is(err, ErrSchema) && !errors.As(err, new(*MACInUseError)) {
			return err
		}
	}
	return nil
}

// damageSeeds is how many damaged files are tried; 8,000 of them took a minute and had one that made bbolt loop, which
// is what TestWriterThatDiesEachTimeIsTheFilesFault is about.
const damageSeeds = 400

func TestDamageNeverEndsTheProcess(t *testing.T) {
	s := newStore(t)
	for i := range 60 { // one by one, so that freed pages stand between used ones
		update(t, s, func(tx *Tx) error { return errors.Join(tx.Put(attachment(2*i)), tx.PutLease(lease(2*i))) })
	}
	dir := t.TempDir()
	image, err := os.ReadFile(s.dbPath())
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "image"), image, 0o600))
	helper := startHelper(t, "damage", dir, "DAMAGE_FROM=0", "DAMAGE_TO="+strconv.Itoa(damageSeeds))
	// A loop would hang the test: its end is then the test's own time limit.
	if err := helper.Wait(); err != nil {
		seed, _ := os.ReadFile(filepath.Join(dir, "seed"))
		t.Errorf("at seed %s: %v", seed, err)
	}
	failures(t, dir)
}

func init() {
	helpers["die"] = func(dir string) {
		fmt.Print("r")
		_ = storeIn(dir, attachment(7)).Update(context.Background(), func(*Tx) error {
			os.Exit(0) // as a killed process, or one whose stack is exhausted
			return nil
		})
	}
}

func TestWriterThatDiesEachTimeIsTheFilesFault(t *testing.T) {
	s := newStore(t, attachment(7))
	fillStore(t, s, 1)
	die := func(n int) {
		for range n {
			must(t, startHelper(t, "die", s.dir).Wait())
		}
	}
	asFilled := func(when string, want bool) {
		t.Helper()
		update(t, s, func(tx *Tx) error {
			_, filled, err := tx.Attachment(key(0))
			if filled != want || err != nil {
				t.Errorf("%s: the file's own attachment is there: %v, want %v; %v", when, filled, want, err)
			}
			return nil
		})
	}
	for range 2 { // the count begins anew with each writer that ends
		die(maxDied - 1)
		asFilled("few died", true)
	}
	die(maxDied)
	asFilled("too many died", false)
	if kept, _ := filepath.Glob(s.dbPath() + ".corrupt-*"); len(kept) != 1 {
		t.Errorf("files set aside: want one, got %v", kept)
	}
	asFilled("after the rebuild", false)
}
