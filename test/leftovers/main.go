// Command leftovers runs a command and fails when the machine is not afterwards what it was before:
//
//	leftovers [-settle DURATION] COMMAND [ARGUMENT...]
//
// It compares links, addresses, routes, rules, permanent neighbours, nft tables, mounts (named netns are mounts), bpffs,
// files under /run and the CNI directories, tapir's temporary files, cgroups of the cluster tests, and the sysctls under net and those that a
// kubelet sets, and it looks for processes that outlived the command. Those it ends, since they are its own children: it is their subreaper. The exit code is the
// command's; 3 when the command ended well and left something.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// exitLeft is the exit code that says that the command ended well and left something behind.
const exitLeft = 3

func main() {
	// The kernel takes netns and links apart after the call that removed them, and a process that was told to end may
	// be at it.
	settle := flag.Duration("settle", 5*time.Second, "how long a leftover may take to go after the command has ended")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: leftovers [-settle DURATION] COMMAND [ARGUMENT...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	code, err := run(flag.Args(), *settle)
	if err != nil {
		fmt.Fprintln(os.Stderr, "leftovers:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// run gives the command's exit code, or exitLeft. An error is one of the comparison itself.
func run(argv []string, settle time.Duration) (int, error) {
	// What the command starts and leaves becomes this process's child, wherever it put itself.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("become the subreaper: %w", err)
	}
	before, err := look()
	if err != nil {
		return 0, fmt.Errorf("look before the command: %w", err)
	}
	code, err := execute(argv)
	if err != nil {
		return 0, err
	}
	left := endChildren(settle)
	changes, err := compare(before, settle)
	if err != nil {
		return 0, fmt.Errorf("look after the command: %w", err)
	}
	left = append(left, changes...)
	if len(left) == 0 {
		fmt.Fprintf(os.Stderr, "leftovers: nothing; compared: %s\n", before.summary())
		return code, nil
	}
	fmt.Fprintf(os.Stderr, "leftovers: %q left the machine changed:\n\t%s\n", strings.Join(argv, " "), strings.Join(left, "\n\t"))
	if code == 0 {
		code = exitLeft
	}
	return code, nil
}

// execute runs the command to its end. An interrupt reaches the command from the terminal, or is passed on.
func execute(argv []string) (int, error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)

	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", argv[0], err)
	}
	go func() {
		for s := range signals {
			if s != unix.SIGINT { // the terminal has sent that to the whole foreground group
				_ = cmd.Process.Signal(s)
			}
		}
	}()
	err := cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if exit.ExitCode() < 0 {
			return 1, nil // ended by a signal
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// compare looks until nothing is left or the time to settle is over, and gives what is left, a line each.
func compare(before state, settle time.Duration) ([]string, error) {
	for deadline := time.Now().Add(settle); ; time.Sleep(100 * time.Millisecond) {
		after, err := look()
		if err != nil {
			return nil, err
		}
		changes := before.changes(after)
		if len(changes) == 0 || time.Now().After(deadline) {
			return changes, nil
		}
	}
}
