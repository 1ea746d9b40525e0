// Package vmtest gives tests what a microVM needs. It is made before package testnode takes the test binary into a
// network of its own, from which no kernel can be downloaded.
package vmtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/microvm"
	"github.com/tapir-cni/tapir/internal/testnode"
)

// preparedEnv carries what was prepared, or why not, into the re-executed test binary.
const preparedEnv = "TAPIR_VMTEST"

type prepared struct {
	BinDir string
	Image  microvm.Image
	Error  string
}

// Main is [testnode.Main] for a package that boots microVMs: it builds the guest agent and the named commands of this
// module, sees to the image, and runs the tests on a private node. TAPIR_BIN_DIR names a directory with the commands
// and tapir-guest where they are built already.
func Main(m *testing.M, commands ...string) {
	if os.Getenv(preparedEnv) != "" || unix.Geteuid() != 0 {
		testnode.Main(m)
	}
	code, err := prepareAndRun(commands)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vmtest:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// prepareAndRun prepares, runs this binary again with what was prepared and removes that: testnode.Main does not return.
func prepareAndRun(commands []string) (code int, err error) {
	p := prepared{BinDir: os.Getenv("TAPIR_BIN_DIR")}
	if p.BinDir == "" {
		if p.BinDir, err = os.MkdirTemp("", "tapir-vmtest-*"); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(p.BinDir)) }()
		if err := build(p.BinDir, commands); err != nil {
			return 0, err
		}
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		p.Error = err.Error() + "; install qemu-system-x86"
	} else if p.Image, err = microvm.EnsureImage(context.Background(), microvm.ImageOptions{Agent: filepath.Join(p.BinDir, "tapir-guest")},
		func(s string) { fmt.Fprintln(os.Stderr, "vmtest:", s) }); err != nil {
		p.Error = err.Error()
	}
	b, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), preparedEnv+"="+string(b))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

func build(dir string, commands []string) error {
	for name, pkg := range map[string]string{"tapir-guest": "github.com/tapir-cni/tapir/internal/microvm/guest"} {
		if err := goBuild(filepath.Join(dir, name), pkg); err != nil {
			return err
		}
	}
	for _, c := range commands {
		if err := goBuild(filepath.Join(dir, c), "github.com/tapir-cni/tapir/cmd/"+c); err != nil {
			return err
		}
	}
	return nil
}

func goBuild(out, pkg string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, said)
	}
	return nil
}

// Image gives the image that tests boot and the directory of the built commands. It needs root, tun, ipv6 and qemu; the
// test is skipped without them, or fails where TAPIR_REQUIRE lists "vm" or that need.
func Image(t testing.TB) (img microvm.Image, binDir string) {
	t.Helper()
	testnode.Require(t, "root", "tun", "ipv6")
	var p prepared
	if err := json.Unmarshal([]byte(os.Getenv(preparedEnv)), &p); err != nil {
		t.Fatalf("read %s: %v; the package needs a TestMain that calls vmtest.Main", preparedEnv, err)
	}
	if p.Error != "" {
		if testnode.Required("vm") || testnode.Required("qemu") {
			t.Fatalf("needs a microVM, and TAPIR_REQUIRE says that it can have one: %s", p.Error)
		}
		t.Skipf("needs a microVM: %s", p.Error)
	}
	return p.Image, p.BinDir
}

// RefPlugins gives the directory of containernetworking's reference plugins: that of TAPIR_REFPLUGINS, else bin/refplugins
// of this module, into which they are built where they are missing. Without them and without their modules, which cannot
// be downloaded from a private node, the test is skipped, or fails where TAPIR_REQUIRE lists "refplugins".
func RefPlugins(t testing.TB) string {
	t.Helper()
	dir, err := buildRefPlugins()
	if err != nil && testnode.Required("refplugins") {
		t.Fatalf("needs the reference plugins, and TAPIR_REQUIRE says that they can be had: %v", err)
	}
	if err != nil {
		t.Skipf("needs the reference plugins: %v; run \"make refplugins\"", err)
	}
	return dir
}

var buildRefPlugins = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("TAPIR_REFPLUGINS"); dir != "" {
		return dir, nil
	}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the root of the module: %w", err)
	}
	tree := strings.TrimSpace(string(root))
	dir := filepath.Join(tree, "bin", "refplugins")
	if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
		return dir, nil
	}
	cmd := exec.Command("go", "-C", filepath.Join(tree, "test", "refplugins"), "build", "-trimpath", "-o", dir+"/", "tool")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the reference plugins: %w: %s", err, said)
	}
	return dir, nil
})
