package shortcut_test

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// A daemon is a running tapird.
type daemon struct {
	n   *node
	cmd *exec.Cmd
	log *os.File
}

// tapird starts one on the node and waits until it serves.
func (n *node) tapird(args ...string) *daemon {
	t := n.t
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "log")
	check(t, err)
	d := &daemon{n: n, cmd: exec.Command(command("tapird"), args...), log: log}
	d.cmd.Stdout, d.cmd.Stderr = log, log
	n.in(func() { err = d.cmd.Start() })
	check(t, err)
	t.Cleanup(d.stop)
	testnode.Eventually(t, patience, func() error {
		_, err := os.Stat(filepath.Join(stateDir, "tapird.sock"))
		return err
	})
	return d
}

// stop may be called more than once.
func (d *daemon) stop() {
	d.n.t.Helper()
	if d.cmd == nil {
		return
	}
	cmd := d.cmd
	d.cmd = nil
	check(d.n.t, cmd.Process.Signal(unix.SIGTERM))
	if err := cmd.Wait(); err != nil {
		said, _ := os.ReadFile(d.log.Name())
		d.n.t.Errorf("tapird: %v: %s", err, said)
	}
	d.log.Close()
}
