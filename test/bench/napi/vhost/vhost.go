// Package vhost measures what NAPI on the queue of a TAP that tapir made is worth behind vhost-net: the set-up of a thread on the
// netdev list in 2022 (iperf server, TAP, vhost-net, DPDK's testpmd, a link, iperf client), NAPI off and on in turn.
//
// The figure is the CPU time that receiver and vhost thread spend on each GB, not throughput: testpmd's polling core and the sender
// limit that, whatever the queue does. Where this machine has no vhost-net, a Debian guest under QEMU has, whose clocks count
// instructions; package debianvm.
package vhost

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/tapir-cni/tapir/internal/debianvm"
)

// device is what vhost-net is used by.
const device = "/dev/vhost-net"

// Program is the command that measures, where vhost-net is; package cmd.
const Program = "bench-napi-vhost"

// Config says what to measure. The zero value works where the commands are beside this program or in bin.
type Config struct {
	Bin      string       // folder of tapir, tapir-ipam and tapirctl; default: bin
	Tools    string       // folder of Program; default: the one of this program
	Rounds   int          // of each setting; default: 3
	Bytes    int64        // of payload in a round; default: by where it runs
	Guest    bool         // boot a guest even where this machine has vhost-net
	HostTime bool         // the guest's clocks follow this machine's, on two CPUs; else they count instructions, on one
	Progress func(string) // called before each step that takes time; may be nil
}

// Sizes of a round, in bytes of payload. Counted instructions vary little, so that a short round says as much as a long one; emulation
// on the host's clock is shorter than the noise of a busy machine; real vhost-net is quick.
const (
	bytesCounted  = 20e6
	bytesEmulated = 60e6
	bytesNative   = 4e9
)

// guestTimeout bounds a guest from its start to its end.
const guestTimeout = 10 * time.Minute

func (c *Config) defaults() error {
	if c.Bin == "" {
		c.Bin = "bin"
	}
	if c.Tools == "" {
		exe, err := os.Executable()
		if err != nil {
			return err
		}
		c.Tools = filepath.Dir(exe)
	}
	if c.Rounds == 0 {
		c.Rounds = 3
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	_, err := os.Stat(filepath.Join(c.Tools, Program))
	if err != nil {
		return fmt.Errorf(`%w; "make bench-napi" builds it`, err)
	}
	return nil
}

// native says whether this machine's own vhost-net is used. Its device may be there and the module not: only opening tells.
func (c *Config) native() bool {
	if c.Guest {
		return false
	}
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// Prepare makes the guest's image where one is needed and the cache has none; for that it wants apt's mirror, which a network namespace
// of its own does not reach. [Run] does it where it was not done.
func Prepare(ctx context.Context, c Config) error {
	if err := c.defaults(); err != nil || c.native() {
		return err
	}
	_, err := c.image(ctx)
	return err
}

func (c *Config) image(ctx context.Context) (debianvm.Image, error) {
	img, err := debianvm.Ensure(ctx, debianvm.Options{Packages: []string{"dpdk-dev"}, Progress: c.Progress})
	if err != nil {
		return img, fmt.Errorf("guest's image: %w", err)
	}
	return img, nil
}

// Run measures on this machine where it has vhost-net, else in a guest. It wants root.
func Run(ctx context.Context, c Config) (*Result, error) {
	if err := c.defaults(); err != nil {
		return nil, err
	}
	r := &Result{}
	out := &decoder{result: r, progress: c.Progress}
	var err error
	if c.native() {
		r.Where, r.Clock = "this machine's vhost-net", "host"
		err = c.runHere(ctx, out)
	} else {
		err = c.runGuest(ctx, r, out)
	}
	if err != nil {
		return nil, fmt.Errorf("NAPI behind vhost-net: %w", err)
	}
	if len(r.of(true)) < c.Rounds || len(r.of(false)) < c.Rounds {
		return nil, fmt.Errorf("NAPI behind vhost-net: want %d rounds of each setting, got %d with NAPI and %d without",
			c.Rounds, len(r.of(true)), len(r.of(false)))
	}
	return r, nil
}

func (c *Config) args(bin string, size int64) []string {
	if c.Bytes > 0 {
		size = c.Bytes
	}
	return []string{"-bin", bin, "-rounds", strconv.Itoa(c.Rounds), "-bytes", strconv.FormatInt(size, 10), "-warm", strconv.FormatInt(size/8, 10)}
}

func (c *Config) runHere(ctx context.Context, out io.Writer) error {
	c.Progress("measuring behind this machine's vhost-net")
	cmd := exec.CommandContext(ctx, filepath.Join(c.Tools, Program), c.args(c.Bin, bytesNative)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

func (c *Config) runGuest(ctx context.Context, r *Result, out io.Writer) error {
	img, err := c.image(ctx)
	if err != nil {
		return err
	}
	files := map[string]string{Program: filepath.Join(c.Tools, Program)}
	for _, name := range []string{"tapir", "tapir-ipam", "tapirctl"} {
		files[name] = filepath.Join(c.Bin, name)
	}
	job := debianvm.Job{Files: files, Stdout: out, CPUs: 1, CountInstructions: true, Timeout: guestTimeout}
	size := int64(bytesCounted)
	r.Clock = "instructions"
	if c.HostTime {
		job.CPUs, job.CountInstructions, size, r.Clock = 2, false, bytesEmulated, "host"
	}
	r.Where = fmt.Sprintf("QEMU's emulation, %d CPU, Linux %s", job.CPUs, img.Release)
	job.Command = append([]string{"sh", "-c", `modprobe -a tun veth vhost_net && exec "$0" "$@"`, Program}, c.args(".", size)...)
	c.Progress("booting " + r.Where)
	return img.Run(ctx, job)
}

// decoder takes the rounds as they come, one a line.
type decoder struct {
	result   *Result
	progress func(string)
	rest     []byte
}

func (d *decoder) Write(p []byte) (int, error) {
	d.rest = append(d.rest, p...)
	for {
		line, rest, ok := bytes.Cut(d.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		d.rest = rest
		var r Round
		if err := json.Unmarshal(line, &r); err != nil {
			return 0, fmt.Errorf("want a round, got %q: %w", line, err)
		}
		if r.Bytes <= 0 || r.Seconds <= 0 {
			return 0, errors.New("a round without bytes or time: " + string(line))
		}
		d.result.Rounds = append(d.result.Rounds, r)
		d.progress(fmt.Sprintf("round %d: NAPI %v, CPU per GB %.2f", len(d.result.Rounds), r.NAPI, r.CPUPerGB()))
	}
}
