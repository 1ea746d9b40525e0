package main

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// usableCPUs are those that this process may use, read before any thread is pinned; nil where there are fewer than two.
var usableCPUs = sync.OnceValue(func() *unix.CPUSet {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil || all.Count() < 2 {
		return nil
	}
	return &all
})

// pinned runs f on a thread that stays on the nth usable CPU.
func pinned(nth int, f func() error) error {
	result := make(chan error)
	go func() {
		defer pin(nth)()
		result <- f()
	}()
	return <-result
}

// pin locks the goroutine to a thread and that to the nth of the usable CPUs, so that writer and reader do not meet on one by
// chance. With a single CPU there is nothing to choose. It gives what undoes it.
func pin(nth int) (undo func()) {
	runtime.LockOSThread()
	all := usableCPUs()
	if all == nil {
		return runtime.UnlockOSThread
	}
	var one unix.CPUSet
	for cpu, seen := 0, 0; ; cpu++ {
		if !all.IsSet(cpu) {
			continue
		}
		if seen == nth%all.Count() {
			one.Set(cpu)
			break
		}
		seen++
	}
	if unix.SchedSetaffinity(0, &one) != nil {
		return runtime.UnlockOSThread
	}
	return func() {
		if unix.SchedSetaffinity(0, all) == nil {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
	}
}
