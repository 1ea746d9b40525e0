package quickstart_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/microvm/vmtest"
	"github.com/tapir-cni/tapir/internal/quickstart"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/plugin"
	"github.com/tapir-cni/tapir/xdp"
)

// runEnv makes this binary the program that people call: its value is the binary directory.
const runEnv = "TAPIR_QUICKSTART_TEST"

func TestMain(m *testing.M) {
	if dir := os.Getenv(runEnv); dir != "" {
		os.Exit(command(dir, os.Args[1:]))
	}
	vmtest.Main(m, "tapir", "tapir-ipam")
}

// command is what cmd/tapirctl makes of "tapirctl quickstart". The argument "forget" leaves the clean-up out.
func command(dir string, args []string) int {
	o := quickstart.Options{
		BinDir: dir, JSON: slices.Contains(args, "json"), Keep: slices.Contains(args, "keep"),
		Cleanup: func(ctx context.Context) error {
			_, err := plugin.Cleaner{StateDirs: []string{plugin.DefaultStateDir}, BPFFS: xdp.DefaultDir}.Run(ctx)
			return err
		},
	}
	if slices.Contains(args, "forget") {
		o.Cleanup = nil
	}
	if err := quickstart.Run(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		if errors.Is(err, quickstart.ErrInterrupted) {
			return 130
		}
		return 1
	}
	return 0
}

// start runs the command on the test's node. Its output is whole when it has been waited for.
func start(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	return startAndInterrupt(t, "", args...)
}

// It is told to keep all running and interrupted when it says that it does: the way of most runs, and of --keep.
func TestQuickstartShowsBothGuestsAndLeavesNothing(t *testing.T) {
	cmd, stdout, stderr := startAndInterrupt(t, "--keep: all is left running", "json", "keep")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	var r quickstart.Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("standard output is not the report: %v\n%s", err, stdout)
	}
	if len(r.Sandboxes) != 2 || len(r.LeftInside)+len(r.LeftOutside) > 0 || r.Error != "" {
		t.Errorf("got %+v", r)
	}
	for _, s := range r.Sandboxes {
		if s.TAPFlags != "TAP|NO_PI|VNET_HDR|MULTI_QUEUE" || s.Guest.Queues != 2 || len(s.Guest.Addresses) != 2 || s.Del == 0 {
			t.Errorf("sandbox %s: got %+v", s.Name, s)
		}
	}
	// Five ways by two families by two sizes; six ways by two families.
	if len(r.Pings) != 20 || len(r.Transfers) != 12 {
		t.Errorf("want 20 pings and 12 transfers, got %d and %d", len(r.Pings), len(r.Transfers))
	}
	for _, x := range r.Transfers {
		if x.Bytes == 0 || x.Sent != x.Received {
			t.Errorf("transfer: got %+v", x)
		}
	}
}

// A clean-up that does nothing must be noticed, or the proof that nothing is left proves nothing.
func TestQuickstartNamesWhatIsLeft(t *testing.T) {
	cmd, _, stderr := startAndInterrupt(t, "ADD beta", "json", "forget")
	if err := cmd.Wait(); err == nil {
		t.Fatal("nothing was cleaned up and the quick start ended well")
	}
	for _, want := range []string{"new: file " + xdp.DefaultDir, "new: file " + plugin.DefaultStateDir, "new: nft table", "sysctl net/ipv4/ip_forward = 1"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("want %q in\n%s", want, stderr)
		}
	}
}

func TestInterruptedQuickstartCleansUp(t *testing.T) {
	// After the first of them the node's process may not have set up its signals yet.
	const early = "guests: kernel"
	for _, when := range []string{early, "made a node", "made the sandboxes", "ADD alpha", "booting a microVM"} {
		cmd, _, stderr := startAndInterrupt(t, when, "json")
		err := cmd.Wait()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 130 {
			t.Errorf("after %q: want it to end as interrupted, got %v\n%s", when, err, stderr)
		}
		if when != early && !strings.Contains(stderr.String(), "the machine outside is as it was") {
			t.Errorf("after %q: want it to have compared, got\n%s", when, stderr)
		}
	}
}

// startAndInterrupt starts the command and interrupts it when its progress first says when, never where that is empty.
func startAndInterrupt(t *testing.T, when string, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	_, dir := vmtest.Image(t)
	testnode.Require(t, "bpf")
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd = exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), runEnv+"="+dir)
	cmd.Stdout = stdout
	cmd.Stderr = &trigger{buf: stderr, when: when, pull: func() {
		if err := cmd.Process.Signal(unix.SIGINT); err != nil {
			t.Errorf("interrupt: %v", err)
		}
	}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, stdout, stderr
}

// trigger pulls once, when what is written to it first holds a text.
type trigger struct {
	buf    *bytes.Buffer
	when   string
	pull   func()
	pulled bool
}

func (w *trigger) Write(p []byte) (int, error) {
	w.buf.Write(p)
	if w.when != "" && !w.pulled && strings.Contains(w.buf.String(), w.when) {
		w.pulled = true
		w.pull()
	}
	return len(p), nil
}

// Killed, the outer process can clean nothing up: its node must go with it.
func TestKilledQuickstartTakesItsNodeAlong(t *testing.T) {
	cmd, _, _ := start(t)
	time.Sleep(3 * time.Second)
	node := childrenOf(t, cmd.Process.Pid)
	if len(node) == 0 {
		t.Fatal("it has no child after 3s: there is nothing to see")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	for _, pid := range node {
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if ended(pid) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("process %d of the node is still there", pid)
			}
		}
	}
}

// ended reports whether a process is gone, or only waits for its new parent to take its exit status.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(after, "Z")
}

func childrenOf(t *testing.T, pid int) (pids []int) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range strings.Fields(string(b)) {
			var child int
			if _, err := fmt.Sscan(f, &child); err != nil {
				t.Fatal(err)
			}
			pids = append(pids, child)
		}
	}
	return pids
}

func TestQuickstartWithoutItsProgramsSaysHowToMakeThem(t *testing.T) {
	testnode.Require(t, "root")
	err := quickstart.Run(t.Context(), quickstart.Options{BinDir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "tapir, tapir-ipam, tapir-guest") || !strings.Contains(err.Error(), "make build") {
		t.Errorf("got %v", err)
	}
}
