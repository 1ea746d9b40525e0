package queueiter_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/tapir-cni/tapir/tap"
	"golang.org/x/sys/unix"
)

// pidnsEnv asks the re-executed test binary for what [TestPidsAreNumberedAsTheReaderSeesThem] looks at.
const pidnsEnv = "TAPIR_QUEUEITER_PIDNS"

func TestPidsAreNumberedAsTheReaderSeesThem(t *testing.T) {
	require(t)
	fd, err := unix.Open(tap.Device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if os.Getenv(pidnsEnv) != "" {
		it := iterator(t)
		if held := heldBy(t, it, os.Getpid()); os.Getpid() != 1 || len(held) != 1 || held[0].Opener != 1 {
			t.Errorf("in a pid namespace of its own: want one file of pid 1, opened by pid 1, got pid %d and %+v", os.Getpid(), held)
		}
		all, err := it.Read()
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range all {
			for _, h := range q.Holders {
				if h.PID != 1 {
					t.Errorf("want no process of outside, got %+v", h)
				}
			}
		}
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestPidsAreNumberedAsTheReaderSeesThem$")
	cmd.Env = append(os.Environ(), pidnsEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if held := heldBy(t, iterator(t), os.Getpid()); len(held) != 1 {
		t.Errorf("outside: want one file of pid %d, got %+v", os.Getpid(), held)
	}
}
