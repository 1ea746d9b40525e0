package xdp

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// helperEnv makes the test binary do one thing of another process and end: see helper.
const helperEnv = "TAPIR_XDP_HELPER"

func TestMain(m *testing.M) {
	if what := os.Getenv(helperEnv); what != "" && testnode.Inside() {
		if err := helper(what, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testnode.Main(m)
}

// helper is what other processes do:
//
//	ensure DIR                          prints the id of the guest program
//	ensure-shortcut DIR                 prints the id of the shortcut's program for a TAP
//	attach DIR NETNS TAP POD METHOD     attaches a pod with a TAP, by ifindexes
func helper(what string, args []string) error {
	// Programs and maps are charged to the cgroup, not to this limit.
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{}); err != nil {
		return err
	}
	p, err := Ensure(args[0])
	if err != nil {
		return err
	}
	defer p.Close()
	switch what {
	case "ensure-shortcut":
		return helperEnsureShortcut(args[0])
	case "ensure":
		prog, err := p.program(RoleGuest)
		if err != nil {
			return err
		}
		id, err := programID(prog)
		fmt.Println(id)
		return err
	case "attach":
		return helperAttach(p, args[1], args[2:])
	}
	return fmt.Errorf("unknown helper %q", what)
}

func helperEnsureShortcut(dir string) error {
	s, err := EnsureShortcut(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	prog, err := s.program(shortcutProgGuestXdp)
	if err != nil {
		return err
	}
	id, err := programID(prog)
	fmt.Println(id)
	return err
}

func helperAttach(p *Programs, netns string, args []string) error {
	runtime.LockOSThread()
	ns, err := os.Open(netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	tap, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	pod, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	ep := guestEndpoint()
	ep.Peer, ep.Redirect, ep.Counters = uint32(pod), RedirectPeer, uint32(tap)
	err = p.Reserve(map[uint32]Endpoint{
		uint32(tap): ep,
		uint32(pod): {Role: RolePod, Peer: uint32(tap), Redirect: RedirectEgress, Counters: uint32(tap)},
	})
	if err != nil {
		return err
	}
	if err := p.Attach(tap, RoleGuest, Method(args[2])); err != nil {
		return err
	}
	return p.Attach(pod, RolePod, Method(args[2]))
}

// helperCommand is this binary as a helper, which dies with the test.
func helperCommand(what string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), helperEnv+"="+what)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd
}
