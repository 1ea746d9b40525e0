package cni_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/tapir-cni/tapir/internal/sysctl"
	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// serial runs scripts one after the other: they share the node.
type serial struct{ *testing.T }

func (serial) Parallel() {}

func (s serial) Run(name string, f func(testscript.T)) {
	s.T.Run(name, func(t *testing.T) { f(serial{t}) })
}

func (s serial) Verbose() bool { return testing.Verbose() }

// TestScripts runs testdata/*.txtar, which an operator can read and type. They run on a node that has nothing but lo;
// "exits N command…" wants that exit code.
func TestScripts(t *testing.T) {
	testnode.Require(t, "root", "bpf", "tun", "ipv6")
	needTools(t, "ip", "nft")
	// ip mounts the folder on itself.
	t.Cleanup(func() { _ = unix.Unmount("/run/netns", unix.MNT_DETACH) })
	testscript.RunT(serial{t}, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", os.Getenv(binDirEnv)+":"+os.Getenv("PATH"))
			e.Setenv("CNI_PATH", os.Getenv(binDirEnv))
			e.Setenv("CNI_CONTAINERID", "c1")
			e.Setenv("CNI_NETNS", "/run/netns/s1")
			e.Setenv("CNI_IFNAME", "eth0")
			e.Defer(afterFailure)
			// A new netns has what the machine has.
			return errors.Join(sysctl.Set("net/ipv4/ip_forward", "0"), sysctl.Set("net/ipv6/conf/all/forwarding", "0"))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// afterFailure removes what a script that failed half-way has left; others leave nothing.
func afterFailure() {
	for _, args := range [][]string{{"ip", "netns", "del", "s1"}, {"ip", "netns", "del", "s2"}, {filepath.Join(os.Getenv(binDirEnv), "tapirctl"), "cleanup", "--yes"}} {
		if exists("/run/netns/s1") || exists("/run/netns/s2") || exists(stateDir) || exists(pinDir) {
			_ = exec.Command(args[0], args[1:]...).Run()
		}
	}
}

// exits runs a command that must end with an exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(strings.Join(args[:min(len(args), 1)], ""))
	if err != nil || neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE command...")
	}
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	got := 0
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%s: %v", args[1], err)
	}
	if got != want {
		ts.Fatalf("%q: exit code %d, want %d", args[1:], got, want)
	}
}
