package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func init() {
	// hold keeps the hold of the first attachment until it is killed.
	helpers["hold"] = func(dir string) {
		_, err := AcquireHold(context.Background(), dir, key(1), time.Second)
		if err != nil {
			fmt.Fprintln(os.Stderr, "helper hold:", err)
			return
		}
		fmt.Print("r")
		time.Sleep(time.Hour)
	}
	// hold-often takes and releases it many times, and notes where it was not alone.
	helpers["hold-often"] = func(dir string) {
		fmt.Print("r")
		for range 300 {
			h, err := AcquireHold(context.Background(), dir, key(1), time.Minute)
			if err != nil {
				fail(dir, err)
			}
			f, err := os.OpenFile(filepath.Join(dir, "alone"), os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				fail(dir, err)
			}
			f.Close()
			if err := errors.Join(os.Remove(f.Name()), h.Release()); err != nil {
				fail(dir, err)
			}
			Held(dir, key(1)) // a look must disturb nobody
		}
	}
}

// fail leaves a message for the test in a file below dir, and ends the helper.
func fail(dir string, err error) {
	_ = os.WriteFile(filepath.Join(dir, "failed-"+strconv.Itoa(os.Getpid())), []byte(err.Error()), 0o600)
	os.Exit(1)
}

// failures reports what helpers left.
func failures(t *testing.T, dir string) {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "failed-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range list {
		text, _ := os.ReadFile(name)
		t.Errorf("%s: %s", filepath.Base(name), text)
	}
}

func TestHoldIsSeenByOthersUntilItsProcessEnds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tapir")
	helper := startHelper(t, "hold", dir)
	if !Held(dir, key(1)) {
		t.Error("the attachment is not held while another process holds it")
	}
	if Held(dir, key(2)) {
		t.Error("another attachment is held")
	}
	start := time.Now()
	_, err := AcquireHold(t.Context(), dir, key(1), 50*time.Millisecond)
	if !errors.Is(err, ErrBusy) || !contains(err.Error(), strconv.Itoa(helper.Process.Pid)) {
		t.Errorf("second hold: want ErrBusy that names pid %d, got %v", helper.Process.Pid, err)
	}
	if took := time.Since(start); took < 50*time.Millisecond || took > 2*time.Second {
		t.Errorf("second hold waited for %v", took)
	}
	_ = helper.Process.Kill()
	_ = helper.Wait()
	// The wait that was given up above gets the lock now, and lets go of it.
	for deadline := time.Now().Add(5 * time.Second); Held(dir, key(1)); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the attachment is held by a dead process")
		}
	}
	h, err := AcquireHold(t.Context(), dir, key(1), time.Second)
	if err != nil {
		t.Fatalf("hold after the holder died: %v", err)
	}
	if !Held(dir, key(1)) {
		t.Error("the attachment is not held by this process")
	}
	if err := errors.Join(h.Release(), h.Release()); err != nil {
		t.Errorf("Release, twice: %v", err)
	}
	if Held(dir, key(1)) {
		t.Error("the attachment is held after the release")
	}
	if list, _ := os.ReadDir(filepath.Join(dir, "adding")); len(list) != 0 {
		t.Errorf("released holds left %v", list)
	}
}

func TestRemoveTakesDeadHoldsAlongAndLeavesLiveOnes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tapir")
	helper := startHelper(t, "hold", dir)
	store := New(Config{Dir: dir})
	for _, want := range []int{1, 0} {
		if got, err := Holds(dir); got != want || err != nil {
			t.Errorf("Holds: got %d (%v), want %d", got, err, want)
		}
		if _, err := store.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := exists(dir); got != (want == 1) {
			t.Errorf("with %d live holds the state directory is there after Remove: %t", want, got)
		}
		_ = helper.Process.Kill()
		_ = helper.Wait()
	}
}

func TestHoldIsTakenByTheOneWhoWaits(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tapir")
	first, err := AcquireHold(t.Context(), dir, key(1), 0)
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error)
	go func() {
		h, err := AcquireHold(t.Context(), dir, key(1), time.Minute)
		if err == nil {
			err = h.Release()
		}
		second <- err
	}()
	time.Sleep(20 * time.Millisecond)
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Errorf("the second holder: %v", err)
	}
}

// The file is unlinked at each release, which is where two holders at once would come from.
func TestHoldHasOneHolderAmongProcesses(t *testing.T) {
	dir := t.TempDir()
	for range 6 {
		helper := startHelper(t, "hold-often", dir)
		defer func() {
			if err := helper.Wait(); err != nil {
				t.Errorf("helper: %v", err)
			}
			failures(t, dir)
		}()
	}
}
