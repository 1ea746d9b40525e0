package queueiter_test

import (
	"errors"
	"runtime"
	"testing"

	"github.com/tapir-cni/tapir/tap/queueiter"
	"golang.org/x/sys/unix"
)

// withCaps runs f on a thread whose effective capabilities are those alone.
func withCaps(t *testing.T, f func(), caps ...uint) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	if err := unix.Capget(&hdr, &all[0]); err != nil {
		t.Fatal(err)
	}
	few := all
	few[0].Effective, few[1].Effective = 0, 0
	for _, c := range caps {
		few[c/32].Effective |= 1 << (c % 32)
	}
	if err := unix.Capset(&hdr, &few[0]); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Capset(&hdr, &all[0]); err != nil {
			panic(err) // no test may run on with few
		}
	}()
	f()
}

func TestReadNeedsTwoCapabilitiesAndNoMore(t *testing.T) {
	require(t)
	for _, tt := range []struct {
		name string
		caps []uint
		ok   bool
	}{
		{"BPF and PERFMON", []uint{unix.CAP_BPF, unix.CAP_PERFMON}, true},
		{"BPF", []uint{unix.CAP_BPF}, false},
		{"PERFMON", []uint{unix.CAP_PERFMON}, false},
	} {
		var err error
		withCaps(t, func() { _, err = queueiter.Read() }, tt.caps...)
		if tt.ok && err != nil || !tt.ok && !errors.Is(err, unix.EPERM) {
			t.Errorf("with %s alone: want success %t or EPERM, got %v", tt.name, tt.ok, err)
		}
	}
}
