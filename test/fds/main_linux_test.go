// Package fds_test tests the hand-over of queues from outside: TAPs that the built plugin made, the built tapird, peers of several
// uids, and QEMU. What a queue runs with is asked of the kernel.
package fds_test

import (
	"os"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// binDirEnv names a folder with the built commands.
const binDirEnv = testnode.BinDirEnv

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == peerArg {
		os.Exit(peerMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == vmmArg {
		os.Exit(vmmMain(os.Args[2:]))
	}
	testnode.MainWithCommands(m, "tapir", "tapirctl", "tapird")
}
