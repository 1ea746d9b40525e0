package state

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

func TestUnreadableFileIsSetAsideAndRebuilt(t *testing.T) {
	good := newStore(t)
	fillStore(t, good, 300)
	image, err := os.ReadFile(good.dbPath())
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	random := make([]byte, len(image))
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	cases := map[string][]byte{
		"text":                  []byte("hello\n"),
		"zeros":                 make([]byte, 8*page),
		"random":                random,
		"cut in the first page": image[:page/2],
		"cut after two pages":   image[:2*page],
		"cut after four pages":  image[:4*page],
		"cut in the middle":     image[:len(image)/2],
		"meta pages alone good": append(append([]byte{}, image[:2*page]...), random[:len(image)-2*page]...),
	}
	for name, damaged := range cases {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, attachment(7))
			fillStore(t, s, 0)
			if err := os.WriteFile(s.dbPath(), damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			// Reads all, so that it meets the damage wherever it is.
			check := func(tx *Tx) error {
				got := attachments(t, tx, "")
				if len(got) != 1 || got[0] != key(7) {
					return fmt.Errorf("attachments: want those of the kernel, got %v", got)
				}
				a, _, err := tx.Attachment(key(7))
				if err != nil || !a.Rebuilt {
					return fmt.Errorf("attachment: want it marked as rebuilt, got %v, %v", a, err)
				}
				l, ok, err := tx.Lease(key(7))
				if err != nil || !ok || l.Addresses[0] != address(7) {
					return fmt.Errorf("lease of the rebuilt attachment: got %v, %v, %v", l, ok, err)
				}
				return nil
			}
			view(t, s, check)
			update(t, s, check)
			kept, err := filepath.Glob(s.dbPath() + ".corrupt-*")
			if err != nil || len(kept) != 1 {
				t.Fatalf("files set aside: want one, got %v, %v", kept, err)
			}
			if got, err := os.ReadFile(kept[0]); err != nil || string(got) != string(damaged) {
				t.Errorf("the file that was set aside is not the damaged one: %v", err)
			}
		})
	}
}

func TestUndecodableRecordIsRebuilt(t *testing.T) {
	for name, damage := range map[string]func(tx *Tx) error{
		"attachment":            func(tx *Tx) error { return tx.put(bucketAttachments, key(0).bytes(), []byte(`{"net`)) },
		"attachment of another": func(tx *Tx) error { return tx.put(bucketAttachments, key(0).bytes(), []byte(`{}`)) },
		"lease":                 func(tx *Tx) error { return tx.put(bucketLeases, key(0).bytes(), nil) },
		"address":               func(tx *Tx) error { return tx.put(bucketAddresses, addrBytes(address(0).Prefix.Addr()), []byte("x")) },
		"run":                   func(tx *Tx) error { return tx.put(bucketRuns, addrBytes(address(0).Prefix.Addr()), []byte("x")) },
		"address lost":          func(tx *Tx) error { return tx.delete(bucketAddresses, addrBytes(address(0).Prefix.Addr())) },
		"run lost":              func(tx *Tx) error { return tx.delete(bucketRuns, addrBytes(address(0).Prefix.Addr())) },
		"schema":                func(tx *Tx) error { return tx.put(bucketMeta, metaSchema, []byte("one")) },
		"bucket": func(tx *Tx) error {
			return tx.b.DeleteBucket(bucketLeases)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			fillStore(t, s, 1)
			update(t, s, damage)
			s.rebuild = func(context.Context) ([]Attachment, error) { return []Attachment{attachment(0)}, nil }
			runs := 0
			err := s.Update(t.Context(), func(tx *Tx) error {
				runs++
				if _, _, err := tx.Attachment(key(0)); err != nil {
					return err
				}
				_, _, err := tx.ReleaseLease(key(0))
				return err
			})
			if err != nil {
				t.Errorf("Update: %v", err)
			}
			if kept, _ := filepath.Glob(s.dbPath() + ".corrupt-*"); len(kept) != 1 {
				t.Errorf("files set aside: want one, got %v (the function ran %d times)", kept, runs)
			}
			view(t, s, func(tx *Tx) error {
				if a, ok, err := tx.Attachment(key(0)); !ok || !a.Rebuilt || err != nil {
					t.Errorf("attachment: got %v, %v, %v", a, ok, err)
				}
				return nil
			})
		})
	}
}

func TestRebuildThatFailsLeavesTheFileAlone(t *testing.T) {
	s := newStore(t)
	fillStore(t, s, 1)
	if err := os.WriteFile(s.dbPath(), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	noKernel := errors.New("no kernel to ask")
	s.rebuild = func(context.Context) ([]Attachment, error) { return nil, noKernel }
	for verb, do := range map[string]func(context.Context, func(*Tx) error) error{"Update": s.Update, "View": s.View} {
		err := do(t.Context(), func(*Tx) error { t.Error("the function ran on a corrupt state"); return nil })
		if !errors.Is(err, ErrCorrupt) || !errors.Is(err, noKernel) || !contains(err.Error(), s.dbPath()) {
			t.Errorf("%s: want ErrCorrupt with the file and the cause, got %v", verb, err)
		}
	}
	if got, err := os.ReadFile(s.dbPath()); string(got) != "damaged" {
		t.Errorf("the file: got %q, %v", got, err)
	}
	// The same where the file is missing: to start with an empty state would hand out addresses that are used.
	if err := os.Remove(s.dbPath()); err != nil {
		t.Fatal(err)
	}
	for verb, do := range map[string]func(context.Context, func(*Tx) error) error{"Update": s.Update, "View": s.View} {
		if err := do(t.Context(), func(*Tx) error { return nil }); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s without the file: want ErrCorrupt, got %v", verb, err)
		}
	}
	s.rebuild = func(context.Context) ([]Attachment, error) { return []Attachment{attachment(3)}, nil }
	view(t, s, func(tx *Tx) error {
		if got := attachments(t, tx, ""); len(got) != 1 {
			t.Errorf("attachments once the kernel answers again: got %v", got)
		}
		return nil
	})
}

func TestMissingStateIsRebuiltBeforeAnythingElse(t *testing.T) {
	s := newStore(t, attachment(3))
	view(t, s, func(tx *Tx) error {
		if got := attachments(t, tx, ""); len(got) != 1 || got[0] != key(3) {
			t.Errorf("attachments: want the kernel's, got %v", got)
		}
		return nil
	})
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	err := s.Update(t.Context(), func(tx *Tx) error {
		return tx.PutLease(Lease{Key: key(4), Addresses: []Address{address(3)}})
	})
	var inUse *AddressInUseError
	if !errors.As(err, &inUse) || inUse.Holder != key(3) {
		t.Errorf("lease of an address that a tagged device uses: want AddressInUseError of %q, got %v", key(3), err)
	}
}

func TestStateOfAnEarlierBootIsSetAside(t *testing.T) {
	s := newStore(t, attachment(5))
	fillStore(t, s, 2)
	s.bootID = func() (string, error) { return "another boot", nil }
	view(t, s, func(tx *Tx) error {
		if got := attachments(t, tx, ""); len(got) != 1 || got[0] != key(5) {
			t.Errorf("attachments in another boot: want the kernel's, got %v", got)
		}
		return nil
	})
	list, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range list {
		names = append(names, entry.Name())
	}
	if got := strings.Join(names, " "); got != "lock state.db state.db.previous-boot" {
		t.Errorf("files: got %s", got)
	}
}

func TestNewerSchemaIsRefusedAndKept(t *testing.T) {
	s := newStore(t)
	fillStore(t, s, 1)
	update(t, s, func(tx *Tx) error { return tx.put(bucketMeta, metaSchema, []byte("2")) })
	for verb, do := range map[string]func(context.Context, func(*Tx) error) error{"Update": s.Update, "View": s.View} {
		err := do(t.Context(), func(*Tx) error { t.Error("the function ran on an unknown schema"); return nil })
		if !errors.Is(err, ErrSchema) || !contains(err.Error(), s.dbPath()) {
			t.Errorf("%s: want ErrSchema that names the file, got %v", verb, err)
		}
	}
	if kept, _ := filepath.Glob(s.dbPath() + ".*"); len(kept) != 0 {
		t.Errorf("set aside: %v", kept)
	}
}

func TestNewestCorruptFilesAreKept(t *testing.T) {
	s := newStore(t)
	for i := range maxAside + 2 {
		fillStore(t, s, 0)
		if err := os.WriteFile(s.dbPath(), fmt.Append(nil, i), 0o600); err != nil {
			t.Fatal(err)
		}
		update(t, s, func(*Tx) error { return nil })
	}
	kept, _ := filepath.Glob(s.dbPath() + ".corrupt-*")
	if len(kept) != maxAside {
		t.Fatalf("kept: want %d, got %v", maxAside, kept)
	}
	if got, err := os.ReadFile(kept[maxAside-1]); string(got) != fmt.Sprint(maxAside+1) {
		t.Errorf("the newest: got %q, %v", got, err)
	}
}

func TestEmptyFileIsFilled(t *testing.T) {
	s := newStore(t, attachment(1))
	if err := makeDir(s.dir); err != nil {
		t.Fatal(err)
	}
	// What a process leaves that is killed between open and its first write; and one killed before its first commit.
	if err := os.WriteFile(s.dbPath(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		view(t, s, func(tx *Tx) error {
			if got := attachments(t, tx, ""); len(got) != 1 {
				t.Errorf("attachments: got %v", got)
			}
			return nil
		})
		if err := os.Remove(s.dbPath()); err != nil {
			t.Fatal(err)
		}
		db, err := bbolt.Open(s.dbPath(), 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if kept, _ := filepath.Glob(s.dbPath() + ".*"); len(kept) != 0 {
		t.Errorf("set aside: %v", kept)
	}
}

func TestFileLockedByAnotherProgramIsLocked(t *testing.T) {
	s := newStore(t)
	fillStore(t, s, 1)
	db, err := bbolt.Open(s.dbPath(), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { must(t, db.Close()) }()
	s.lockWait = 60 * time.Millisecond
	if err := s.Update(t.Context(), func(*Tx) error { return nil }); !errors.Is(err, ErrLocked) {
		t.Errorf("Update: want ErrLocked, got %v", err)
	}
}
