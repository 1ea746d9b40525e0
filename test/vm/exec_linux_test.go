package vm_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tapir-cni/tapir/internal/microvm/vmtest"
	"github.com/tapir-cni/tapir/tap/queueiter"
)

// Guests under "tapirctl exec" have what they have without it, and NAPI on each queue.
func TestGuestsUnderExec(t *testing.T) {
	const queues, mtu = 2, 1500
	img, pods := addPods(t, queues, mtu, 2)
	supervise(t)
	serve(t)
	boot(t, img, pods)
	for _, p := range pods {
		wantNAPI(t, p, queues)
	}
	t.Run("cards", func(t *testing.T) { testCards(t, pods, queues, mtu) })
	t.Run("pings", func(t *testing.T) { testPings(t, pods, mtu) })
	t.Run("TCP with offloads", func(t *testing.T) { testStreams(t, pods, mtu, 10e6, true) })
	t.Run("TCP without offloads", func(t *testing.T) { testStreams(t, pods, mtu, 10e6, false) })
}

// supervise puts a QEMU into the path that is the real one under tapirctl exec. The VM is stopped by SIGKILL to the process that
// was started, the supervisor here, which QEMU would outlive.
func supervise(t *testing.T) {
	t.Helper()
	const name = "qemu-system-x86_64"
	qemu, err := exec.LookPath(name)
	check(t, err)
	_, binDir := vmtest.Image(t)
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nexec %s/tapirctl exec -- setpriv --pdeathsig KILL %s \"$@\"\n", binDir, qemu)
	check(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// wantNAPI asks the driver for all queues of the pod's TAP.
func wantNAPI(t *testing.T, p *pod, want int) {
	t.Helper()
	all, err := queueiter.Read()
	check(t, err)
	found := 0
	for _, q := range all {
		if q.Device.Index != p.tapIndex {
			continue
		}
		if found++; !q.NAPI {
			t.Errorf("queue %d of %s runs without NAPI", q.Index, p.id)
		}
	}
	if found != want {
		t.Errorf("%s has %d queues open, want %d", p.id, found, want)
	}
}
