package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/tapir-cni/tapir/internal/output"
	"golang.org/x/sys/unix"
)

// journalFile is where tapird remembers what it changed.
const journalFile = "/run/tapir/tapird.json"

// A daemon is a tapird that runs.
type daemon struct {
	cmd   *exec.Cmd
	ended chan error
	began time.Time
	log   output.Buffer
}

// startTapird starts one that knows nothing of an earlier one, and waits until it serves.
func startTapird(bin string, args ...string) (*daemon, error) {
	if err := os.Remove(journalFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	d := &daemon{began: time.Now()}
	d.cmd = exec.Command(filepath.Join(bin, "tapird"), append([]string{"--log-format=json"}, args...)...)
	d.cmd.Stderr = &d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	d.ended = make(chan error, 1)
	started := make(chan error)
	go func() {
		// The signal comes when the thread that forked ends, and one that was lent to another netns does: this one stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := d.cmd.Start()
		started <- err
		if err == nil {
			d.ended <- d.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start tapird: %w", err)
	}
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if len(d.lines("serving")) > 0 {
			return d, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("tapird does not serve: %s", d.log.String()), d.stop())
}

func (d *daemon) stop() error {
	err := d.cmd.Process.Signal(unix.SIGTERM)
	if waitErr := <-d.ended; waitErr != nil {
		err = errors.Join(err, fmt.Errorf("tapird: %w: %s", waitErr, d.log.String()))
	}
	u := d.cmd.ProcessState
	progress("tapird: %s of CPU in %s", u.SystemTime()+u.UserTime(), time.Since(d.began).Round(time.Millisecond))
	return err
}

// A line of tapird's log, as far as it is looked at.
type line struct {
	Msg, Kind, From, To, Why string
	Settings                 []string
}

// lines are those with that message.
func (d *daemon) lines(msg string) (list []line) {
	for text := range bytes.Lines([]byte(d.log.String())) {
		var l line
		if json.Unmarshal(text, &l) == nil && l.Msg == msg {
			list = append(list, l)
		}
	}
	return list
}

// rule waits for a decision for a rule after the first n lines, and gives the latest.
func (d *daemon) rule(n int, patience time.Duration) (line, error) {
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		all := d.lines("tuned")
		for i := len(all) - 1; i >= n; i-- {
			if all[i].Kind == "rule" {
				return all[i], nil
			}
		}
	}
	return line{}, fmt.Errorf("tapird decided nothing in %s: %s", patience, d.log.String())
}
