package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Socket is a listening socket at a path that is this process's alone.
type Socket struct {
	*net.UnixListener
	path string
	lock *os.File
}

// Listen takes the path: an flock on "<path>.lock" says that a tapird lives, and goes with it however it ends. The socket is made
// beside the path and renamed over what an earlier one left, so that whoever connects finds the old one or the new one. Its
// mode is 0666: who may have what is decided for each request.
func Listen(path string) (_ *Socket, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := letPass(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	lock, err := takeLock(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(fresh, 0o666), os.Rename(fresh, path)); err != nil {
		return nil, errors.Join(fmt.Errorf("listen at %s: %w", path, err), l.Close())
	}
	return &Socket{UnixListener: l, path: path, lock: lock}, nil
}

// takeLock takes the lock, or says who has it. Whoever had it removes the file: a lock on one that is not at the path any more locks
// nobody out, and is taken anew.
func takeLock(path string) (*os.File, error) {
	for {
		f, err := tryLock(path)
		if err != nil {
			return nil, err
		}
		held, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if there, err := os.Stat(path); err == nil && os.SameFile(held, there) {
			return f, nil
		}
		_ = f.Close()
	}
}

func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		who, _ := os.ReadFile(path) // only for the message
		return nil, fmt.Errorf("another tapird runs there, pid %s; stop it, or set another --socket", strings.TrimSpace(string(who)))
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := fmt.Fprintln(f, os.Getpid()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Remove stops listening, removes the socket's file and the lock's, which it holds, and lets the next tapird in.
func (s *Socket) Remove() error {
	var err error
	for _, path := range []string{s.path, s.path + ".lock"} {
		if e := os.Remove(path); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	if closeErr := s.Close(); !errors.Is(closeErr, net.ErrClosed) {
		err = errors.Join(err, closeErr)
	}
	return errors.Join(err, s.lock.Close())
}
