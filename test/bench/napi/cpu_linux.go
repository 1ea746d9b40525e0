package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tick is what /proc/stat counts in: 1/USER_HZ, which is 100 on every architecture that Go knows.
const tick = 10 * time.Millisecond

// machineBusy is the CPU time that the machine spent since boot, all CPUs, processes and interrupts together. It is counted by
// sampling at the timer's tick.
func machineBusy() (time.Duration, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat: want a first line of all CPUs, got %q", line)
	}
	var ticks int64
	// user nice system idle iowait irq softirq; steal is not spent here, guest is in user already.
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %q: %w", line, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// taskRuntime is the CPU time of one thread, in the scheduler's nanoseconds; interrupts that it was charged with are in it.
func taskRuntime(pid, tid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/schedstat", pid, tid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data))
	if len(fields) == 0 {
		return 0, fmt.Errorf("schedstat of thread %d is empty", tid)
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	return time.Duration(n), err
}

// threads lists the threads of a process.
func threads(pid int) ([]int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, err
	}
	var tids []int
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, err
		}
		tids = append(tids, tid)
	}
	return tids, nil
}

// processRuntime is the CPU time of all threads of a process that still run.
func processRuntime(pid int) (time.Duration, error) {
	tids, err := threads(pid)
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, tid := range tids {
		spent, err := taskRuntime(pid, tid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended since
		}
		if err != nil {
			return 0, err
		}
		sum += spent
	}
	return sum, nil
}

// pollThreads finds the kernel threads that poll the queues of the TAP with that name (napi_kthread_create in net/core/dev.c
// calls them napi/NAME-ID).
func pollThreads(name string) ([]int, error) {
	comms, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	prefix := "napi/" + name + "-"
	var pids []int
	for _, path := range comms {
		comm, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended since
		}
		if !strings.HasPrefix(string(comm), prefix) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// pin keeps a thread on one CPU.
func pin(tid, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(tid, &set); err != nil {
		return fmt.Errorf("keep thread %d on CPU %d: %w", tid, cpu, err)
	}
	return nil
}
