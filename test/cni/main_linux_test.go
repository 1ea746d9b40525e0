// Package cni_test tests the built commands from outside: over the CNI protocol and the command line, in real network
// namespaces, with stand-ins for the VMM and the guest. What a call did is read from the kernel.
package cni_test

import (
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// binDirEnv names a folder with the built commands.
const binDirEnv = testnode.BinDirEnv

func TestMain(m *testing.M) {
	testnode.MainWithCommands(m, "tapir", "tapir-ipam", "tapirctl", "tapird")
}
