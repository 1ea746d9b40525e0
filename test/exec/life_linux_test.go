package exec_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func setAlias(t testing.TB, name, alias string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetAlias(l, alias)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// status is the wait status of a supervised stand-in that was told to end so.
func (s *sandbox) status(how string) syscall.WaitStatus {
	v := s.supervised(nil)
	if _, err := v.in.Write([]byte(how + "\n")); err != nil {
		s.t.Fatal(err)
	}
	return v.wait().Sys().(syscall.WaitStatus)
}

func TestExitStatusPassesThrough(t *testing.T) {
	s := newSandbox(t, `"queues": 1`)
	for how, want := range map[string]syscall.WaitStatus{
		"exit 0": 0, "exit 7": 7 << 8,
		"kill 9": syscall.WaitStatus(unix.SIGKILL), "kill 15": syscall.WaitStatus(unix.SIGTERM), "kill 1": syscall.WaitStatus(unix.SIGHUP),
	} {
		if got := s.status(how); got != want {
			t.Errorf("%s: wait status %#x, want %#x", how, got, want)
		}
	}
	// SIGSYS is one that Go would turn into a dump of the supervisor's stacks.
	out, err := exec.Command(tapirctl(), "exec", "--", "sh", "-c", "kill -SYS $$").CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 128+int(unix.SIGSYS) || len(out) > 0 {
		t.Errorf("SIGSYS: %v, want exit code 159 and no output: %s", err, out)
	}
	for program, want := range map[string]int{"/nonexistent": 127, "no-such-program": 127, "/etc/passwd": 126} {
		out, err := exec.Command(tapirctl(), "exec", "--", program).CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != want || !strings.Contains(string(out), program) {
			t.Errorf("%s: %v, want exit code %d: %s", program, err, want, out)
		}
	}
}

func TestSignalsPassThrough(t *testing.T) {
	s := newSandbox(t, `"queues": 1`)
	v := s.supervised(nil)
	v.say("catch")
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1, unix.SIGWINCH, unix.SIGCONT} {
		if err := v.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if got, want := v.next(), "signal "+unix.SignalName(sig); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	v.wantFlags(v.open("tap-eth0", oneQueue), true, false) // and goes on
	uncaught := s.supervised(nil)
	if err := uncaught.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := uncaught.wait().Sys().(syscall.WaitStatus); got != syscall.WaitStatus(unix.SIGTERM) {
		t.Errorf("the VMM died of SIGTERM, and the supervisor with wait status %#x", got)
	}
}

// The VMM has the descriptors that its caller meant for it, under their numbers, and none of the supervisor's.
func TestDescriptorsPassThrough(t *testing.T) {
	testnode.Require(t, "root")
	const list = `for f in /proc/$$/fd/*; do echo "${f##*/} $(readlink "$f")"; done`
	command := func(argv ...string) string {
		cmd := exec.Command(argv[0], argv[1:]...)
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		cmd.ExtraFiles = []*os.File{null, nil, null} // 3 and 5
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return pipeNumber.ReplaceAllString(string(out), "pipe")
	}
	alone := command("sh", "-c", list)
	if got := command(tapirctl(), "exec", "--", "sh", "-c", list); got != alone || !strings.Contains(got, "\n5 /dev/null\n") {
		t.Errorf("descriptors under exec:\n%salone:\n%s", got, alone)
	}
}

// pipeNumber is what differs between two runs.
var pipeNumber = regexp.MustCompile(`pipe:\[\d+\]`)

// A jailer and a shim stand between tapirctl and the VMM, which opens in a netns that neither the supervisor nor the first
// program is in.
func TestForkAndExec(t *testing.T) {
	s := newSandbox(t, `"queues": 1`)
	v := s.start(s.host, []string{tapirctl(), "exec", "--", "nsenter", "--net=" + s.netns, self(t), vmmArg})
	if _, err := v.in.Write([]byte("run\n")); err != nil {
		t.Fatal(err)
	}
	v.vmm = v.ready()
	v.wantFlags(v.open("tap-eth0", oneQueue), true, false)
	if _, err := v.in.Write([]byte("exit 3\n")); err != nil {
		t.Fatal(err)
	}
	if got := v.wait().ExitCode(); got != 3 {
		t.Errorf("exit code %d, want 3", got)
	}
}

// What outlives the program stays supervised, and the status is the program's.
func TestOrphansStaySupervised(t *testing.T) {
	s := newSandbox(t, `"queues": 1`)
	v := s.supervised(nil)
	if _, err := v.in.Write([]byte("orphan\n")); err != nil {
		t.Fatal(err)
	}
	v.vmm = v.ready()
	v.wantFlags(v.open("tap-eth0", oneQueue), true, false)
	v.say("catch")
	if err := v.cmd.Process.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if got := v.next(); got != "signal SIGUSR1" {
		t.Errorf("the orphan got %q, want SIGUSR1", got)
	}
	_ = v.in.Close()
	if got := v.wait().ExitCode(); got != 5 {
		t.Errorf("exit code %d, want 5, the first program's", got)
	}
}

// A VMM that outlives its supervisor runs on, and opens nothing more.
func TestSupervisorKilled(t *testing.T) {
	s := newSandbox(t, `"queues": 2`)
	v := s.supervised(nil)
	fd := v.open("tap-eth0", multi)
	if err := v.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := v.cmd.Process.Wait(); err != nil && !strings.Contains(err.Error(), "no child") {
		t.Log(err)
	}
	v.refused("tap-eth0", multi, "ENOSYS")
	v.wantFlags(fd, true, true)
	testnode.In(t, s.netns, func() {
		l, err := netlink.LinkByName("tap-eth0")
		if err != nil || l.Attrs().Flags&1 == 0 {
			t.Errorf("the TAP is down: %v", err)
		}
	})
}

// A VMM that asked to die with its parent lives while the supervisor does, whatever threads that ends, and no longer.
func TestParentDeathSignal(t *testing.T) {
	s := newSandbox(t, `"queues": 1`)
	v := s.start(s.netns, []string{tapirctl(), "exec", "--", "setpriv", "--pdeathsig", "KILL", self(t), vmmArg})
	for range 100 {
		v.say("close %d", v.open("tap-eth0", oneQueue))
	}
	if err := v.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	v.wait() // ends when nobody holds the log open; a process that dies lets go of its files before it is dead
	testnode.Eventually(t, patience, func() error {
		if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", v.vmm)); err == nil && !strings.Contains(string(status), "\nState:\tZ") {
			return fmt.Errorf("the VMM lives on: %s", status)
		}
		return nil
	})
}

// A killed VMM leaves no queue open and no fd in the supervisor.
func TestVMMKilled(t *testing.T) {
	s := newSandbox(t, `"queues": 1`)
	v := s.supervised(nil)
	v.say("close %d", v.open("tap-eth0", oneQueue)) // the runtime's own epoll is opened by then
	before := countFDs(t, v.cmd.Process.Pid)
	for range 20 {
		fd := v.open("tap-eth0", oneQueue)
		v.say("close %d", fd)
	}
	v.open("tap-eth0", oneQueue)
	v.refused("tap-eth0", oneQueue, "EBUSY")
	if after := countFDs(t, v.cmd.Process.Pid); after != before {
		t.Errorf("the supervisor has %d fds, and had %d", after, before)
	}
	if err := unix.Kill(v.vmm, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := v.wait().Sys().(syscall.WaitStatus); got != syscall.WaitStatus(unix.SIGKILL) {
		t.Errorf("wait status %#x, want SIGKILL", got)
	}
	next := s.alone()
	next.open("tap-eth0", oneQueue)
}

func countFDs(t testing.TB, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
