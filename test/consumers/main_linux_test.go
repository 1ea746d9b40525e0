// Package consumers_test lets the code of real runtimes call the built plugin and read its results. It is a module of its
// own, so that their dependencies are not the product's.
package consumers_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// Folders with the built commands and the reference plugins; where they are not set they are built.
const (
	binEnv        = "TAPIR_BIN"
	refpluginsEnv = "TAPIR_REFPLUGINS"
)

func TestMain(m *testing.M) {
	if testnode.Inside() || unix.Geteuid() != 0 || os.Getenv(binEnv) != "" && os.Getenv(refpluginsEnv) != "" {
		testnode.Main(m)
	}
	code, err := buildAndRun()
	if err != nil {
		fmt.Fprintln(os.Stderr, "consumers:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// buildAndRun builds what is missing, runs this binary again with it and removes it: testnode.Main does not return.
func buildAndRun() (code int, err error) {
	dir, err := os.MkdirTemp("", "tapir-consumers-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0], cmd.Env = os.Args[0], os.Environ()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	for _, b := range []struct{ env, module, what string }{{binEnv, "../..", "./cmd/tapir"}, {refpluginsEnv, "../refplugins", "tool"}} {
		if os.Getenv(b.env) != "" {
			continue
		}
		out := filepath.Join(dir, b.env)
		build := exec.Command("go", "-C", b.module, "build", "-trimpath", "-o", out+"/", b.what)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := build.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("build %s: %w: %s", b.what, err, text)
		}
		cmd.Env = append(cmd.Env, b.env+"="+out)
	}
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}
