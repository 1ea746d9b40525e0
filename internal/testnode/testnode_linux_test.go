package testnode

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// leakEnv makes the re-executed binary leave something behind, so that the leak check is itself checked.
const leakEnv = "TAPIR_TESTNODE_LEAK"

func TestMain(m *testing.M) { Main(m) }

func TestNodeHoldsNothingOfTheMachine(t *testing.T) {
	Require(t, "root")
	got, err := links()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"link lo"}, got); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if lo.Flags&net.FlagUp == 0 {
		t.Error("lo is down")
	}
	sys, err := os.ReadDir("/sys/class/net")
	if err != nil {
		t.Fatal(err)
	}
	if len(sys) != 1 {
		t.Errorf("/sys/class/net shows %d devices, want lo alone", len(sys))
	}
	for dir, magic := range map[string]int64{"/sys/fs/bpf": unix.BPF_FS_MAGIC, "/run": unix.TMPFS_MAGIC, "/sys": unix.SYSFS_MAGIC} {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		if int64(st.Type) != magic {
			t.Errorf("%s: filesystem type %#x, want %#x", dir, st.Type, magic)
		}
	}
}

func TestInRunsInThatNetnsAndComesBack(t *testing.T) {
	self := func() string {
		ns, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return ns
	}
	a, b := NewNetns(t), NewNetns(t)
	home := self()
	seen := map[string]bool{home: true}
	In(t, a, func() {
		seen[self()] = true
		In(t, b, func() { seen[self()] = true })
		child, err := exec.Command("readlink", "/proc/self/ns/net").Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(child)); got != self() {
			t.Errorf("child process is in %s, want %s", got, self())
		}
	})
	if len(seen) != 3 {
		t.Errorf("saw the netns %v, want three different ones", seen)
	}
	if got := self(); got != home {
		t.Errorf("back in %s, want %s", got, home)
	}
}

func TestNetnsThatTheTestRemovedIsNoFault(t *testing.T) {
	path := NewNetns(t)
	if err := removeNetns(path); err != nil {
		t.Fatal(err)
	}
}

// TestMainReportsLeaks runs this binary again on the machine, one leak at a time.
func TestMainReportsLeaks(t *testing.T) {
	Require(t, "root")
	if os.Getenv(leakEnv) != "" {
		t.Skip("this is the process that leaks")
	}
	for _, tt := range []struct{ leak, want string }{
		{"", ""},
		{"fd", "fd /dev/null"},
		{"pin", "pin left"},
		{"netns", "netns left"},
		{"process", "process"},
		{"mount", "mount tmpfs /run/left"},
	} {
		t.Run("leak "+tt.leak, func(t *testing.T) {
			t.Parallel() // each waits for its leak to settle
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestLeak$")
			cmd.Env = append(os.Environ(), stageEnv+"=", leakEnv+"="+tt.leak)
			out, err := cmd.CombinedOutput()
			if tt.leak == "" {
				if err != nil {
					t.Errorf("nothing leaked, and the run failed: %v\n%s", err, out)
				}
				return
			}
			exit, ok := err.(*exec.ExitError) //nolint:errorlint // exec.Cmd gives it bare
			if !ok || exit.ExitCode() != 1 {
				t.Errorf("error %v, want exit code 1\n%s", err, out)
			}
			if !strings.Contains(string(out), tt.want) {
				t.Errorf("output does not name %q:\n%s", tt.want, out)
			}
		})
	}
}

// TestLeak is the body of the processes that [TestMainReportsLeaks] starts.
func TestLeak(t *testing.T) {
	var err error
	switch os.Getenv(leakEnv) {
	case "":
		t.Skip("run by TestMainReportsLeaks")
	case "fd":
		_, err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	case "pin":
		err = os.Mkdir("/sys/fs/bpf/left", 0o700)
	case "netns":
		err = os.WriteFile(filepath.Join(netnsDir, "left"), nil, 0o444)
	case "process":
		cmd := exec.Command("sleep", "20")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err = cmd.Start(); err == nil {
			t.Logf("started %d", cmd.Process.Pid)
		}
	case "signal":
		if err = unix.Kill(os.Getpid(), unix.SIGKILL); err == nil {
			select {} // until it arrives
		}
	case "mount":
		if err = os.Mkdir("/run/left", 0o755); err == nil {
			err = unix.Mount("left", "/run/left", "tmpfs", 0, "")
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestRequireFailsWhereTheMachineMustHaveIt(t *testing.T) {
	t.Setenv(requireEnv, "bpf,tcx")
	for name, want := range map[string]bool{"bpf": true, "tcx": true, "kvm": false, "": false} {
		if got := Required(name); got != want {
			t.Errorf("Required(%q) with %s=bpf,tcx is %t, want %t", name, requireEnv, got, want)
		}
	}
	t.Setenv(requireEnv, "all")
	if !Required("kvm") {
		t.Error(`Required("kvm") with all is false`)
	}
}

func TestExitCodeAndSignalPassOut(t *testing.T) {
	Require(t, "root")
	run := func(env string, args ...string) *exec.ExitError {
		t.Helper()
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Env = append(os.Environ(), stageEnv+"=", env)
		err := cmd.Run()
		exit, ok := err.(*exec.ExitError) //nolint:errorlint // exec.Cmd gives it bare
		if !ok {
			t.Fatalf("%v gives %v, want an exit status", args, err)
		}
		return exit
	}
	if exit := run(leakEnv+"=", "-test.count=x"); exit.ExitCode() != 2 {
		t.Errorf("a usage error inside gives %v outside, want exit code 2", exit)
	}
	exit := run(leakEnv+"=signal", "-test.run=^TestLeak$")
	if ws := exit.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != unix.SIGKILL {
		t.Errorf("SIGKILL inside gives %v outside, want the signal", exit)
	}
}
