// Package netns runs a function in another network namespace.
package netns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Within runs f in the network namespace at path, on a thread that comes back from there, or ends where it cannot; "" is the
// calling thread's. One that always ended would take along processes that were started from it with a parent-death signal.
func Within(path string, f func() error) error {
	if path == "" {
		runtime.LockOSThread() // f opens several things, all in one namespace
		defer runtime.UnlockOSThread()
		return f()
	}
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open its network namespace: %w", err)
	}
	defer ns.Close()
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("open the thread's network namespace: %w", err)
			return
		}
		defer home.Close()
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter its network namespace %s: %w", path, err)
		} else {
			err = f()
		}
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // else the thread ends with the goroutine: nothing else may run on it
		}
		result <- err
	}()
	return <-result
}
