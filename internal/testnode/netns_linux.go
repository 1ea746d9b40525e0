package testnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// netnsDir is where iproute2 and container runtimes keep named netns.
const netnsDir = "/run/netns"

var netnsCount atomic.Uint64

// The first thread of a process never ends: a test that left it in a sandbox's netns would keep that alive. It stays with
// the main goroutine, which runs no test.
func init() { runtime.LockOSThread() }

// NewNetns creates a network namespace as a container runtime does, lo down, bind-mounted on a file of a unique name
// under /run/netns, and gives the file's path. It is removed when the test ends; a test may remove it before.
// It requires "root".
func NewNetns(t testing.TB) string {
	t.Helper()
	Require(t, "root")
	path := filepath.Join(netnsDir, fmt.Sprintf("node-%d-%d", os.Getpid(), netnsCount.Add(1)))
	result := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and nobody else runs in this netns.
		runtime.LockOSThread()
		result <- createNetns(path)
	}()
	if err := <-result; err != nil {
		t.Fatalf("create netns %s: %v", path, err)
	}
	t.Cleanup(func() {
		if err := removeNetns(path); err != nil {
			t.Errorf("remove netns %s: %v", path, err)
		}
	})
	return path
}

// createNetns moves the calling thread into a new netns and mounts that on path.
func createNetns(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return errors.Join(fmt.Errorf("unshare: %w", err), os.Remove(path))
	}
	if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
		return errors.Join(fmt.Errorf("mount: %w", err), os.Remove(path))
	}
	return nil
}

func removeNetns(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// In runs f on the calling goroutine, whose thread is locked and in the netns at path meanwhile. Processes that f
// starts are in that netns; goroutines that it starts are not. f may end by t.FailNow; calls may nest.
func In(t testing.TB, path string, f func()) {
	t.Helper()
	Require(t, "root")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // after the thread is back, or the process is gone
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatalf("open the current netns: %v", err)
	}
	defer home.Close()
	there, err := os.Open(path)
	if err != nil {
		t.Fatalf("open netns: %v", err)
	}
	err = unix.Setns(int(there.Fd()), unix.CLONE_NEWNET)
	_ = there.Close() // not held while f runs: f may remove the netns
	if err != nil {
		t.Fatalf("enter netns %s: %v", path, err)
	}
	defer func() {
		if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
			panic(fmt.Sprintf("testnode: leave netns %s: %v", path, err)) // no test may run on in the wrong netns
		}
	}()
	f()
}
