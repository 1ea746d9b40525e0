package cni_test

import (
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// TestChainedScripts runs testdata/chained/*.txtar: lists of plugins by cnitool, as a person would try them.
func TestChainedScripts(t *testing.T) {
	testnode.Require(t, "root", "bpf", "tun", "ipv6")
	needTools(t, "ip", "nft")
	coverVarLib(t)
	path := cniPath(t)
	// ip mounts the folder on itself.
	t.Cleanup(func() { _ = unix.Unmount("/run/netns", unix.MNT_DETACH) })
	testscript.RunT(serial{t}, testscript.Params{
		Dir: "testdata/chained",
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", strings.Join(path, ":")+":"+os.Getenv("PATH"))
			e.Setenv("CNI_PATH", strings.Join(path, ":"))
			e.Setenv("NETCONFPATH", e.WorkDir+"/net.d")
			e.Defer(afterFailure)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}
