package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/journal"
	"github.com/tapir-cni/tapir/agent/reconcile"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/output"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/plugin"
	"github.com/tapir-cni/tapir/state"
	"github.com/vishvananda/netlink"
)

// patience is how long what is bound to happen may take on a busy machine.
const patience = 60 * time.Second

// grace is that of the tests: long enough to see that nothing happens before it.
const grace = 1500 * time.Millisecond

const bpffs = "/sys/fs/bpf/tapir"

// The node is the netns that the tests run in: tapir's ADD makes attachments in it.
func requireNode(t testing.TB) {
	t.Helper()
	testnode.Require(t, "root", "tun", "bpf")
	t.Cleanup(func() {
		for _, dir := range []string{state.DefaultDir, bpffs} {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
		_ = exec.Command("nft", "delete", "table", "inet", "tapir").Run() // it outlives the attachments, and may not be there
	})
}

// A pod is an attachment whose TAP is "tap-eth0".
type pod struct {
	t         testing.TB
	id, netns string
	keys      string
	dir       string // state folder
	podName   string
	ifName    string
}

var serial atomic.Int64

func newPod(t testing.TB, keys string) *pod {
	t.Helper()
	return &pod{t: t, id: fmt.Sprintf("pod%d", serial.Add(1)), netns: testnode.NewNetns(t), keys: keys, dir: state.DefaultDir, ifName: "eth0"}
}

// add runs ADD. What it made is gone when the test ends.
func add(t testing.TB, keys string) *pod {
	t.Helper()
	p := newPod(t, keys)
	p.add()
	return p
}

func (p *pod) add() {
	p.t.Helper()
	if err := p.cni("ADD"); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := p.cni("DEL"); err != nil {
			p.t.Error(err)
		}
	})
}

func (p *pod) cni(verb string) error { return p.command(verb).run() }

type cniCommand struct{ *exec.Cmd }

func (p *pod) command(verb string) cniCommand {
	cmd := exec.Command(filepath.Join(os.Getenv(testnode.BinDirEnv), "tapir"))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=" + p.ifName, "CNI_PATH=/nonexistent"}
	if p.podName != "" {
		cmd.Env = append(cmd.Env, "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+p.podName)
	}
	ipam := `"ipam": {"type": "tapir-ipam", "reuseDelay": "0s", "ranges": [[{"subnet": "10.9.0.0/16"}], [{"subnet": "fd00:9::/64"}]]}`
	if strings.Contains(p.keys, `"prevResult"`) {
		ipam = `"result": "cri"`
	} else {
		ipam = `"mtu": 1400, ` + ipam
	}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "tapir", "stateDir": %q, %s %s}`, p.dir, p.keys, ipam))
	return cniCommand{cmd}
}

func (c cniCommand) run() error {
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", c.Env[:2], err, out)
	}
	return nil
}

func (p *pod) key() state.Key {
	return state.Key{Network: "pods", ContainerID: p.id, IfName: p.ifName}
}

// record is the attachment's record.
func (p *pod) record() (rec state.Attachment, ok bool) {
	p.t.Helper()
	err := state.New(state.Config{Dir: p.dir}).View(context.Background(), func(tx *state.Tx) (err error) {
		rec, ok, err = tx.Attachment(p.key())
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return rec, ok
}

func (p *pod) recorded() state.Attachment {
	p.t.Helper()
	rec, ok := p.record()
	if !ok {
		p.t.Fatalf("%s has no record", p.id)
	}
	return rec
}

// wrong is what CHECK finds.
func (p *pod) wrong() []string {
	p.t.Helper()
	list, err := plugin.Inspect(p.recorded(), bpffs)
	if err != nil {
		p.t.Fatal(err)
	}
	return list
}

// in runs f on a thread in the pod's netns.
func (p *pod) in(f func()) {
	p.t.Helper()
	testnode.In(p.t, p.netns, f)
}

func link(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A reconciler that runs.
type mender struct {
	*reconcile.Reconciler
	t    testing.TB
	stop func()
	log  *output.Buffer
	j    *journal.Journal
}

// start runs watch and reconciler. Looks at everything are a day apart but where a test asks for more.
func start(t testing.TB, o reconcile.Options) *mender {
	t.Helper()
	m := &mender{t: t, log: &output.Buffer{}, j: journal.New(t.TempDir())}
	if _, err := m.j.Open(); err != nil {
		t.Fatal(err)
	}
	if o.Grace == 0 {
		o.Grace = grace
	}
	if o.Every == 0 {
		o.Every = 24 * time.Hour
	}
	log := slog.New(slog.NewTextHandler(m.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w := watch.New(watch.Config{Logger: log})
	m.Reconciler = reconcile.New(reconcile.Config{Watch: w, Journal: m.j, BPFFS: bpffs, Options: o, Logger: log})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- w.Run(ctx) }()
	go func() { done <- m.Run(ctx) }()
	m.stop = sync.OnceFunc(func() {
		cancel()
		for range 2 {
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("run: %v", err)
				}
			case <-time.After(patience):
				t.Error("run does not end")
			}
		}
		if t.Failed() {
			t.Logf("log:\n%s", m.log.String())
		}
	})
	t.Cleanup(m.stop)
	select {
	case <-w.Ready():
	case <-time.After(patience):
		t.Fatal("the watcher is not ready")
	}
	return m
}

// result is that of a kind.
func (m *mender) result(k reconcile.Kind) reconcile.Result {
	m.t.Helper()
	for _, r := range m.Results() {
		if r.Kind == k {
			return r
		}
	}
	m.t.Fatalf("no result of %s", k)
	return reconcile.Result{}
}

// eventually waits for what is bound to happen.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("it did not come to pass: %s", what)
}

// never wants that something is so all the time.
func never(t testing.TB, d time.Duration, what string, f func() bool) {
	t.Helper()
	for until := time.Now().Add(d); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if f() {
			t.Fatalf("it came to pass: %s", what)
		}
	}
}
