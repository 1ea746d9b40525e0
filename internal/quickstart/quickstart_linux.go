// Package quickstart is the body of "tapirctl quickstart": on a node of its own, made of namespaces, it has the CNI plugin
// make two sandboxes, boots a real microVM on the TAP of each, configures the guests from the result alone, shows that
// they reach each other, the node and the world, and proves that nothing is left.
//
// It runs as two processes. The outer one installs what is missing, downloads the guests' kernel, compares the machine
// before and after, and is the parent of the inner one. The inner one is process 1 of new network, mount and pid
// namespaces, "the node": whatever ends it ends each process, device and mount in it.
package quickstart

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/microvm"
)

// Options say how the quick start is to run. The zero value works.
type Options struct {
	Out    io.Writer // the report; default: standard output
	Err    io.Writer // progress where JSON is asked for; default: standard error
	JSON   bool      // the report as JSON
	Keep   bool      // leave all running until interrupted
	Queues int       // queue pairs of each TAP; default 2
	// Timeout is for everything after the downloads, Keep's waiting not counted. Default 3 minutes.
	Timeout  time.Duration
	BinDir   string         // where tapir, tapir-ipam and tapir-guest are; default: beside this program
	CacheDir string         // of kernels and images; default: microvm.DefaultCacheDir
	Kernel   microvm.Series // default 6.1

	// Cleanup does what "tapirctl cleanup --yes" does. It is called on the quick start's own node, after the DELs.
	Cleanup func(context.Context) error
}

// ErrInterrupted is why Run ended before its time, all cleaned up.
var ErrInterrupted = errors.New("interrupted")

// stageEnv marks the inner process and carries what the outer one found out.
const stageEnv = "TAPIR_QUICKSTART"

// Run does all of it. An error says what did not work, or what is left.
func Run(ctx context.Context, o Options) error {
	if err := o.defaults(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	if s := os.Getenv(stageEnv); s != "" {
		return runInner(ctx, o, s)
	}
	return runOuter(ctx, o)
}

func (o *Options) defaults() error {
	if o.Out == nil {
		o.Out = os.Stdout
	}
	if o.Err == nil {
		o.Err = os.Stderr
	}
	if o.Queues == 0 {
		o.Queues = 2
	}
	if o.Queues < 1 || o.Queues > 8 {
		return fmt.Errorf("--queues: want 1 to 8 (each queue pair gets a vCPU), got %d", o.Queues)
	}
	if o.Timeout == 0 {
		o.Timeout = 3 * time.Minute
	}
	if o.BinDir == "" {
		exe, err := os.Executable()
		if err != nil {
			return err
		}
		o.BinDir = filepath.Dir(exe)
	}
	if o.CacheDir == "" {
		dir, err := microvm.DefaultCacheDir()
		if err != nil {
			return err
		}
		o.CacheDir = dir
	}
	return nil
}

// progressWriter is where progress goes: standard output is for the JSON report alone where that is asked for.
func (o *Options) progressWriter() io.Writer {
	if o.JSON {
		return o.Err
	}
	return o.Out
}
