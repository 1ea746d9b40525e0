package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tapir-cni/tapir/internal/testnode"
)

var compare = cmpopts.EquateComparable(address(0).Prefix, address(0).Gateway)

func TestAttachmentIsReadBackAsItWasPut(t *testing.T) {
	s := newStore(t)
	owner := 1000
	want := attachment(1)
	want.Owner, want.DNS = &owner, DNS{Nameservers: []string{"10.0.0.10"}}
	update(t, s, func(tx *Tx) error { return tx.Put(want) })

	for name, run := range map[string]func(testing.TB, *Store, func(*Tx) error){"View": view, "Update": update} {
		run(t, s, func(tx *Tx) error {
			got, ok, err := tx.Attachment(key(1))
			if err != nil || !ok {
				t.Errorf("%s: Attachment: got ok %v, error %v", name, ok, err)
			}
			if diff := cmp.Diff(want, got, compare); diff != "" {
				t.Errorf("%s: attachment (-want +got):\n%s", name, diff)
			}
			if _, ok, err := tx.Attachment(key(2)); ok || err != nil {
				t.Errorf("%s: attachment that was never put: got ok %v, error %v", name, ok, err)
			}
			return nil
		})
	}
}

func TestUpdateThatFailsChangesNothing(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error { return tx.Put(attachment(1)) })
	mine := errors.New("mine")
	err := s.Update(t.Context(), func(tx *Tx) error {
		if err := errors.Join(tx.Put(attachment(2)), tx.Delete(key(1)), tx.PutLease(lease(2))); err != nil {
			t.Errorf("change: %v", err)
		}
		return mine
	})
	if err != mine { //nolint:errorlint // not wrapped: that is what is tested
		t.Errorf("Update: want the function's own error, got %v", err)
	}
	view(t, s, func(tx *Tx) error {
		if got := attachments(t, tx, ""); !cmp.Equal(got, []Key{key(1)}) {
			t.Errorf("attachments: want only the first, got %v", got)
		}
		if _, ok, err := tx.Lease(key(2)); ok || err != nil {
			t.Errorf("lease of the undone update: got ok %v, error %v", ok, err)
		}
		return nil
	})
}

func TestUpdateThatPanicsLetsGoOfTheState(t *testing.T) {
	s := newStore(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic of the function did not come through")
			}
		}()
		_ = s.Update(t.Context(), func(tx *Tx) error { panic("a bug") })
	}()
	fillStore(t, s, 1)
}

func TestForEachKeepsNetworksApart(t *testing.T) {
	s := newStore(t)
	var want []Key
	update(t, s, func(tx *Tx) error {
		for _, k := range []Key{{"net", "a", "eth0"}, {"net", "a", "eth1"}, {"net-2", "a", "eth0"}, {"ne", "t", "eth0"}} {
			if err := tx.Put(Attachment{Key: k}); err != nil {
				return err
			}
			if k.Network == "net" {
				want = append(want, k)
			}
		}
		if got := attachments(t, tx, "net"); !cmp.Equal(got, want) {
			t.Errorf("attachments of net: want %v, got %v", want, got)
		}
		if got := attachments(t, tx, ""); len(got) != 4 {
			t.Errorf("attachments of all networks: want 4, got %v", got)
		}
		// Deleting while iterating must not skip any.
		if err := tx.ForEach("", func(a Attachment) error { return tx.Delete(a.Key) }); err != nil {
			return err
		}
		if got := attachments(t, tx, ""); len(got) != 0 {
			t.Errorf("attachments after all were deleted: got %v", got)
		}
		return nil
	})
}

func attachments(t *testing.T, tx *Tx, network string) (keys []Key) {
	t.Helper()
	if err := tx.ForEach(network, func(a Attachment) error { keys = append(keys, a.Key); return nil }); err != nil {
		t.Errorf("ForEach: %v", err)
	}
	return keys
}

func TestGuestMACBelongsToOneAttachmentOfItsNetwork(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		a, b := attachment(1), attachment(2)
		b.GuestMAC = a.GuestMAC
		if err := tx.Put(a); err != nil {
			return err
		}
		var inUse *MACInUseError
		if err := tx.Put(b); !errors.As(err, &inUse) || inUse.Holder != a.Key {
			t.Errorf("second attachment with the MAC: want a MACInUseError of %q, got %v", a.Key, err)
		}
		b.Network = "other"
		if err := tx.Put(b); err != nil {
			t.Errorf("the same MAC in another network: %v", err)
		}
		if got, ok, err := tx.ByGuestMAC("net", "02:00:00:00:00:01"); got != a.Key || !ok || err != nil {
			t.Errorf("ByGuestMAC: want %q, got %q, %v, %v", a.Key, got, ok, err)
		}
		// A record that changes its MAC gives the old one back, a deleted one too.
		a.GuestMAC = "02:00:00:00:00:99"
		if err := tx.Put(a); err != nil {
			return err
		}
		if got, ok, _ := tx.ByGuestMAC("net", "02:00:00:00:00:01"); ok {
			t.Errorf("the MAC that was given back is still of %q", got)
		}
		if err := tx.Delete(a.Key); err != nil {
			return err
		}
		if got, ok, _ := tx.ByGuestMAC("net", "02:00:00:00:00:99"); ok {
			t.Errorf("the MAC of a deleted attachment is still of %q", got)
		}
		return nil
	})
}

func TestNextIndexBlockCountsInFoursAndGoesRound(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		first, err := tx.NextIndexBlock()
		if err != nil {
			return err
		}
		if first < 1<<20 || first >= 1<<30 || first%4 != 0 {
			t.Errorf("first block: got %d", first)
		}
		second, err := tx.NextIndexBlock()
		if want := first + 4; err != nil || second != want && first != 1<<30-4 {
			t.Errorf("second block: want %d, got %d, %v", want, second, err)
		}
		return tx.put(bucketMeta, metaNextIndex, []byte{0x3f, 0xff, 0xff, 0xfc})
	})
	update(t, s, func(tx *Tx) error {
		for _, want := range []uint32{1<<30 - 4, 1 << 20, 1<<20 + 4} {
			if got, err := tx.NextIndexBlock(); got != want || err != nil {
				t.Errorf("block: want %d, got %d, %v", want, got, err)
			}
		}
		return nil
	})
	// Two new states begin apart: they may serve the same kernel.
	var starts [2]uint32
	for i := range starts {
		update(t, newStore(t), func(tx *Tx) (err error) {
			starts[i], err = tx.NextIndexBlock()
			return err
		})
	}
	if starts[0] == starts[1] {
		t.Errorf("two new states both begin at %d", starts[0])
	}
}

func TestSysctlKeepsTheFirstValueSaved(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error {
		return errors.Join(tx.SaveSysctl("net.ipv4.ip_forward", "0"), tx.SaveSysctl("net.ipv4.ip_forward", "1"),
			tx.SaveSysctl("empty", ""), tx.SaveSysctl("empty", "x"))
	})
	view(t, s, func(tx *Tx) error {
		got, err := tx.Sysctls()
		if want := map[string]string{"net.ipv4.ip_forward": "0", "empty": ""}; !cmp.Equal(want, got) || err != nil {
			t.Errorf("sysctls: want %v, got %v, %v", want, got, err)
		}
		return nil
	})
	update(t, s, func(tx *Tx) error { return errors.Join(tx.DeleteSysctl("empty"), tx.DeleteSysctl("never saved")) })
	view(t, s, func(tx *Tx) error {
		if got, err := tx.Sysctls(); len(got) != 1 || err != nil {
			t.Errorf("sysctls after one was deleted: got %v, %v", got, err)
		}
		return nil
	})
}

func TestMiscIsKeptPerNetwork(t *testing.T) {
	s := newStore(t)
	update(t, s, func(tx *Tx) error { return tx.PutMisc("net", "chain", []byte("a")) })
	update(t, s, func(tx *Tx) error {
		got, err := tx.Misc("net", "chain")
		other, otherErr := tx.Misc("net2", "chain")
		if string(got) != "a" || other != nil || err != nil || otherErr != nil {
			t.Errorf("Misc: got %q, %v and of another network %q, %v", got, err, other, otherErr)
		}
		return tx.PutMisc("net", "chain", nil)
	})
	view(t, s, func(tx *Tx) error {
		if got, err := tx.Misc("net", "chain"); got != nil || err != nil {
			t.Errorf("Misc after it was removed: got %q, %v", got, err)
		}
		return nil
	})
}

func TestWithoutStateReadersSeeNothingAndMakeNothing(t *testing.T) {
	s := newStore(t)
	look := func(tx *Tx) error {
		if got := attachments(t, tx, ""); len(got) != 0 {
			t.Errorf("attachments without state: got %v", got)
		}
		_, leased, err := tx.ReleaseLease(key(1))
		if err != nil || leased {
			t.Errorf("release without state: got %v, %v", leased, err)
		}
		if err := tx.Delete(key(1)); err != nil {
			t.Errorf("delete without state: %v", err)
		}
		if err := tx.Put(attachment(1)); !errors.Is(err, ErrReadOnly) {
			t.Errorf("put without state: want ErrReadOnly, got %v", err)
		}
		if err := tx.PutLease(lease(1)); !errors.Is(err, ErrReadOnly) {
			t.Errorf("lease without state: want ErrReadOnly, got %v", err)
		}
		return nil
	}
	view(t, s, look)
	if err := s.UpdateExisting(t.Context(), look); err != nil {
		t.Errorf("UpdateExisting: %v", err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
	if removed, err := s.Remove(t.Context()); removed || err != nil {
		t.Errorf("Remove: got %v, %v", removed, err)
	}
	if Held(s.Dir(), key(1)) {
		t.Error("an attachment is held without state")
	}
	if exists(s.dir) {
		t.Errorf("readers made %q", s.dir)
	}
}

func TestViewDoesNotWrite(t *testing.T) {
	s := newStore(t)
	fillStore(t, s, 1)
	view(t, s, func(tx *Tx) error {
		if err := tx.Put(attachment(1)); !errors.Is(err, ErrReadOnly) {
			t.Errorf("put in a view: want ErrReadOnly, got %v", err)
		}
		if err := tx.Delete(key(0)); !errors.Is(err, ErrReadOnly) {
			t.Errorf("delete in a view: want ErrReadOnly, got %v", err)
		}
		return nil
	})
}

func TestFilesAreTheOwnersAlone(t *testing.T) {
	s := newStore(t)
	fillStore(t, s, 1)
	h, err := AcquireHold(t.Context(), s.Dir(), key(1), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { must(t, h.Release()) }()
	got := map[string]fs.FileMode{}
	err = filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		name, _ := filepath.Rel(s.dir, path)
		if name == filepath.Join("adding", filepath.Base(h.path)) {
			name = "adding/hold"
		}
		got[name] = info.Mode()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]fs.FileMode{
		".": fs.ModeDir | 0o700, "lock": 0o600, "state.db": 0o600, "adding": fs.ModeDir | 0o700, "adding/hold": 0o600,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestRemoveTakesOnlyAnEmptyStateAway(t *testing.T) {
	s := newStore(t)
	fillStore(t, s, 1)
	if removed, err := s.Remove(t.Context()); removed || err != nil {
		t.Fatalf("Remove with an attachment: got %v, %v", removed, err)
	}
	update(t, s, func(tx *Tx) error {
		_, _, err := tx.ReleaseLease(key(0))
		return errors.Join(err, tx.Delete(key(0)))
	})
	other := filepath.Join(s.dir, "tapird.sock")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if removed, err := s.Remove(t.Context()); !removed || err != nil {
		t.Fatalf("Remove beside a file of others: got %v, %v", removed, err)
	}
	if list, _ := os.ReadDir(s.dir); len(list) != 1 || list[0].Name() != "tapird.sock" {
		t.Errorf("Remove left %v", list)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	fillStore(t, s, 0)
	if removed, err := s.Remove(t.Context()); !removed || err != nil || exists(s.dir) {
		t.Errorf("Remove of an empty state: got %v, %v; the directory is there: %v", removed, err, exists(s.dir))
	}
}

func TestDirectoryThatCannotBeUsedIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"below a file": filepath.Join(file, "tapir"), "a file": file} {
		s := storeIn(dir)
		for verb, err := range map[string]error{
			"Update": s.Update(t.Context(), func(*Tx) error { return nil }),
			"Check":  s.Check(t.Context()),
		} {
			if err == nil || !contains(err.Error(), file) {
				t.Errorf("%s: %s: want an error that names %q, got %v", name, verb, file, err)
			}
		}
	}
	testnode.Require(t, "root")
	// Root is refused by a read-only mount alone.
	s := storeIn("/sys/fs/cgroup/none/tapir")
	if err := s.Update(t.Context(), func(*Tx) error { return nil }); err == nil || !contains(err.Error(), "/sys/fs/cgroup") {
		t.Errorf("Update below /sys: want an error that names the directory, got %v", err)
	}
}
