package testnode

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// BinDirEnv names a folder with built commands; where it is not set, [MainWithCommands] builds them.
const BinDirEnv = "TAPIR_BIN_DIR"

// module is where the commands are.
const module = "github.com/tapir-cni/tapir/cmd/"

// MainWithCommands is [Main] for tests that run built commands: it builds those of that name below cmd/ first, into a folder
// that BinDirEnv names for the tests and that is removed at the end. It does not return.
func MainWithCommands(m *testing.M, commands ...string) {
	if os.Getenv(BinDirEnv) != "" || unix.Geteuid() != 0 {
		Main(m)
	}
	code, err := buildAndRun(commands)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testnode:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// buildAndRun builds the commands, runs this binary again with them and removes them: Main does not return.
func buildAndRun(commands []string) (code int, err error) {
	dir, err := os.MkdirTemp("", "tapir-commands-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // tests start commands as other users
		return 0, err
	}
	args := []string{"build", "-trimpath", "-o", dir + "/"}
	for _, c := range commands {
		args = append(args, module+c)
	}
	build := exec.Command("go", args...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the commands: %w: %s", err, out)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), BinDirEnv+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}
