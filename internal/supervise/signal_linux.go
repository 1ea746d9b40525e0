package supervise

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// forward passes a signal on: to the program, or, where it has ended, to what it left.
func (p *program) forward(s syscall.Signal) {
	if !p.ended {
		if !fromTerminal(s, p.pid) {
			_ = unix.Kill(p.pid, s) // not reaped: the number is still its own
		}
		return
	}
	for _, pid := range orphans() {
		_ = unix.Kill(pid, s)
	}
}

// fromTerminal says whether the program has the signal already: a terminal sends these to its whole foreground group.
func fromTerminal(s syscall.Signal, pid int) bool {
	if s != unix.SIGINT && s != unix.SIGQUIT && s != unix.SIGWINCH {
		return false
	}
	group, err := unix.Getpgid(pid)
	if err != nil || group != unix.Getpgrp() {
		return false
	}
	tty, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(tty)
	foreground, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	return err == nil && foreground == group
}

// orphans are the children of this process: when the program has ended, those of its descendants whose parents ended.
func orphans() []int {
	lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is right
	var pids []int
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, f := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
