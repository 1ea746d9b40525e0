package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/output"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"golang.org/x/sys/unix"
)

// What follows tests the process tapird in the netns that the tests run in, which is a node of its own.

func requireNode(t testing.TB) {
	t.Helper()
	testnode.Require(t, "root", "tun", "bpf", "btf")
	t.Cleanup(func() {
		for _, dir := range []string{state.DefaultDir, "/sys/fs/bpf/tapir"} {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
	})
}

func bin(name string) string { return filepath.Join(os.Getenv(testnode.BinDirEnv), name) }

// A pod is an attachment that ADD made.
type pod struct{ id, netns string }

var serial int

func add(t testing.TB) pod {
	t.Helper()
	serial++
	p := pod{id: fmt.Sprintf("pod%d", serial), netns: testnode.NewNetns(t)}
	p.cni(t, "ADD")
	t.Cleanup(func() { p.cni(t, "DEL") })
	return p
}

func (p pod) cni(t testing.TB, verb string) {
	t.Helper()
	cmd := exec.Command(bin("tapir"))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=eth0", "CNI_PATH=/nonexistent"}
	cmd.Stdin = strings.NewReader(`{"cniVersion": "1.1.0", "name": "pods", "type": "tapir", "mtu": 1400,
		"ipam": {"type": "tapir-ipam", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}`)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s of %s: %v: %s", verb, p.id, err, out)
	}
}

// sampled is what "tapird --dry-run --json" prints, as far as it is looked at.
type sampled struct {
	Attachments []struct {
		ContainerID, Why, NetnsState string
		TAP                          *struct{ Queues int }
		NAPI                         struct{ Threaded *int }
		Frames                       map[string]struct{ Frames uint64 }
		Queues                       []struct{ Holders []struct{ PID int } }
	}
	QueuesError string
	Problems    []string
}

// look runs tapird --dry-run --json, perhaps behind another command.
func look(t testing.TB, before ...string) (s sampled, text string, err error) {
	t.Helper()
	args := append(before, bin("tapird"), "--dry-run", "--json", "--log-level", "debug")
	var out, errOut bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err = cmd.Run(); err == nil {
		err = json.Unmarshal(out.Bytes(), &s)
	}
	return s, errOut.String() + out.String(), err
}

func TestADryRunShowsWhatIsThereAndDoesNothing(t *testing.T) {
	requireNode(t)
	p := add(t)
	q, err := tap.OpenQueues(tap.QueueOptions{Netns: p.netns, Name: "tap-eth0", Count: 1, NAPI: true})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close() //nolint:errcheck // of the test's end
	s, text, err := look(t)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if len(s.Attachments) != 1 || len(s.Problems) != 0 {
		t.Fatalf("want one attachment and no problems, got %s", text)
	}
	a := s.Attachments[0]
	if a.ContainerID != p.id || a.TAP == nil || a.TAP.Queues != 1 || a.NAPI.Threaded == nil || len(a.Queues) != 1 || a.Queues[0].Holders[0].PID != os.Getpid() {
		t.Errorf("got %s", text)
	}
	if _, err := os.Stat("/run/tapir/tapird.sock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("want no socket, got %v", err)
	}
	out, err := exec.Command(bin("tapird"), "--dry-run").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "watch: 1 attachments in [/run/tapir], 1 of them ready, 1 with a VMM\n") {
		t.Errorf("want the plan, got %v: %s", err, out)
	}
}

// Each capability that tapird keeps is missed where it is taken away; those of the broker are tested with it, in test/fds.
func TestEachCapabilityIsNeeded(t *testing.T) {
	requireNode(t)
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Fatal(err)
	}
	p := add(t)
	whole := func(s sampled) bool {
		if len(s.Attachments) != 1 || s.QueuesError != "" || len(s.Problems) > 0 {
			return false
		}
		a := s.Attachments[0]
		return a.ContainerID == p.id && a.Why == "" && a.TAP != nil && a.NAPI.Threaded != nil && a.Frames != nil
	}
	without := func(missing string) []string {
		set := "-all"
		for _, c := range Capabilities {
			if c.Name != missing {
				set += ",+" + strings.ToLower(c.Name)
			}
		}
		return []string{"setpriv", "--bounding-set=" + set, "--inh-caps=-all", "--no-new-privs"}
	}
	if s, text, err := look(t, without("none")...); err != nil || !whole(s) {
		t.Fatalf("with all of them: %v: %s", err, text)
	}
	for missing, want := range map[string]string{
		"NET_BROADCAST": "listen to all network namespaces: operation not permitted",
		"NET_ADMIN":     "of nsid 0: permission denied",
		"SYS_ADMIN":     "operation not permitted",
	} {
		s, text, err := look(t, without(missing)...)
		if err == nil && whole(s) || !strings.Contains(text, want) {
			t.Errorf("without %s: want %q, got %v: %s", missing, want, err, text)
		}
	}
}

// daemon is a tapird that runs.
type daemon struct {
	t   testing.TB
	cmd *exec.Cmd
	log *output.Buffer
}

func startDaemon(t testing.TB, args ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, log: &output.Buffer{}}
	d.cmd = exec.Command(bin("tapird"), args...)
	d.cmd.Stderr = d.log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.end(unix.SIGTERM) })
	d.wantLog("msg=serving")
	return d
}

func (d *daemon) end(s syscall.Signal) {
	if d.cmd.ProcessState == nil {
		_ = d.cmd.Process.Signal(s) // it may have ended
		_ = d.cmd.Wait()
	}
}

func (d *daemon) wantLog(text string) {
	d.t.Helper()
	testnode.Eventually(d.t, patience, func() error {
		if got := d.log.String(); !strings.Contains(got, text) {
			return fmt.Errorf("want %q, got %s", text, got)
		}
		return nil
	})
}

// status is a line of /proc/PID/status, of each thread.
func (d *daemon) status(key string) (values []string) {
	d.t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", d.cmd.Process.Pid))
	if err != nil || len(files) == 0 {
		d.t.Fatalf("threads of tapird: %v, %v", files, err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		for line := range strings.Lines(string(data)) {
			if value, ok := strings.CutPrefix(line, key+":"); ok {
				values = append(values, strings.TrimSpace(value))
			}
		}
	}
	return values
}

func TestAllThreadsDropCapabilities(t *testing.T) {
	requireNode(t)
	var keep uint64
	for _, c := range Capabilities {
		keep |= 1 << c.Number
	}
	d := startDaemon(t)
	for _, key := range []string{"CapPrm", "CapEff", "CapBnd"} {
		for _, text := range d.status(key) {
			if got, err := strconv.ParseUint(text, 16, 64); err != nil || got != keep {
				t.Errorf("%s: want %#x, got %s", key, keep, text)
			}
		}
	}
}

// Killed at any moment it begins again, and learns what happened meanwhile.
func TestTapirdThatWasKilledBeginsAgain(t *testing.T) {
	requireNode(t)
	add(t)
	for range 5 {
		d := startDaemon(t)
		d.end(unix.SIGKILL)
	}
	p := add(t)
	d := startDaemon(t)
	s, text, err := look(t)
	if err != nil || len(s.Attachments) != 2 || s.Attachments[1].ContainerID != p.id {
		t.Errorf("want two attachments, got %v: %s", err, text)
	}
	d.end(unix.SIGTERM)
	if !strings.Contains(d.log.String(), "msg=ended") {
		t.Errorf("want an orderly end, got %s", d.log.String())
	}
}

// It is stopped and killed again and again while attachments come, are opened and go. Nobody notices, nothing is wrong in its eyes, and in the end
// it knows what is there.
func TestTapirdRestartsUnderLoad(t *testing.T) {
	requireNode(t)
	const workers, rounds = 2, 10
	stays := add(t)
	var left atomic.Int32
	left.Store(workers)
	var load sync.WaitGroup
	for w := range workers {
		load.Go(func() {
			defer left.Add(-1)
			for i := range rounds {
				p := pod{id: fmt.Sprintf("load%d-%d", w, i), netns: testnode.NewNetns(t)}
				p.cni(t, "ADD")
				q, err := tap.OpenQueues(tap.QueueOptions{Netns: p.netns, Name: "tap-eth0", Count: 1, NAPI: true})
				if err != nil {
					t.Error(err)
					return
				}
				if err := q.Close(); err != nil {
					t.Error(err)
				}
				p.cni(t, "DEL")
			}
		})
	}
	for i := 0; left.Load() > 0 || i < 4; i++ {
		d := startDaemon(t)
		time.Sleep(20 * time.Millisecond)
		d.end([]syscall.Signal{unix.SIGTERM, unix.SIGKILL}[i%2])
		if text := d.log.String(); strings.Contains(text, "level=ERROR") {
			t.Errorf("start %d: %s", i, text)
		}
	}
	load.Wait()
	s, text, err := look(t)
	if err != nil || len(s.Attachments) != 1 || s.Attachments[0].ContainerID != stays.id || s.Attachments[0].TAP == nil {
		t.Errorf("want the one that stays, got %v: %s", err, text)
	}
}

// The service manager hears when everything runs.
func TestTheServiceManagerIsTold(t *testing.T) {
	requireNode(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	path := filepath.Join(t.TempDir(), "notify")
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	startDaemon(t)
	buf := make([]byte, 64)
	n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
	for until := time.Now().Add(patience); errors.Is(err, unix.EAGAIN) && time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		n, _, err = unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
	}
	if err != nil || string(buf[:max(n, 0)]) != "READY=1" {
		t.Errorf("want READY=1, got %q, %v", buf[:max(n, 0)], err)
	}
}
