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

	"golang.org/x/sys/unix"
)

// tempPrefix begins the names of files that are being written. No runtime takes them for a plugin or a configuration.
const tempPrefix = ".tapir-new-"

// replace puts content into a file, whole or not at all: the temporary file has it on disk before it has the name, and a program that runs
// from the old one goes on with that.
func replace(path string, mode fs.FileMode, content func(io.Writer) error) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, tempPrefix+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		if err != nil {
			err = errors.Join(err, ignoreNotExist(os.Remove(f.Name())))
		}
	}()
	if err = content(f); err != nil {
		return err
	}
	if err = errors.Join(f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
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

// sweep removes what an installer left that was killed.
func sweep(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range left {
		errs = append(errs, ignoreNotExist(os.Remove(path)))
	}
	return errors.Join(errs...)
}

// copyProgram puts a program where the runtime finds it, unless it is there already.
func copyProgram(from, to string) (changed bool, err error) {
	same, err := sameFile(from, to)
	if err != nil || same {
		return false, err
	}
	err = replace(to, 0o755, func(w io.Writer) error {
		f, err := os.Open(from)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
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
	b, err := os.Open(to)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer b.Close()
	ai, err := a.Stat()
	if err != nil {
		return false, err
	}
	bi, err := b.Stat()
	if err != nil || ai.Size() != bi.Size() || bi.Mode().Perm()&0o111 == 0 || !bi.Mode().IsRegular() {
		return false, err
	}
	bufA, bufB := make([]byte, 1<<16), make([]byte, 1<<16)
	for {
		n, errA := io.ReadFull(a, bufA)
		m, errB := io.ReadFull(b, bufB)
		if n != m || !bytes.Equal(bufA[:n], bufB[:m]) {
			return false, nil
		}
		if errA != nil || errB != nil {
			return errors.Is(errA, errB) || isEnd(errA) && isEnd(errB), nil
		}
	}
}

func isEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// putFile writes content unless the file has it.
func putFile(path string, content []byte) (changed bool, err error) {
	if has, err := os.ReadFile(path); err == nil && bytes.Equal(has, content) {
		return false, nil
	}
	err = replace(path, 0o644, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
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
		if !e.IsDir() && isConf(e.Name()) && !strings.HasPrefix(e.Name(), tempPrefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
