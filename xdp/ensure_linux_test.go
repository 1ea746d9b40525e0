package xdp

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// testDir is a pin directory that is removed with the test.
func testDir(t testing.TB) string {
	t.Helper()
	testnode.Require(t, "root", "bpf")
	dir := filepath.Join(bpffs, strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()))
	t.Cleanup(func() {
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// pinned lists what is under a directory of bpffs, by its path there.
func pinned(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if path != dir {
			out = append(out, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// allPins is what Ensure leaves in its directory.
func allPins() []string {
	v := versionPrefix + Digest()
	return []string{v, v + "/answerers", v + "/counters", v + "/endpoints", v + "/guest_ingress", v + "/host_ingress", v + "/pod_ingress"}
}

func comparePins(t *testing.T, dir string) {
	t.Helper()
	if diff := cmp.Diff(allPins(), pinned(t, dir)); diff != "" {
		t.Errorf("pins (-want +got):\n%s", diff)
	}
}

func mustEnsure(t testing.TB, dir string) *Programs {
	t.Helper()
	p, err := Ensure(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestEnsurePinsOnceAndOpenFindsIt(t *testing.T) {
	dir := testDir(t)
	if _, err := Open(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of nothing: %v, want fs.ErrNotExist", err)
	}
	id := func(p *Programs) uint32 {
		t.Helper()
		prog, err := p.program(RoleGuest)
		if err != nil {
			t.Fatal(err)
		}
		id, err := programID(prog)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(id)
	}
	first := mustEnsure(t, dir)
	comparePins(t, dir)
	second := mustEnsure(t, dir)
	if a, b := id(first), id(second); a != b {
		t.Errorf("the second Ensure has program %d, want the first's %d", b, a)
	}
	third, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := id(first), id(third); a != b {
		t.Errorf("Open has program %d, want %d", b, a)
	}
	if err := third.Close(); err != nil {
		t.Error(err)
	}
	if _, err := third.Lookup(1); !errors.Is(err, errClosed) {
		t.Errorf("Lookup after Close: %v, want %v", err, errClosed)
	}
	if _, err := OpenVersion(dir, "0123456789abcdef"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenVersion of another: %v, want fs.ErrNotExist", err)
	}
	if _, err := OpenVersion(dir, "../"+Digest()); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenVersion of a path: %v, want a refusal", err)
	}
	versions, err := Versions(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{Digest()}, versions); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

// The verifier gives up at a million instructions, and its count differs between kernels.
func TestVerifierHasRoom(t *testing.T) {
	p := newPrograms(t)
	for role, prog := range p.programs {
		info, err := prog.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, ok := info.VerifiedInstructions()
		if !ok {
			t.Skip("this kernel does not tell")
		}
		t.Logf("%s program: %d instructions verified", role, n)
		if n > 250_000 {
			t.Errorf("%s program: %d instructions verified, want at most 250,000", role, n)
		}
	}
}

func TestRemoveLeavesNothing(t *testing.T) {
	dir := testDir(t)
	mustEnsure(t, dir)
	for range 2 {
		if err := Remove(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after Remove: %v, want fs.ErrNotExist", err)
		}
	}
	if versions, err := Versions(dir); err != nil || versions != nil {
		t.Errorf("Versions after Remove: %v, %v", versions, err)
	}
	mustEnsure(t, dir)
	comparePins(t, dir)
}

// TestTwentyProcessesEnsureAtOnce starts where bpffs is not mounted either.
func TestTwentyProcessesEnsureAtOnce(t *testing.T) {
	withoutBPFFS(t)
	dir := testDir(t)
	type result struct {
		id  int
		err error
	}
	results := make(chan result)
	for range 20 {
		go func() {
			var stderr bytes.Buffer
			cmd := helperCommand("ensure", dir)
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				results <- result{0, errors.New(stderr.String())}
				return
			}
			id, err := strconv.Atoi(strings.TrimSpace(string(out)))
			results <- result{id, err}
		}()
	}
	var ids []int
	for range 20 {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
		}
		ids = append(ids, r.id)
	}
	if slices.Sort(ids); ids[0] != ids[19] || ids[0] == 0 {
		t.Errorf("program ids %v, want the same 20 times", ids)
	}
	comparePins(t, dir)
	if got := countMounts(t); got != 1 {
		t.Errorf("bpffs is mounted %d times, want once", got)
	}
	if err := Remove(dir); err != nil {
		t.Fatal(err)
	}
	if got := countMounts(t); got != 0 {
		t.Errorf("after Remove bpffs is mounted %d times, want 0: tapir mounted it", got)
	}
}

// withoutBPFFS takes the node's bpffs away for the test.
func withoutBPFFS(t *testing.T) {
	t.Helper()
	testnode.Require(t, "root", "bpf")
	if err := unix.Unmount(bpffs, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for countMounts(t) > 0 {
			if err := unix.Unmount(bpffs, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mount("testnode", bpffs, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
			t.Fatal(err)
		}
	})
}

func countMounts(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(data), " "+bpffs+" bpf ")
}

func TestRemoveKeepsABPFFSThatOthersUse(t *testing.T) {
	withoutBPFFS(t)
	dir := testDir(t)
	mustEnsure(t, dir)
	other := filepath.Join(bpffs, "other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("another's pin after Remove: %v", err)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
}

func TestEnsureMountsNowhereElse(t *testing.T) {
	testnode.Require(t, "root", "bpf")
	dir := filepath.Join(t.TempDir(), "tapir")
	if _, err := Ensure(dir); err == nil || !strings.Contains(err.Error(), "no bpffs") {
		t.Errorf("Ensure on another filesystem: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it made %s", dir)
	}
}

// TestLoaderKilledInTheMiddle kills loaders at moments spread over the time that loading takes, and beyond.
func TestLoaderKilledInTheMiddle(t *testing.T) {
	dir := testDir(t)
	start := time.Now()
	if out, err := helperCommand("ensure", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	whole := time.Since(start)

	const rounds = 12
	early := 0
	for i := range rounds {
		if err := Remove(dir); err != nil {
			t.Fatal(err)
		}
		cmd := helperCommand("ensure", dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * whole * time.Duration(i) / rounds)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()

		left := pinned(t, dir)
		if !slices.Contains(left, versionPrefix+Digest()) {
			early++
		} else if !slices.Equal(left, allPins()) {
			t.Errorf("a version that is not whole: %v", left)
		}
		p, err := Ensure(dir)
		if err != nil {
			t.Fatalf("after a loader killed with %v: %v", left, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		comparePins(t, dir)
	}
	t.Logf("of %d loaders %d were killed before they were done", rounds, early)
	if early == 0 {
		t.Error("no loader was killed before it was done: the test shows nothing")
	}
}

// The shortest part of loading, with pins that have not their final name, is made by hand.
func TestRemainsOfAKilledLoaderAreRemoved(t *testing.T) {
	dir := testDir(t)
	remains := filepath.Join(dir, tempPrefix+"4242")
	if err := os.MkdirAll(remains, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := newPrograms(t).endpoints.Pin(filepath.Join(remains, redirectMapEndpoints)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of remains: %v, want fs.ErrNotExist", err)
	}
	mustEnsure(t, dir)
	comparePins(t, dir)
}

func TestALockThatIsHeldEndsInErrLocked(t *testing.T) {
	dir := testDir(t)
	mustEnsure(t, dir)
	lock, err := lockDir(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	wait := lockWait
	lockWait = 30 * time.Millisecond
	defer func() { lockWait = wait }()
	if err := Remove(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("Remove under another's lock: %v, want ErrLocked", err)
	}
	comparePins(t, dir)
	// What is pinned needs no lock.
	p, err := Ensure(dir)
	if err != nil {
		t.Fatalf("Ensure under another's lock: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// An attachment lives on when the process that made it has ended and all pins are gone.
func TestAttachmentsOutliveProcessAndPins(t *testing.T) {
	for _, m := range []Method{MethodTCX, MethodClsact} {
		t.Run(string(m), func(t *testing.T) {
			if m == MethodTCX {
				testnode.Require(t, "tcx")
			}
			dir := testDir(t)
			s := newSandbox(t)
			cmd := helperCommand("attach", dir, s.pod, strconv.Itoa(int(s.tapIndex)), strconv.Itoa(int(s.podIndex)), string(m))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			s.tap.send(vnetHdr{}, hello(1))
			s.wire.want("after the process ended", hello(1))
			if err := Remove(dir); err != nil {
				t.Fatal(err)
			}
			s.tap.send(vnetHdr{}, with(hello(2), offEthSrc, strangerMAC...))
			s.tap.send(vnetHdr{}, hello(3))
			s.wire.want("after the pins are gone", hello(3))
		})
	}
}
