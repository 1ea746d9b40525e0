package tuner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/output"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"golang.org/x/sys/unix"
)

// A daemon is tapird itself, which holds no more capabilities than it keeps.
type daemon struct {
	t   testing.TB
	cmd *exec.Cmd
	log *output.Buffer
}

func startDaemon(t testing.TB, args ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, log: &output.Buffer{}}
	d.cmd = exec.Command(filepath.Join(os.Getenv(testnode.BinDirEnv), "tapird"), append([]string{"--uplink=false"}, args...)...)
	d.cmd.Stderr = d.log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.end(unix.SIGKILL)
		if t.Failed() {
			t.Log(d.log.String())
		}
	})
	testnode.Eventually(t, patience, func() error {
		if !strings.Contains(d.log.String(), "msg=serving") {
			return fmt.Errorf("tapird does not serve: %s", d.log.String())
		}
		return nil
	})
	return d
}

func (d *daemon) end(s syscall.Signal) {
	if d.cmd.ProcessState == nil {
		_ = d.cmd.Process.Signal(s) // it may have ended
		_ = d.cmd.Wait()
	}
}

// Killed at any moment under load, the next one goes on, and the one that is off gives back what was there before the first. The VMM never
// sees an error.
func TestTapirdThatIsKilledLosesNoSetting(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	p.write(ringFile, "600")
	p.write(deferFile, "7")
	q := p.vmm(1, true)
	tr := p.send(q, fullFrames)
	want := with(full, ringFile, "600")
	d := startDaemon(t)
	p.want(want)
	d.end(unix.SIGKILL)
	rounds := 100
	if testing.Short() {
		rounds = 10
	}
	for i := range rounds {
		if i%5 == 4 { // the VMM restarts while nobody looks: its thread is new
			tr.stop()
			tr.fine(t)
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
			q = p.vmm(1, true)
			tr = p.send(q, fullFrames)
		}
		d = startDaemon(t)
		switch {
		case i%25 == 24:
			p.want(want)
			d.end(unix.SIGTERM)
		case i%2 == 0:
			time.Sleep(time.Duration(i) * time.Millisecond)
			d.end(unix.SIGKILL)
		default:
			d.end(unix.SIGTERM)
		}
	}
	d = startDaemon(t)
	p.want(want)
	d.end(unix.SIGKILL)
	off := startDaemon(t, "--tuner=off")
	p.want(with(plain, ringFile, "600", deferFile, "7"))
	tr.stop()
	tr.fine(t)
	testnode.Eventually(t, patience, func() error {
		if _, err := os.Stat(filepath.Join(state.DefaultDir, "tapird.json")); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("want no journal, got %v; %s", err, off.log.String())
		}
		return nil
	})
}

// SIGHUP reads profiles anew, and what is wrong in them keeps all as it was.
func TestTapirdReadsProfilesAnew(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	p.vmm(1, true)
	file := filepath.Join(t.TempDir(), "tapird.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const timely = `{"name": "all", "groFlushTimeout": "20us", "deferHardIRQs": 1}`
	write(`{"profiles": {"timely": {"rules": [` + timely + `]}}}`)
	d := startDaemon(t, "--config", file)
	for _, step := range []struct {
		config, log string
		want        map[string]string
	}{
		{`{"profile": "timely", "profiles": {"timely": {"rules": [` + timely + `]}}}`, "groFlush", with(plain, timeoutFile, "20000", deferFile, "1")},
		{`{"profile": "missing"}`, `profile: want one of`, with(plain, timeoutFile, "20000", deferFile, "1")},
		{`{"profiles": {"default": {"ruels": []}}}`, `did you mean`, with(plain, timeoutFile, "20000", deferFile, "1")},
		{`{"tuner": "off"}`, "giveBack", plain},
	} {
		write(step.config)
		if err := d.cmd.Process.Signal(unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if step.log != "groFlush" {
			testnode.Eventually(t, patience, func() error {
				if !strings.Contains(d.log.String(), step.log) {
					return fmt.Errorf("want %q, got %s", step.log, d.log.String())
				}
				return nil
			})
		}
		p.want(step.want)
	}
}
