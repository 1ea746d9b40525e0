package watch_test

import (
	"bytes"
	"context"
	"errors"
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

	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/output"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/vishvananda/netlink"
)

// patience is how long what is bound to happen may take on a busy machine.
const patience = 30 * time.Second

// The node is the netns that the tests run in: tapir's ADD makes attachments in it.
func requireNode(t testing.TB) {
	t.Helper()
	testnode.Require(t, "root", "tun", "bpf")
	t.Cleanup(func() {
		for _, dir := range []string{state.DefaultDir, "/sys/fs/bpf/tapir"} {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
	})
}

// A pod is an attachment whose TAP is "tap-eth0".
type pod struct {
	t         testing.TB
	id, netns string
	keys      string
	gone      bool
}

var serial atomic.Int64

// newPod makes a sandbox; keys go into the configuration.
func newPod(t testing.TB, keys string) *pod {
	t.Helper()
	return &pod{t: t, id: fmt.Sprintf("pod%d", serial.Add(1)), netns: testnode.NewNetns(t), keys: keys}
}

// add runs ADD. What it made is gone when the test ends.
func add(t testing.TB, keys string) *pod {
	t.Helper()
	p := newPod(t, keys)
	if err := p.cni("ADD"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !p.gone {
			p.del()
		}
	})
	return p
}

func (p *pod) del() {
	p.t.Helper()
	p.gone = true
	if err := p.cni("DEL"); err != nil {
		p.t.Error(err)
	}
}

func (p *pod) cni(verb string) error {
	cmd := exec.Command(filepath.Join(os.Getenv(testnode.BinDirEnv), "tapir"))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=eth0", "CNI_PATH=/nonexistent"}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "tapir", "mtu": 1400, %s
		"ipam": {"type": "tapir-ipam", "reuseDelay": "0s", "ranges": [[{"subnet": "10.9.0.0/16"}]]}}`, p.keys))
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	if out, err := cmd.Output(); err != nil {
		return fmt.Errorf("%s of %s: %w: %s%s", verb, p.id, err, out, errOut.Bytes())
	}
	return nil
}

func (p *pod) key() state.Key { return state.Key{Network: "pods", ContainerID: p.id, IfName: "eth0"} }

func (p *pod) watchID() watch.ID { return watch.ID{Dir: state.DefaultDir, Key: p.key()} }

// open opens queues of the TAP as a VMM does.
func (p *pod) open(queues int) *tap.Queues {
	p.t.Helper()
	q, err := tap.OpenQueues(tap.QueueOptions{Netns: p.netns, Name: "tap-eth0", Count: queues, NAPI: true})
	if err != nil {
		p.t.Fatal(err)
	}
	return q
}

func closeQueues(t testing.TB, q *tap.Queues) {
	t.Helper()
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// in runs f on a handle of the pod's netns.
func (p *pod) in(f func(tap netlink.Link)) {
	p.t.Helper()
	testnode.In(p.t, p.netns, func() {
		l, err := netlink.LinkByName("tap-eth0")
		if err != nil {
			p.t.Fatal(err)
		}
		f(l)
	})
}

// A watcher that runs, with what it told.
type watched struct {
	*watch.Watcher
	t    testing.TB
	stop func()
	log  *output.Buffer

	mu     sync.Mutex
	events []watch.Event
}

func start(t testing.TB, c watch.Config) *watched {
	t.Helper()
	w := &watched{t: t, log: &output.Buffer{}}
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(w.log, nil))
	}
	w.Watcher = watch.New(c)
	w.Subscribe(w.note)
	w.stop = run(t, w.Watcher)
	select {
	case <-w.Ready():
	case <-time.After(patience):
		t.Fatal("the watcher is not ready")
	}
	return w
}

// run runs it until stop is called, or the test ends.
func run(t testing.TB, w *watch.Watcher) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(patience):
			t.Error("run does not end")
		}
	})
	t.Cleanup(stop)
	return stop
}

func (w *watched) note(e watch.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

// of is what was told of a pod since the mark that an earlier call gave.
func (w *watched) of(p *pod, from int) (list []watch.Event, mark int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events[from:] {
		if e.After.ID == p.watchID() {
			list = append(list, e)
		}
	}
	return list, len(w.events)
}

// mark is the place of the next event.
func (w *watched) mark() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.events)
}

// kinds is what was told, as words: the queues of the TAP with those that are about queues, the device with LinkChanged.
func kinds(list []watch.Event) (words []string) {
	for _, e := range list {
		switch e.Kind {
		case watch.QueueAttached, watch.QueueDetached:
			words = append(words, fmt.Sprintf("%s %d", e.Kind, e.After.Attached()))
		case watch.LinkChanged:
			words = append(words, fmt.Sprintf("%s %s", e.Device, e.Kind))
		default:
			words = append(words, e.Kind.String())
		}
	}
	return words
}

// wantPicture waits until the picture of a pod is as f wants it.
func (w *watched) wantPicture(p *pod, f func(*watch.Attachment) error) {
	w.t.Helper()
	testnode.Eventually(w.t, patience, func() error {
		a, ok := w.Attachment(p.watchID())
		if !ok {
			return errors.New("it is not in the picture")
		}
		return f(a)
	})
}

func ready(a *watch.Attachment) error {
	if !a.Ready() || a.TAP == nil || a.Pod == nil || a.Host == nil {
		return fmt.Errorf("want it ready with all devices, got %+v", a)
	}
	return nil
}

func attached(n int) func(*watch.Attachment) error {
	return func(a *watch.Attachment) error {
		if a.Attached() != n || a.TAP == nil {
			return fmt.Errorf("want %d queues, got %d of %+v (%v)", n, a.Attached(), a.TAP, a.Why)
		}
		return nil
	}
}

func createTAP(t *testing.T, a state.Attachment) {
	t.Helper()
	if err := tap.Create(tap.Spec{Name: a.TAP.Name, Index: a.TAP.Index, Queues: a.Queues}); err != nil {
		t.Fatal(err)
	}
}
