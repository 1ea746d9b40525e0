package testnode

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// stageEnv tells a re-executed test binary where it is: stageSetUp asks it to furnish its new namespaces,
// stageInside followed by the mount namespace's inode says that it is in a furnished one. The inode keeps a variable
// that leaked into a shell from letting tests loose on the machine.
const (
	stageEnv    = "TAPIR_TESTNODE"
	stageSetUp  = "set-up"
	stageInside = "inside:"
)

// Main runs the package's tests in new network and mount namespaces and ends the process with their exit code. Inside:
// lo is up; /sys shows the new netns; /sys/fs/bpf is an empty bpffs; /run is an empty tmpfs with /run/netns; no mount
// propagates out. When the tests have passed, links, named netns, mounts, BPF pins, open files and child processes that
// were not there before fail the run.
//
// Without root the tests run in place, and those that [Require] "root" are skipped, or fail by TAPIR_REQUIRE. Processes
// that a test starts from its own binary (helpers, fuzz workers) find themselves inside and are not checked for leaks.
func Main(m *testing.M) {
	switch stage := os.Getenv(stageEnv); {
	case Inside():
		os.Exit(m.Run())
	case stage == stageSetUp:
		os.Exit(runInside(m))
	case stage != "":
		fatal(fmt.Errorf("%s is %q, which is not this mount namespace's; unset it", stageEnv, stage))
	case unix.Geteuid() != 0:
		os.Exit(m.Run())
	}
	code, err := reexec()
	if err != nil {
		fatal(err)
	}
	os.Exit(code)
}

// Inside says whether the process runs in a node made by [Main], or was started by one that does.
func Inside() bool {
	ino, err := mountNamespace()
	return err == nil && os.Getenv(stageEnv) == stageInside+ino
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "testnode:", err)
	os.Exit(1)
}

func mountNamespace() (string, error) { return os.Readlink("/proc/self/ns/mnt") }

// reexec runs this binary in new namespaces and gives its exit code. A signal that ends the inner process ends this one.
func reexec() (int, error) {
	// The kernel sends Pdeathsig when the thread that forked ends, not the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP)

	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), stageEnv+"="+stageSetUp)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		Pdeathsig:  unix.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s in new namespaces: %w", os.Args[0], err)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // it may have just ended
		}
	}()

	err := cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status := exit.Sys().(syscall.WaitStatus)
		if !status.Signaled() {
			return status.ExitStatus(), nil
		}
		signal.Reset()
		_ = unix.Kill(os.Getpid(), status.Signal())
		return 128 + int(status.Signal()), nil
	}
	return 0, err
}

// runInside furnishes the namespaces, runs the tests and looks for what they left.
func runInside(m *testing.M) int {
	if err := furnish(); err != nil {
		fatal(err)
	}
	ino, err := mountNamespace()
	if err != nil {
		fatal(err)
	}
	if err := os.Setenv(stageEnv, stageInside+ino); err != nil {
		fatal(err)
	}
	before, err := takeInventory()
	if err != nil {
		fatal(err)
	}
	code := m.Run()
	if code != 0 {
		return code // a failed test leaves things; its own message matters
	}
	left, err := before.leftovers()
	if err != nil {
		fatal(err)
	}
	if len(left) > 0 {
		fmt.Fprintf(os.Stderr, "testnode: the tests left behind:\n\t%s\n", strings.Join(left, "\n\t"))
		return 1
	}
	return 0
}

// furnish makes the process's new namespaces a node.
func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range []struct{ fstype, dir, data string }{
		{"sysfs", "/sys", ""}, // the old one shows the netns it was mounted in
		{"bpf", "/sys/fs/bpf", "mode=0700"},
		{"tmpfs", "/run", "mode=0755"},
	} {
		if err := unix.Mount("testnode", m.dir, m.fstype, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.fstype, m.dir, err)
		}
	}
	if err := os.Mkdir(netnsDir, 0o755); err != nil {
		return err
	}
	return setLoopbackUp()
}

// setLoopbackUp brings lo up in the calling thread's netns.
func setLoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket to set lo up: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}
