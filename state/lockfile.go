package state

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile takes an flock (how is unix.LOCK_EX or LOCK_SH) on the file at path, made with mode 0600 where create is
// set, and waits for it for at most wait. The file may be unlinked by whoever holds the lock: what was locked is
// compared with what stands at path, and the lock taken again where they differ.
//
// The error is a *[LockedError] after the wait, the context's error when that ends first, else the system's. A wait
// that was given up leaves one goroutine in flock(2), since nothing can interrupt that; it lets go of the lock as soon
// as it gets it. late, which may be nil, is called at the end of a wait that was given up, and in no other case.
func lockFile(ctx context.Context, path string, how int, wait time.Duration, create bool, late func()) (*os.File, error) {
	start := time.Now()
	flags := os.O_RDONLY
	if create {
		flags = os.O_RDWR | os.O_CREATE
	}
	for {
		f, err := os.OpenFile(path, flags, 0o600)
		if err != nil {
			return nil, err
		}
		got, err := flock(ctx, f, how, wait-time.Since(start), late)
		if !got {
			if err == nil {
				pid, comm := lockHolder(path)
				err = &LockedError{Path: path, Wait: wait, PID: pid, Comm: comm}
			}
			return nil, err
		}
		same, err := standsAt(f, path)
		if same {
			return f, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
}

// flock locks f; got == false with a nil error is a wait that ran out. Unless it got the lock, f is closed, if not
// now then later.
func flock(ctx context.Context, f *os.File, how int, wait time.Duration, late func()) (got bool, err error) {
	err = flockRetry(f, how|unix.LOCK_NB)
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		f.Close()
		return false, &fs.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	if wait <= 0 {
		f.Close()
		if late != nil {
			late()
		}
		return false, nil
	}
	result, givenUp := make(chan error), make(chan struct{})
	go func() {
		err := flockRetry(f, how)
		select {
		case result <- err:
		case <-givenUp:
			f.Close()
			if late != nil {
				late()
			}
		}
	}()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case err := <-result:
		if err != nil {
			f.Close()
			return false, &fs.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
		return true, nil
	case <-timer.C:
		close(givenUp)
		return false, nil
	case <-ctx.Done():
		close(givenUp)
		return false, fmt.Errorf("lock %q: %w", f.Name(), context.Cause(ctx))
	}
}

func flockRetry(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if err != unix.EINTR {
			return err
		}
	}
}

// standsAt tells whether path still names the open file f.
func standsAt(f *os.File, path string) (bool, error) {
	open, err := f.Stat()
	if err != nil {
		return false, err
	}
	now, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return os.SameFile(open, now), nil
}

// lockHolder finds the process that holds an flock on the file at path, by /proc/locks (proc_locks(5)); 0 where it is
// not told, as for a holder in another pid namespace.
func lockHolder(path string) (pid int, comm string) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, ""
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, ""
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	f, err := os.Open("/proc/locks")
	if err != nil {
		return 0, ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// "1: FLOCK  ADVISORY  WRITE 714 00:19:1234 0 EOF"; "->" as second word marks one that waits.
		words := strings.Fields(lines.Text())
		if len(words) < 6 || words[1] != "FLOCK" || words[5] != file {
			continue
		}
		pid, err := strconv.Atoi(words[4])
		if err != nil || pid <= 0 {
			continue
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // the process may be gone by now
		return pid, strings.TrimSpace(string(name))
	}
	return 0, ""
}
