package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// tempPrefix begins the names of files that are being written. No runtime takes them for a plugin or a configuration.
const tempPrefix = ".tapir-new-"

// fresh is a file that is being written: all of it is on disk before it gets its name.
type fresh struct {
	path string   // of the temporary file
	lock *os.File // open for reading, with an flock that says that its writer lives
}

// write makes a temporary file beside path with that content.
func write(path string, mode fs.FileMode, content func(io.Writer) error) (_ fresh, err error) {
	// A child that is forked while the file is open for writing holds it open until it has executed its program, and nobody can execute the
	// file before that (ETXTBSY): none is forked meanwhile.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	f, err := os.CreateTemp(filepath.Dir(path), tempPrefix+filepath.Base(path)+"-*")
	if err != nil {
		return fresh{}, err
	}
	n := fresh{path: f.Name()}
	defer func() {
		if err != nil {
			_ = f.Close() // it may be closed
			err = errors.Join(err, n.drop())
		}
	}()
	if n.lock, err = os.Open(n.path); err != nil {
		return n, err
	}
	if err := unix.Flock(int(n.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return n, fmt.Errorf("lock %s: %w", n.path, err)
	}
	if err := content(f); err != nil {
		return n, err
	}
	return n, errors.Join(f.Chmod(mode), f.Sync(), f.Close())
}

// drop removes the temporary file.
func (n fresh) drop() error {
	err := ignoreNotExist(os.Remove(n.path))
	if n.lock != nil {
		n.lock.Close()
	}
	return err
}

// replace puts content into a file, whole or not at all. A program that runs from the old one goes on with that.
func replace(path string, mode fs.FileMode, content func(io.Writer) error) error {
	n, err := write(path, mode, content)
	if err != nil {
		return err
	}
	if err := os.Rename(n.path, path); err != nil {
		return errors.Join(err, n.drop())
	}
	n.lock.Close()
	return syncDir(filepath.Dir(path))
}

// exchange puts content into a file in place of before. Where somebody else has written it since it was before, it gives what they wrote.
func exchange(path string, mode fs.FileMode, before, content []byte) (theirs []byte, err error) {
	n, err := write(path, mode, func(w io.Writer) error { return writeAll(w, content) })
	if err != nil {
		return nil, err
	}
	err = unix.Renameat2(unix.AT_FDCWD, n.path, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // a file system that cannot; a file that is gone
		if err := os.Rename(n.path, path); err != nil {
			return nil, errors.Join(err, n.drop())
		}
		n.lock.Close()
		return nil, syncDir(filepath.Dir(path))
	}
	if err != nil {
		return nil, errors.Join(&os.LinkError{Op: "exchange", Old: n.path, New: path, Err: err}, n.drop())
	}
	was, err := os.ReadFile(n.path)
	if !bytes.Equal(was, before) {
		theirs = was
	}
	return theirs, errors.Join(err, n.drop(), syncDir(filepath.Dir(path)))
}

func writeAll(w io.Writer, content []byte) error {
	_, err := w.Write(content)
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some file systems sync no folder: the rename is then as safe as they make it.
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// sweep removes what writers left that were killed. What a living one writes is left alone.
func sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ignoreNotExist(err)
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), tempPrefix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		f, err := os.Open(path)
		if err != nil {
			errs = append(errs, ignoreNotExist(err))
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			errs = append(errs, ignoreNotExist(os.Remove(path)))
		}
		f.Close()
	}
	return errors.Join(errs...)
}

// copyProgram puts a program where the runtime finds it, unless it is there already.
func copyProgram(from, to string) (changed bool, err error) {
	same, err := sameFile(from, to)
	if err != nil || same {
		return false, err
	}
	f, err := os.Open(from)
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = replace(to, 0o755, func(w io.Writer) error {
		_, copyErr := io.Copy(w, f)
		return copyErr
	})
	return err == nil, err
}

// sameFile tells whether to is a program with from's content. A from that is not there is an error.
func sameFile(from, to string) (bool, error) {
	a, err := os.Open(from)
	if err != nil {
		return false, err
	}
	defer a.Close()
	ai, err := a.Stat()
	if err != nil {
		return false, err
	}
	bi, err := os.Lstat(to)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || ai.Size() != bi.Size() || bi.Mode() != 0o755 {
		return false, err
	}
	b, err := os.Open(to)
	if err != nil {
		return false, ignoreNotExist(err)
	}
	defer b.Close()
	bufA, bufB := make([]byte, 1<<16), make([]byte, 1<<16)
	for {
		n, errA := io.ReadFull(a, bufA)
		m, errB := io.ReadFull(b, bufB)
		if n != m || !bytes.Equal(bufA[:n], bufB[:m]) {
			return false, nil
		}
		if errA != nil || errB != nil {
			return isEnd(errA) && isEnd(errB), nil
		}
	}
}

func isEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// putFile writes content unless the file has it.
func putFile(path string, mode fs.FileMode, content []byte) (changed bool, err error) {
	if has, err := os.ReadFile(path); err == nil && bytes.Equal(has, content) {
		return false, nil
	}
	err = replace(path, mode, func(w io.Writer) error { return writeAll(w, content) })
	return err == nil, err
}

// confs are the names of the configurations in a folder, in the order in which runtimes look at them.
func confs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, ignoreNotExist(err)
	}
	var names []string
	for _, e := range entries { // sorted
		if !e.IsDir() && isConf(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
