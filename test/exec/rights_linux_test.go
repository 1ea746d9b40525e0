package exec_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The supervisor has more rights than the VMM, and must not lend them.
func TestOwnerStillDecides(t *testing.T) {
	s := newSandbox(t, `"queues": 1, "owner": 1000, "group": 107`)
	stranger := s.supervised(nil, "2000", "107")
	stranger.refused("tap-eth0", oneQueue, "EPERM")
	stranger.wantLog(1, "could not open tap", "operation not permitted", "owner")
	wrongGroup := s.supervised(nil, "1000", "108")
	wrongGroup.refused("tap-eth0", oneQueue, "EPERM")
	owner := s.supervised(nil, "1000", "107")
	owner.wantFlags(owner.open("tap-eth0", oneQueue), true, false)
}

// Root of a user namespace of its own has every capability there and none over the TAP.
func TestUserNamespaceGivesNoRights(t *testing.T) {
	s := newSandbox(t, `"queues": 1, "owner": 1000`)
	unshared := []string{"unshare", "--user", "--map-root-user", self(t), vmmArg}
	control := s.start(s.netns, unshared)
	control.refused("tap-eth0", oneQueue, "EPERM")
	v := s.start(s.netns, append([]string{tapirctl(), "exec", "--"}, unshared...))
	v.refused("tap-eth0", oneQueue, "EPERM")
	v.wantLog(1, "could not open tap", "operation not permitted")
}

// A VMM in a pid namespace of its own, as a jailer makes it, is known by the numbers that the supervisor sees.
func TestPIDNamespace(t *testing.T) {
	s := newSandbox(t, `"queues": 1`)
	v := s.start(s.netns, []string{tapirctl(), "exec", "--", "unshare", "--pid", "--fork", self(t), vmmArg})
	if v.vmm != 1 {
		t.Errorf("the stand-in is process %d, want 1", v.vmm)
	}
	v.open("tap-eth0", oneQueue)
	v.wantLog(1, "opened tap", "opened=0x5012")
}

// Without CAP_SYS_ADMIN the VMM gets no_new_privs, and otherwise the same; with it, it does not.
func TestNoNewPrivs(t *testing.T) {
	s := newSandbox(t, `"queues": 1`)
	supervised := []string{tapirctl(), "exec", "--", self(t), vmmArg}
	for want, argv := range map[string][]string{
		"0": supervised,
		"1": append([]string{"setpriv", "--bounding-set", "-sys_admin"}, supervised...),
	} {
		v := s.start(s.netns, argv)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", v.vmm))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(status), "\nNoNewPrivs:\t"+want+"\n") {
			t.Errorf("%q: want NoNewPrivs %s in %s", argv, want, status)
		}
		fd := v.open("tap-eth0", oneQueue)
		v.wantFlags(fd, true, false)
		v.say("close %d", fd)
	}
}

// A terminal's interrupt goes to the whole foreground group: the VMM gets it once.
func TestInterruptFromTheTerminal(t *testing.T) {
	s := newSandbox(t, `"queues": 1`)
	master, slave := openTerminal(t)
	cmd := exec.Command(tapirctl(), "exec", "--", self(t), vmmArg)
	cmd.ExtraFiles = []*os.File{slave}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 3}
	v := s.startCmd(s.netns, cmd)
	v.say("catch")
	for range 3 {
		if _, err := master.Write([]byte{3}); err != nil {
			t.Fatal(err)
		}
		if got := v.next(); got != "signal SIGINT" {
			t.Fatalf("got %q, want SIGINT", got)
		}
		// Signals are handled in turn: a second one would be heard before this.
		if err := v.cmd.Process.Signal(unix.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		if got := v.next(); got != "signal SIGUSR1" {
			t.Errorf("got %q after the interrupt, want SIGUSR1", got)
		}
	}
}

func openTerminal(t testing.TB) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}
