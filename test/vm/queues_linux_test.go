package vm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/guestconfig"
	"github.com/tapir-cni/tapir/internal/microvm"
	"github.com/tapir-cni/tapir/internal/microvm/stream"
	"github.com/tapir-cni/tapir/internal/microvm/vmtest"
	"github.com/tapir-cni/tapir/internal/testnode"
)

// A way is how QEMU, unmodified, comes to its queues.
type way struct {
	name   string
	napi   string // what the kernel says of each queue then
	opened string // and how it was opened
	queues func(binDir string, p *pod, c *microvm.Config)
}

var ways = []way{
	{"by name", "no", "by name", func(string, *pod, *microvm.Config) {}},
	// In the node's netns, where there is no such TAP: QEMU can have its queues from tapird alone.
	{"fds", "yes", "handed over", func(binDir string, p *pod, c *microvm.Config) {
		c.Launcher = []string{binDir + "/tapirctl", "fds", "--wait", "30s", "--attachment", p.id + "/eth0", "--"}
		c.Netns, c.Netdev = "/proc/self/ns/net", "tap,id=net0,vhost=off,fds={fds}"
	}},
	// The VM is stopped by SIGKILL to the supervisor, which QEMU would outlive.
	{"exec", "yes", "by name", func(binDir string, p *pod, c *microvm.Config) {
		c.Launcher = []string{binDir + "/tapirctl", "exec", "--queues", fmt.Sprint(p.guest.Queues), "--", "setpriv", "--pdeathsig", "KILL"}
	}},
}

// A guest's traffic crosses each queue of its TAP however QEMU came to it; with NAPI where tapir had a hand in it, and without by name.
func TestQueuesOfEachWay(t *testing.T) {
	testnode.Require(t, "bpf")
	img, binDir := vmtest.Image(t)
	nodeAddresses(t)
	serve(t)
	startTapird(t, binDir)
	cni := libcni.NewCNIConfigWithCacheDir([]string{binDir}, t.TempDir(), nil)
	t.Cleanup(func() { cleanUp(t) })
	t.Run("boots", func(t *testing.T) { // returns when all are done
		for _, queues := range []int{4, 2, 1} {
			for _, w := range ways {
				t.Run(fmt.Sprintf("%d %s", queues, w.name), func(t *testing.T) {
					t.Parallel()
					id := fmt.Sprintf("%s-%d", strings.ReplaceAll(w.name, " ", "-"), queues)
					p := attach(t, cni, config(t, queues, 1500, "cri"), id)
					testWay(t, img, binDir, p, w, queues)
				})
			}
		}
	})
}

func testWay(t *testing.T, img microvm.Image, binDir string, p *pod, w way, queues int) {
	var err error
	p.guest, err = guestconfig.FromResult(p.result, guestconfig.Query{ContainerID: p.id, IfName: "eth0", Queues: queues})
	check(t, err)
	c := microvm.Config{Name: p.id, Guest: p.guest, Image: img, Timeout: 2 * time.Minute}
	w.queues(binDir, p, &c)
	p.vm, err = microvm.Start(t.Context(), c)
	check(t, err)
	t.Cleanup(func() { check(t, p.vm.Stop()) })
	if i := p.vm.Event.Info; i.CPUs != queues || i.Pairs != queues {
		t.Errorf("want %d vCPUs and queue pairs, got %d and %d", queues, i.CPUs, i.Pairs)
	}
	wantRows(t, binDir, p, w, queues)
	for family, to := range nodeAddrs {
		if r, err := p.vm.Ping(t.Context(), to, 56, 3, 30*time.Second); err != nil || r.Received != 3 {
			t.Errorf("ping over %s: %d of %d answered, %v", families[family], r.Received, r.Sent, err)
		}
	}
	testFlows(t, p, queues)
	wantRows(t, binDir, p, w, queues) // traffic changed nothing of it
}

// queueRow is what is read here of "tapirctl queues -o json", whose source is the kernel's open files.
type queueRow struct {
	Queue                        *int
	State, NAPI, Opened, Program string
	PID, VnetHdr                 int
	MultiQueue                   bool
}

// wantRows wants just these queues of the pod's TAP to be open, each by its QEMU and in its way.
func wantRows(t *testing.T, binDir string, p *pod, w way, queues int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(binDir, "tapirctl"), "queues", "-o", "json", p.id+"/eth0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	var rows []queueRow
	check(t, json.Unmarshal(out, &rows))
	seen := map[int]bool{}
	for _, r := range rows {
		if r.Queue == nil || r.State != "enabled" || r.NAPI != w.napi || r.Opened != w.opened || r.MultiQueue != (queues > 1) || r.VnetHdr < 10 {
			t.Errorf("%s: want each queue enabled, NAPI %s, opened %s, got %+v", p.id, w.napi, w.opened, r)
			continue
		}
		seen[*r.Queue] = true
		if own := r.PID == p.vm.Pid() || isChild(r.PID, p.vm.Pid()); !own || r.Program != "qemu-system-x86_64" {
			t.Errorf("%s: queue %d is held by process %d, %s; want the guest's QEMU, below %d", p.id, *r.Queue, r.PID, r.Program, p.vm.Pid())
		}
	}
	if len(rows) != queues || len(seen) != queues {
		t.Errorf("%s: want %d queues, got %s", p.id, queues, out)
	}
}

func isChild(pid, parent int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", parent))
}

// testFlows moves several TCP streams at once each way, and wants more than one queue pair to carry them where there is more than one.
// Which one carries a flow follows from its hash and from the vCPU that sends it, so that a round may leave one out.
func testFlows(t *testing.T, p *pod, queues int) {
	const rounds = 6
	before := cardCounters(t, p)
	for round := range rounds {
		moveFlows(t, p, uint64(round*100), 2*queues)
		after := cardCounters(t, p)
		sent, received := 0, 0
		for i := range queues {
			for count, name := range map[*int]string{&sent: fmt.Sprintf("tx_queue_%d_packets", i), &received: fmt.Sprintf("rx_queue_%d_packets", i)} {
				if after[name] > before[name] {
					*count++
				}
			}
		}
		if enough := min(2, queues); sent >= enough && received >= enough {
			t.Logf("%s: %d of %d queues sent, %d received, round %d", p.id, sent, queues, received, round+1)
			return
		}
	}
	t.Errorf("%s: want more than one of %d queues used after %d rounds: %v", p.id, queues, rounds, cardCounters(t, p))
}

func moveFlows(t *testing.T, p *pod, seed uint64, count int) {
	t.Helper()
	const n, limit = 1e6, 2 * time.Minute
	errs := make([]error, 2*count)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			to := nodeAddrs[i/2%2]
			move := p.vm.Upload
			if i%2 == 1 {
				move = p.vm.Download
			}
			var r stream.Result
			if r, errs[i] = move(t.Context(), to, seed+uint64(i), n, limit); errs[i] == nil {
				errs[i] = r.Err(n)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%s: %v", p.id, err)
	}
}

func cardCounters(t *testing.T, p *pod) map[string]uint64 {
	t.Helper()
	c, err := p.vm.Counters(t.Context())
	check(t, err)
	if len(c.Card) == 0 {
		t.Fatal("the guest's driver counts no queue")
	}
	return c.Card
}

// startTapird runs one on the node for the test's time.
func startTapird(t *testing.T, binDir string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(binDir, "tapird"))
	log := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = log, log
	check(t, cmd.Start())
	t.Cleanup(func() {
		check(t, cmd.Process.Signal(unix.SIGTERM))
		if err := cmd.Wait(); err != nil {
			t.Errorf("tapird: %v: %s", err, log)
		}
	})
}
