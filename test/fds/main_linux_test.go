// Package fds_test tests the hand-over of queues from outside: TAPs that the built plugin made, the built tapird, peers of several
// uids, and QEMU. What a queue runs with is asked of the kernel.
package fds_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// binDirEnv names a folder with the built commands; where it is not set they are built.
const binDirEnv = "TAPIR_BIN_DIR"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == peerArg {
		os.Exit(peerMain(os.Args[2:]))
	}
	if os.Getenv(binDirEnv) != "" || unix.Geteuid() != 0 {
		testnode.Main(m)
	}
	code, err := buildAndRun()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fds:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// buildAndRun builds the commands, runs this binary again with them and removes them: testnode.Main does not return.
func buildAndRun() (code int, err error) {
	dir, err := os.MkdirTemp("", "tapir-fds-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // a peer of another uid starts from there
		return 0, err
	}
	build := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "../../cmd/tapir", "../../cmd/tapirctl", "../../cmd/tapird")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the commands: %w: %s", err, out)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), binDirEnv+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}
