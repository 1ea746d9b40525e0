package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// endChildren waits for the processes that the command left to end by themselves, kills those that do not, and gives a
// line for each of these. All of them are children of this process, its subreaper.
func endChildren(grace time.Duration) []string {
	for deadline := time.Now().Add(grace); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		reap()
		if len(children()) == 0 {
			return nil
		}
	}
	var lines []string
	// A killed child's own children come to us next.
	for pids := children(); len(pids) > 0; pids = children() {
		for _, pid := range pids {
			lines = append(lines, fmt.Sprintf("process %d is still running, and was killed: %s", pid, commandLine(pid)))
			_ = unix.Kill(pid, unix.SIGKILL) // it may have just ended
		}
		time.Sleep(20 * time.Millisecond)
		reap()
	}
	return lines
}

// reap takes the exit status of every child that has ended.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err != nil || pid == 0 {
			return
		}
	}
}

// children lists this process's children that have not been waited for.
func children() []int {
	lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is well formed
	var pids []int
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	return pids
}

func commandLine(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(data) == 0 {
		data, _ = os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	}
	return strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " "))
}
