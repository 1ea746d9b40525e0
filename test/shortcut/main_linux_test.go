// Package shortcut_test shows that the shortcut is right for every guest, with the built commands, in real network namespaces:
// guests with the kernel's own network stack stand on TAPs that the plugin made, and pumps move frames between the two as a
// VMM does. Each case says how many frames took the shortcut and how many may not have, by "tapirctl xdp".
package shortcut_test

import (
	"runtime"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

func TestMain(m *testing.M) {
	// Pumps and writers use raw system calls, which keep a P: the kernel shares out the CPUs.
	runtime.GOMAXPROCS(16)
	testnode.MainWithCommands(m, "tapir", "tapir-ipam", "tapirctl", "tapird")
}
