// Package metrics_test holds the queries of deploy/monitoring against what the exporter really gives, by Prometheus' own parser. It is a
// module of its own, so that Prometheus is not among the product's dependencies.
package metrics_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// The process's first thread is the main goroutine's alone; see agent/measure.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if testnode.Inside() || unix.Geteuid() != 0 || os.Getenv(testnode.BinDirEnv) != "" {
		testnode.Main(m)
	}
	code, err := buildAndRun()
	if err != nil {
		fmt.Fprintln(os.Stderr, "metrics:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// buildAndRun builds the plugin, which is another module's, and runs this binary again with it.
func buildAndRun() (code int, err error) {
	dir, err := os.MkdirTemp("", "tapir-metrics-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	build := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "./cmd/tapir")
	build.Dir = "../.."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the plugin: %w: %s", err, out)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), testnode.BinDirEnv+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}
