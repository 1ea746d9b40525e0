package state

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Hold says that an attachment is being added, checked or removed by this process, for as long as it is kept: nobody
// cleans what is being made. It is an flock, so it ends with the process at the latest.
type Hold struct {
	file *os.File
	path string
}

// holdPath is where the hold of an attachment is: a hash, since the key is longer than a file name may be.
func holdPath(dir string, key Key) string {
	sum := sha256.Sum256([]byte(key.String()))
	return filepath.Join(dir, "adding", hex.EncodeToString(sum[:16]))
}

// AcquireHold takes the hold of the attachment below the state directory dir, which is created where it is missing.
// It waits for another holder for at most wait, then gives an error that is [ErrBusy]. A look by [Held] counts as a
// holder for an instant, so a wait of 0 may find one where there is none.
func AcquireHold(ctx context.Context, dir string, key Key, wait time.Duration) (*Hold, error) {
	path := holdPath(dir, key)
	for {
		f, err := lockFile(ctx, path, unix.LOCK_EX, wait, true, nil)
		if err == nil {
			return &Hold{file: f, path: path}, nil
		}
		var locked *LockedError
		if errors.As(err, &locked) {
			return nil, fmt.Errorf("hold attachment %q: %w: pid %d (%s) did not finish within %v",
				key, ErrBusy, locked.PID, locked.Comm, wait)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("hold attachment %q: %w", key, err)
		}
		if err := makeDir(filepath.Dir(path)); err != nil {
			return nil, fmt.Errorf("hold attachment %q: %w", key, err)
		}
	}
}

// Release lets go of the hold and removes its file. It may be called more than once.
func (h *Hold) Release() error {
	if h.file == nil {
		return nil
	}
	// Unlinked while it is still locked: who waits for the lock sees that its file is no longer the one at path.
	err := os.Remove(h.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	err = errors.Join(err, h.file.Close())
	h.file = nil
	return err
}

// Held tells whether a live process has the hold of the attachment. Where that cannot be found out it is taken as
// held, since to clean what is being made is the worse mistake.
func Held(dir string, key Key) bool {
	f, err := os.Open(holdPath(dir, key))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	// A file without a lock is what a killed process left; its next holder removes it.
	return flockRetry(f, unix.LOCK_SH|unix.LOCK_NB) != nil
}

// Holds counts the attachments below the state directory dir that live processes hold.
func Holds(dir string) (int, error) {
	live := 0
	err := eachHold(dir, unix.LOCK_SH, func(_ string, held bool) error {
		if held {
			live++
		}
		return nil
	})
	return live, err
}

// removeDeadHolds removes what killed processes left of their holds.
func removeDeadHolds(dir string) error {
	return eachHold(dir, unix.LOCK_EX, func(path string, held bool) error {
		if held {
			return nil
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// eachHold calls fn with the file of each hold. One that is not held is locked meanwhile, as how says.
func eachHold(dir string, how int, fn func(path string, held bool) error) error {
	entries, err := os.ReadDir(filepath.Join(dir, "adding"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, "adding", e.Name())
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		held := flockRetry(f, how|unix.LOCK_NB) != nil
		same, err := standsAt(f, path)
		if err == nil && (held || same) {
			err = fn(path, held)
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// makeDir creates dir with mode 0700, and its parents with 0755 where they are missing.
func makeDir(dir string) error {
	parent := filepath.Dir(dir)
	if filepath.Base(dir) == "adding" {
		if err := makeDir(parent); err != nil {
			return err
		}
	} else if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
