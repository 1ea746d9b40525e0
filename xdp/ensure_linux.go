package xdp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// tempPrefix starts the name of a version's directory while it is being filled. Who holds the directory's lock may take
// any that it finds for the remains of a loader that was killed.
const tempPrefix = "tmp-"

// Ensure opens the programs of this binary's version in dir, and loads and pins them first where they are not. It mounts
// bpffs on /sys/fs/bpf where dir is in there and nobody has. Several processes may call it at once, and one may die at
// any moment: a version's directory appears whole, by a rename. One that lost some of its pins since then is completed, with
// the maps and programs of the running attachments where anything pinned still leads to them.
//
// A process that cannot get the lock of dir within 30 seconds gives [ErrLocked]. A kernel that cannot do it gives an
// [UnsupportedError].
func Ensure(dir string) (*Programs, error) {
	p, err := openComplete(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	if err := mountFor(dir); err != nil {
		return nil, fmt.Errorf("pin programs in %q: %w", dir, err)
	}
	lock, err := lockDir(dir, true)
	if err != nil {
		return nil, fmt.Errorf("pin programs in %q: %w", dir, err)
	}
	defer lock.Close()

	p, err = openComplete(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	if err := load(dir); err != nil {
		return nil, fmt.Errorf("pin programs in %q: %w", dir, err)
	}
	return Open(dir)
}

// openComplete is Open where every pin is there, else [fs.ErrNotExist].
func openComplete(dir string) (*Programs, error) {
	p, err := Open(dir)
	if err != nil || complete(p.dir) {
		return p, err
	}
	return nil, errors.Join(fmt.Errorf("open programs in %q: some pins are gone: %w", p.dir, fs.ErrNotExist), p.Close())
}

// load creates the maps and programs that are not there and pins all in dir, whose lock the caller holds.
func load(dir string) (err error) {
	if err := removeTemp(dir); err != nil {
		return err
	}
	spec, err := loadRedirect()
	if err != nil {
		return err
	}
	version := filepath.Join(dir, versionPrefix+Digest())
	left, err := openRemains(version)
	if err != nil {
		return err
	}
	defer left.Close()
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: left.maps})
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("load programs: %w; it needs CAP_BPF and CAP_NET_ADMIN", err)
		}
		return fmt.Errorf("load programs: %w", err)
	}
	defer coll.Close()

	temp := filepath.Join(dir, fmt.Sprintf("%s%d", tempPrefix, os.Getpid()))
	if err := os.Mkdir(temp, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temp)) // or the programs stay loaded until somebody loads them again
		}
	}()
	for name, m := range coll.Maps {
		if err := m.Pin(filepath.Join(temp, name)); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	for name, prog := range coll.Programs {
		if old := left.programs[name]; old != nil {
			prog = old
		}
		if err := prog.Pin(filepath.Join(temp, name)); err != nil {
			return fmt.Errorf("pin program %s: %w", name, err)
		}
	}
	return replace(temp, version)
}

func removeTemp(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove what a killed loader left: %w", err)
			}
		}
	}
	return nil
}

// Remove unpins all versions in dir and removes dir, and unmounts the bpffs that [Ensure] mounted when nothing else is
// pinned there. What is attached stays attached. A dir that does not exist is success.
func Remove(dir string) error {
	lock, err := lockDir(dir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return unmountOwn()
	}
	if err != nil {
		return fmt.Errorf("unpin programs in %q: %w", dir, err)
	}
	err = os.RemoveAll(dir)
	_ = lock.Close() // before unmounting: an open directory keeps the mount busy
	if err != nil {
		return fmt.Errorf("unpin programs: %w", err)
	}
	return unmountOwn()
}
