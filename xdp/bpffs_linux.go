package xdp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	bpffs = "/sys/fs/bpf"

	// mountSource is the first column of /proc/mounts for a bpffs that tapir mounted.
	mountSource = "tapir"

	// A lock is asked for again after a wait that doubles from the first to the second.
	firstRetry = time.Millisecond
	lastRetry  = 50 * time.Millisecond
)

// kernelPins are what a kernel with CONFIG_BPF_PRELOAD puts into each new bpffs.
var kernelPins = []string{"maps.debug", "progs.debug"}

// lockWait is how long to wait for a lock; a test shortens it.
var lockWait = 30 * time.Second

// ErrLocked is the error of a lock that another process held all the time that was waited for it.
var ErrLocked = errors.New("another process holds its lock; try again")

// mustMount tells whether a bpffs must be mounted on /sys/fs/bpf before dir can be created on one. The error says why dir
// can be on none.
func mustMount(dir string) (bool, error) {
	at, err := existing(dir)
	if err != nil {
		return false, err
	}
	if on, err := onBPFFS(at); on || err != nil {
		return false, err
	}
	if rel, err := filepath.Rel(bpffs, filepath.Clean(dir)); err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return false, fmt.Errorf("%q is on no bpffs; mount one there", at)
	}
	if at != bpffs {
		return false, &UnsupportedError{Feature: "bpffs", Needs: "CONFIG_BPF_SYSCALL and sysfs on /sys", Err: fmt.Errorf("stat %s: %w", bpffs, unix.ENOENT)}
	}
	return true, nil
}

// mountFor sees to it that dir is, or can be created, on a bpffs. It mounts one on /sys/fs/bpf alone.
func mountFor(dir string) error {
	if must, err := mustMount(dir); !must || err != nil {
		return err
	}
	// Two processes that mounted at once would hide each other's pins. The lock is on what lies under the mount.
	lock, err := lockDir(bpffs, false)
	if err != nil {
		return err
	}
	defer lock.Close()
	if on, err := onBPFFS(bpffs); on || err != nil {
		return err
	}
	if err := unix.Mount(mountSource, bpffs, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RELATIME, "mode=0700"); err != nil {
		return fmt.Errorf("mount bpffs on %s: %w", bpffs, err)
	}
	return nil
}

// existing is path, or the nearest directory above it that exists.
func existing(path string) (string, error) {
	for path = filepath.Clean(path); ; path = filepath.Dir(path) {
		_, err := os.Stat(path)
		if !errors.Is(err, fs.ErrNotExist) || path == "/" || path == "." {
			return path, err
		}
	}
}

func onBPFFS(path string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(st.Type) == unix.BPF_FS_MAGIC, nil
}

// unmountOwn unmounts /sys/fs/bpf where tapir mounted it and nothing is pinned there.
func unmountOwn() error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	if !strings.Contains(string(mounts), mountSource+" "+bpffs+" bpf ") {
		return nil
	}
	entries, err := os.ReadDir(bpffs)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !slices.Contains(kernelPins, e.Name()) {
			return nil
		}
	}
	if err := unix.Unmount(bpffs, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("unmount %s: %w", bpffs, err)
	}
	return nil
}

// lockDir locks a directory, by flock, until the file that it returns is closed or the process ends. With create it is
// made where it does not exist.
func lockDir(dir string, create bool) (*os.File, error) {
	deadline := time.Now().Add(lockWait)
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		lock, err := openAndLock(dir, create)
		if lock != nil || err != nil {
			return lock, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("lock %q: %w", dir, ErrLocked)
		}
		time.Sleep(retry)
	}
}

// openAndLock is one try; neither lock nor error asks for another.
func openAndLock(dir string, create bool) (*os.File, error) {
	if create {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	f, err := os.Open(dir)
	if create && errors.Is(err, fs.ErrNotExist) {
		return nil, nil // removed since it was made
	}
	if err != nil {
		return nil, err
	}
	held, err := tryLock(f)
	if held && err == nil {
		return f, nil
	}
	_ = f.Close()
	return nil, err
}

// tryLock says whether f is now locked and still what is found at its path: [Remove] may have come first, or a mount.
func tryLock(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, there), err
}
