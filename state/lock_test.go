package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

func init() {
	// lock takes the lock of the state and keeps it until it is killed.
	helpers["lock"] = func(dir string) {
		s := storeIn(dir)
		err := s.locked(context.Background(), unix.LOCK_EX, func(int) error {
			fmt.Print("r")
			time.Sleep(time.Hour)
			return nil
		})
		fmt.Fprintln(os.Stderr, "helper lock:", err)
	}
}

func TestLockedStateNamesWhoHoldsIt(t *testing.T) {
	s := newStore(t)
	fillStore(t, s, 1)
	s.lockWait = 100 * time.Millisecond
	helper := startHelper(t, "lock", s.dir)
	for verb, do := range map[string]func(context.Context, func(*Tx) error) error{"Update": s.Update, "View": s.View} {
		start := time.Now()
		err := do(t.Context(), func(*Tx) error { t.Error("the function ran without the lock"); return nil })
		var locked *LockedError
		if !errors.As(err, &locked) || !errors.Is(err, ErrLocked) {
			t.Fatalf("%s: want a LockedError, got %v", verb, err)
		}
		if locked.PID != helper.Process.Pid || locked.Comm != "state.test" {
			t.Errorf("%s: want holder pid %d (state.test), got %d (%s)", verb, helper.Process.Pid, locked.PID, locked.Comm)
		}
		if took := time.Since(start); took < 100*time.Millisecond || took > 2*time.Second {
			t.Errorf("%s: waited for %v", verb, took)
		}
	}
	if err := helper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.lockWait = 5 * time.Second
	view(t, s, func(*Tx) error { return nil })
}

func TestStuckHolderCostsOneWaitingThread(t *testing.T) {
	s := newStore(t)
	fillStore(t, s, 1)
	s.lockWait = 20 * time.Millisecond
	helper := startHelper(t, "lock", s.dir)
	before, beforeFDs := runtime.NumGoroutine(), openFiles(t)
	for range 20 {
		if err := s.Update(t.Context(), func(*Tx) error { return nil }); !errors.Is(err, ErrLocked) {
			t.Fatalf("Update: want ErrLocked, got %v", err)
		}
	}
	if got := runtime.NumGoroutine() - before; got > 1 {
		t.Errorf("20 waits that were given up left %d goroutines, want 1", got)
	}
	if got := openFiles(t) - beforeFDs; got > 1 {
		t.Errorf("20 waits that were given up left %d open files, want 1", got)
	}
	_ = helper.Process.Kill()
	s.lockWait = 5 * time.Second
	fillStore(t, s, 0)
	deadline := time.Now().Add(5 * time.Second)
	for runtime.NumGoroutine() > before || openFiles(t) > beforeFDs {
		if time.Now().After(deadline) {
			t.Fatalf("after the holder ended: %d goroutines, %d open files, want %d and %d",
				runtime.NumGoroutine(), openFiles(t), before, beforeFDs)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestWaitForTheLockEndsWithItsContext(t *testing.T) {
	s := newStore(t)
	fillStore(t, s, 1)
	s.lockWait = time.Minute
	helper := startHelper(t, "lock", s.dir)
	// The first waits for the lock, the second for the first.
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := s.Update(ctx, func(*Tx) error { return nil })
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Update: want the context's error, got %v", err)
		}
	}
	_ = helper.Process.Kill()
	view(t, s, func(*Tx) error { return nil })
}

func TestGoroutinesTakeTurns(t *testing.T) {
	s := newStore(t)
	s.lockWait = time.Minute
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			err := s.Update(t.Context(), func(tx *Tx) error {
				value, err := tx.Misc("net", "count")
				if err != nil {
					return err
				}
				return errors.Join(tx.PutMisc("net", "count", append(value, '.')), tx.Put(attachment(i)))
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	view(t, s, func(tx *Tx) error {
		value, err := tx.Misc("net", "count")
		if len(value) != 50 || err != nil {
			t.Errorf("50 updates: got %d, %v", len(value), err)
		}
		return nil
	})
}
