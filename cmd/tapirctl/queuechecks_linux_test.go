package main

import (
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/state"
)

// Advice on a queue without NAPI names what fits the VMM: open queues for those that take them, the supervisor for the others.
func TestAdviceOnNAPIFitsTheVMM(t *testing.T) {
	const fds, exec = "tapirctl fds --attachment c1/eth0 -- VMM", "tapirctl exec --attachment c1/eth0 -- VMM"
	for vmm, want := range map[string]struct{ fds, exec bool }{
		"qemu":             {true, false},
		"cloud-hypervisor": {true, false},
		"firecracker":      {false, true},
		"kata":             {false, true},
		"generic":          {true, true},
		"":                 {true, true}, // a rebuilt record
	} {
		row := queueRow{Key: state.Key{Network: "pods", ContainerID: "c1", IfName: "eth0"}, State: "enabled", NAPI: no, Opened: "by name", vmm: vmm}
		f := explainQueues([]queueRow{row})
		if f.Verdict != limited || strings.Contains(f.Advice, fds) != want.fds || strings.Contains(f.Advice, exec) != want.exec {
			t.Errorf("vmm %q: fds %t, exec %t wanted, got %+v", vmm, want.fds, want.exec, f)
		}
	}
}
