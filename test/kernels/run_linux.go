package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	_ "embed" // what runs in the guest

	"github.com/tapir-cni/tapir/internal/debianvm"
	"github.com/tapir-cni/tapir/internal/microvm"
)

// AllKernels are the series that Debian 12 has.
var AllKernels = []string{string(microvm.Series61), string(microvm.Series612)}

// has lists what each kernel must have, beyond common: what is missing there is a failure, not a skip.
var has = map[string]string{string(microvm.Series612): ",tcx"}

const common = "root,bpf,btf,tun,ipv6,refplugins"

// AllPackages are those whose tests ask the kernel something. Not among them: what needs QEMU in QEMU, Chromium, Kubernetes.
var AllPackages = []string{
	"tap", "tap/queueiter", "xdp", "state", "ipam", "plugin", "internal/rtnl", "internal/links", "internal/sysfs", "internal/netdevgenl",
	"internal/testnode", "agent/watch", "agent/measure", "agent/uplink", "agent/tuner", "agent/reconcile", "cmd/tapirctl", "test/cni",
}

// Options say what is to run.
type Options struct {
	Packages   []string // AllPackages where empty
	Bin        string   // folder of the built commands
	RefPlugins string
	Run        string // go test's -run
	Short      bool
	Verbose    bool
	Timeout    time.Duration
	Output     io.Writer    // what the tests print; may be nil
	Progress   func(string) // called before each step that takes time, and at each package's end
}

// guestScript runs the binaries.
//
//go:embed guest.sh
var guestScript []byte

// On boots the kernel and runs the packages. Its error is of the run; what tests say is in the Result.
func (o Options) On(ctx context.Context, kernel string) (r Result, err error) {
	if !slices.Contains(AllKernels, kernel) {
		return r, fmt.Errorf("kernel: want one of %q, got %q", AllKernels, kernel)
	}
	if len(o.Packages) == 0 {
		o.Packages = AllPackages
	}
	top, err := repository(ctx)
	if err != nil {
		return r, err
	}
	dir, err := os.MkdirTemp("", "tapir-kernels-*")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	files, err := o.files(ctx, top, dir)
	if err != nil {
		return r, err
	}
	img, err := debianvm.Ensure(ctx, debianvm.Options{Kernel: microvm.Series(kernel), Packages: guestPackages, Progress: o.Progress})
	if err != nil {
		return r, fmt.Errorf("guest's image: %w", err)
	}
	r = Result{Kernel: kernel, Release: img.Release}
	p := &parser{out: o.Output, progress: o.Progress, result: &r}
	o.Progress("booting Linux " + img.Release)
	job := debianvm.Job{Command: o.command(kernel), Files: files, Stdout: p, MemoryMB: 4096, Timeout: o.Timeout}
	if o.Verbose {
		job.Log = o.Progress
	}
	if err := img.Run(ctx, job); err != nil {
		at := ""
		if p.now != nil {
			at = fmt.Sprintf(", in %s", p.now.Name)
		}
		return r, fmt.Errorf("tests on Linux %s%s: %w", img.Release, at, err)
	}
	if len(r.Packages) != len(o.Packages) {
		return r, fmt.Errorf("tests on Linux %s: want %d packages, got %d", img.Release, len(o.Packages), len(r.Packages))
	}
	return r, nil
}

// guestPackages are what tests call by exec.
var guestPackages = []string{"iptables"}

// command is guest.sh with what it needs as environment.
func (o Options) command(kernel string) []string {
	flags := "-test.v -test.count=1 -test.timeout=" + o.Timeout.String()
	if o.Short {
		flags += " -test.short"
	}
	if o.Run != "" {
		flags += " -test.run=" + o.Run
	}
	cmd := []string{"env", "TAPIR_REQUIRE=" + common + has[kernel], "FLAGS=" + flags, "sh", scriptName}
	return append(cmd, o.Packages...)
}

// scriptName and binaryName are files of the guest; binaryName stands in each package's folder.
const (
	scriptName = "guest.sh"
	binaryName = "kernels.test"
)

// files builds the test binaries into dir and lists all that the guest needs: the tree, since tests read their testdata and pages beside
// them; the commands; the reference plugins.
func (o Options) files(ctx context.Context, top, dir string) (map[string]string, error) {
	files := make(map[string]string)
	tracked, err := output(ctx, top, "git", "ls-files", "-z")
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(strings.TrimRight(tracked, "\x00"), "\x00") {
		path := filepath.Join(top, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			files[filepath.Join("tree", name)] = path
		}
	}
	for i, pkg := range o.Packages {
		o.Progress(fmt.Sprintf("building the tests of %s (%d of %d)", pkg, i+1, len(o.Packages)))
		path := filepath.Join(dir, strings.ReplaceAll(pkg, "/", "_")+".test")
		if _, err := output(ctx, top, "go", "test", "-c", "-o", path, "./"+pkg); err != nil {
			return nil, err
		}
		files[filepath.Join("tree", pkg, binaryName)] = path
	}
	for to, from := range map[string]string{"bin": o.Bin, "refplugins": o.RefPlugins} {
		if err := addPrograms(files, to, from); err != nil {
			return nil, err
		}
	}
	script := filepath.Join(dir, scriptName)
	files[scriptName] = script
	return files, os.WriteFile(script, guestScript, 0o755)
}

func addPrograms(files map[string]string, to, from string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("programs for the guest: %w; run \"make build refplugins\"", err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			files[filepath.Join(to, e.Name())] = filepath.Join(from, e.Name())
		}
	}
	return nil
}

// repository is the top of the checkout that the working directory is in.
func repository(ctx context.Context) (string, error) {
	out, err := output(ctx, ".", "git", "rev-parse", "--show-toplevel")
	return strings.TrimSpace(out), err
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return string(out), nil
}
