// Package exec_test tests "tapirctl exec" from outside: TAPs that the built plugin made, a stand-in for the VMM, and QEMU.
// What a queue runs with is asked of the kernel, on the VMM's own fd.
package exec_test

import (
	"os"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// binDirEnv names a folder with the built commands.
const binDirEnv = testnode.BinDirEnv

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == vmmArg {
		os.Exit(vmm(os.Args[2:]))
	}
	testnode.MainWithCommands(m, "tapir", "tapirctl")
}
