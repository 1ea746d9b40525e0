package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// realtime keeps other programs off the calling thread's CPU until back is called, where the kernel allows it: a measured thread is never
// preempted then. Threads that io_uring makes for it are like it.
func realtime() (back func()) {
	err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	if err != nil {
		return func() {} // without CAP_SYS_NICE, or in a cgroup without real time: the medians are wider then
	}
	return func() {
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0)
	}
}

// clock reads a CPU clock: unix.CLOCK_PROCESS_CPUTIME_ID, which has the threads that io_uring makes for this process in it, or
// unix.CLOCK_THREAD_CPUTIME_ID.
func clock(id int32) (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0, fmt.Errorf("read CPU clock %d: %w", id, err)
	}
	return time.Duration(ts.Nano()), nil
}

// tick is what /proc/stat counts in: USER_HZ is 100 on all that Linux runs on here.
const tick = 10 * time.Millisecond

// machineBusy is the time that all CPUs have not been idle: what other processes and the kernel's own threads used is in it.
func machineBusy() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseBusy(string(text))
}

// parseBusy adds user, nice, system, irq and softirq of the line of all CPUs (man proc_stat).
func parseBusy(text string) (time.Duration, error) {
	line, _, _ := strings.Cut(text, "\n")
	f := strings.Fields(line)
	if len(f) < 8 || f[0] != "cpu" {
		return 0, fmt.Errorf("read /proc/stat: want the line of all CPUs first, got %q", line)
	}
	var ticks int64
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}
