package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// locked runs fn under the lock of the state; fn is told how many writers before it died there, one after the other.
func (s *Store) locked(ctx context.Context, how int, fn func(died int) error) error {
	timer := time.NewTimer(s.lockWait)
	defer timer.Stop()
	start := time.Now()
	select {
	case s.turn <- struct{}{}:
	case <-timer.C:
		pid, comm := lockHolder(s.lockPath())
		return &LockedError{Path: s.lockPath(), Wait: s.lockWait, PID: pid, Comm: comm}
	case <-ctx.Done():
		return fmt.Errorf("lock state %q: %w", s.lockPath(), context.Cause(ctx))
	}
	// A wait that was given up keeps this process's turn until the lock is let go of, so that a stuck holder costs
	// a long-lived process one waiting thread and not one for each transaction.
	endTurn := func() { <-s.turn }
	f, err := lockFile(ctx, s.lockPath(), how, s.lockWait-time.Since(start), true, endTurn)
	if err != nil {
		var locked *LockedError
		if errors.As(err, &locked) {
			locked.Wait = s.lockWait
			return err
		}
		if ctx.Err() == nil || !errors.Is(err, context.Cause(ctx)) {
			endTurn()
		}
		return fmt.Errorf("lock state: %w", err)
	}
	defer endTurn()
	defer f.Close()
	if how != unix.LOCK_EX {
		return fn(0)
	}
	died := beginWrite(f)
	defer endWrite(f)
	return fn(died)
}

// The first byte of the lock file counts writers that began and did not end. A killed one is no harm; but damage of some
// kinds makes bbolt loop or exhaust the stack, which no recover helps against, and then each writer dies like the one
// before.
const maxDied = 5

// beginWrite counts a writer and tells how many before it did not end. A lock file that cannot be read or written counts
// none: the lock is what matters.
func beginWrite(f *os.File) (died int) {
	var count [1]byte
	if n, err := f.ReadAt(count[:], 0); n == 1 && err == nil {
		died = int(count[0])
	}
	count[0] = byte(min(died+1, 255))
	_, _ = f.WriteAt(count[:], 0)
	return died
}

func endWrite(f *os.File) { _, _ = f.WriteAt([]byte{0}, 0) }
