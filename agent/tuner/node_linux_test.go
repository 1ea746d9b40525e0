package tuner

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/journal"
	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/output"
	"github.com/tapir-cni/tapir/internal/sysfs"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"github.com/tapir-cni/tapir/test/bench/guest"
	"golang.org/x/sys/unix"
)

// patience is how long what is bound to happen may take on a busy machine.
const patience = 30 * time.Second

// The node is the netns that the tests run in: tapir's ADD makes attachments in it.
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

// A pod is an attachment that ADD made.
type pod struct {
	t         testing.TB
	id, netns string
	keys      string
	dev       *sysfs.Device
}

var serial atomic.Int64

const mtu = 1400

func add(t testing.TB, keys string) *pod {
	t.Helper()
	p := &pod{t: t, id: fmt.Sprintf("pod%d", serial.Add(1)), netns: testnode.NewNetns(t), keys: keys}
	p.cni("ADD")
	t.Cleanup(func() { p.cni("DEL") })
	var err error
	if p.dev, err = sysfs.Open(p.netns, "tap-eth0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.dev.Close() }) // the device may be gone
	return p
}

func (p *pod) cni(verb string) {
	p.t.Helper()
	cmd := exec.Command(filepath.Join(os.Getenv(testnode.BinDirEnv), "tapir"))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=eth0", "CNI_PATH=/nonexistent"}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "tapir", "mtu": %d, %s
		"ipam": {"type": "tapir-ipam", "reuseDelay": "0s", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}`, mtu, p.keys))
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	if out, err := cmd.Output(); err != nil {
		p.t.Errorf("%s of %s: %v: %s%s", verb, p.id, err, out, errOut.Bytes())
	}
}

func (p *pod) watchID() watch.ID {
	return watch.ID{Dir: state.DefaultDir, Key: state.Key{Network: "pods", ContainerID: p.id, IfName: "eth0"}}
}

// record edits the attachment's record, as a plugin would have written it.
func (p *pod) record(edit func(*state.Attachment)) {
	p.t.Helper()
	err := state.New(state.Config{}).Update(context.Background(), func(tx *state.Tx) error {
		a, _, err := tx.Attachment(p.watchID().Key)
		if err != nil {
			return err
		}
		edit(&a)
		return tx.Put(a)
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// vmm is an open TAP, as a VMM has it.
func (p *pod) vmm(queues int, napi bool) *tap.Queues {
	p.t.Helper()
	q, err := tap.OpenQueues(tap.QueueOptions{Netns: p.netns, Name: "tap-eth0", Count: queues, NAPI: napi, VnetHdrSize: guest.HeaderSize})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = q.Close() }) // a test may have closed it
	return q
}

// settings are what the kernel has, and the policy of each thread.
func (p *pod) settings(files ...string) map[string]string {
	p.t.Helper()
	got := map[string]string{}
	for _, f := range append([]string{threadedFile, timeoutFile, deferFile, ringFile}, files...) {
		v, err := p.dev.Read(f)
		if err != nil {
			p.t.Fatal(err)
		}
		got[f] = v
	}
	all, err := queueiter.Read()
	if err != nil {
		p.t.Fatal(err)
	}
	var policies []string
	for _, q := range all {
		if slices.ContainsFunc(q.Holders, func(h queueiter.Holder) bool { return h.PID == os.Getpid() }) && q.Thread != 0 && q.Device.Index == p.index() {
			policies = append(policies, policy(q.Thread))
		}
	}
	got[policyOf] = strings.Join(policies, " ")
	return got
}

func (p *pod) index() int {
	p.t.Helper()
	n, err := p.dev.Number("ifindex")
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// The settings of the rules, and of a TAP that nobody tuned.
var (
	plain = map[string]string{threadedFile: "0", timeoutFile: "0", deferFile: "0", ringFile: "1000", policyOf: ""}
	full  = map[string]string{threadedFile: "1", timeoutFile: "50000", deferFile: "1", ringFile: "1000", policyOf: policyBatch}
)

// want waits until the kernel has the settings, and gives how long that took.
func (p *pod) want(want map[string]string) time.Duration {
	p.t.Helper()
	began := time.Now()
	files := slices.Collect(maps.Keys(want))
	testnode.Eventually(p.t, patience, func() error {
		files = slices.DeleteFunc(files, func(f string) bool { return f == policyOf })
		got := p.settings(files...)
		if !maps.Equal(got, want) {
			return fmt.Errorf("want %v, got %v", want, got)
		}
		return nil
	})
	return time.Since(began)
}

// node is a tuner that runs, with what it stands on.
type node struct {
	t testing.TB
	*Tuner
	journal *journal.Journal
	log     *output.Buffer
	stop    func()
}

func start(t testing.TB, o Options) *node {
	t.Helper()
	n := &node{t: t, log: &output.Buffer{}, journal: journal.New(state.DefaultDir)}
	if err := os.MkdirAll(state.DefaultDir, 0o711); err != nil {
		t.Fatal(err)
	}
	if aside, err := n.journal.Open(); err != nil || aside != "" {
		t.Fatal(aside, err)
	}
	w := watch.New(watch.Config{})
	m := measure.New(measure.Config{Watch: w})
	n.Tuner = New(Config{Watch: w, Measure: m, Journal: n.journal, Options: o, Logger: slog.New(slog.NewTextHandler(n.log, nil))})
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	for _, run := range []func(context.Context) error{w.Run, m.Run, n.Run} {
		parts.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	n.stop = sync.OnceFunc(func() { cancel(); parts.Wait() })
	t.Cleanup(func() {
		n.stop()
		if t.Failed() {
			t.Log(n.log.String())
			for id, tp := range n.taps {
				a, _ := n.c.Watch.Attachment(id)
				t.Logf("the watcher has %+v, the last look %d queues", a.TAP, tp.queues)
				t.Logf("%s: %+v, sent %+v, %d looks", id, tp.state(), tp.traffic, n.looks)
			}
		}
	})
	select {
	case <-w.Ready():
	case <-time.After(patience):
		t.Fatal("the watcher is not ready")
	}
	return n
}

// decided waits for a decision.
func (n *node) decided(p *pod, kind Kind, to string) Decision {
	n.t.Helper()
	var found Decision
	testnode.Eventually(n.t, patience, func() error {
		for _, d := range n.Decisions() {
			if d.Attachment == p.watchID() && d.Kind == kind && (to == "" || d.To == to) {
				found = d
				return nil
			}
		}
		return fmt.Errorf("no decision %s for %q among %+v", kind, to, n.Decisions())
	})
	return found
}

// The frames of a guest: of the MTU's size, and one that its driver left whole.
type shape string

const (
	fullFrames shape = "full"
	gsoFrames  shape = "gso"
	tiny       shape = "small"
)

func (p *pod) frame(s shape) []byte {
	p.t.Helper()
	var a state.Attachment
	err := state.New(state.Config{}).View(context.Background(), func(tx *state.Tx) (err error) {
		a, _, err = tx.Attachment(p.watchID().Key)
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	mac, err := net.ParseMAC(a.GuestMAC)
	if err != nil {
		p.t.Fatal(err)
	}
	size := map[shape]int{fullFrames: mtu + 14, gsoFrames: 60000, tiny: 64}[s]
	f := guest.UDP{ToMAC: net.HardwareAddr{0x02, 0x74, 0x61, 0x70, 0x69, 0x72}, FromMAC: mac, Size: size,
		From: netip.AddrPortFrom(a.Addresses[0].Prefix.Addr(), 4000), To: netip.MustParseAddrPort("10.9.0.1:9")}.Frame()
	if s == gsoFrames { // UDP segmentation: VIRTIO_NET_HDR_GSO_UDP_L4 with a partial checksum
		f[0], f[1] = 1, 5
		binary.NativeEndian.PutUint16(f[2:], 42)
		binary.NativeEndian.PutUint16(f[4:], 1200)
		binary.NativeEndian.PutUint16(f[6:], 34)
		binary.NativeEndian.PutUint16(f[8:], 6)
	}
	return f
}

// traffic writes frames of a shape, some thousand a second, until the shape is set to another or it is stopped. Every errno is counted.
type traffic struct {
	shape  atomic.Value
	stop   func()
	errnos sync.Map
	sent   atomic.Int64
}

func (p *pod) send(q *tap.Queues, s shape) *traffic {
	p.t.Helper()
	tr := &traffic{}
	tr.shape.Store(s)
	frames := map[shape][]byte{}
	for _, one := range []shape{fullFrames, gsoFrames, tiny} {
		frames[one] = p.frame(one)
	}
	var done atomic.Bool
	var ended sync.WaitGroup
	ended.Go(func() {
		for !done.Load() {
			f := frames[tr.shape.Load().(shape)]
			for range 40 {
				if _, err := unix.Write(q.FDs()[0], f); err != nil {
					tr.errnos.Store(err, true)
				} else {
					tr.sent.Add(1)
				}
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	tr.stop = sync.OnceFunc(func() { done.Store(true); ended.Wait() })
	p.t.Cleanup(tr.stop)
	return tr
}

// fine fails the test where a write failed, or nothing was written.
func (tr *traffic) fine(t testing.TB) {
	t.Helper()
	tr.errnos.Range(func(errno, _ any) bool {
		t.Errorf("a write of the VMM's failed: %v", errno)
		return true
	})
	if tr.sent.Load() == 0 {
		t.Error("nothing was written")
	}
}

// with is the settings with some others.
func with(m map[string]string, pairs ...string) map[string]string {
	m = maps.Clone(m)
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

func (p *pod) write(file, value string) {
	p.t.Helper()
	if err := p.dev.Write(file, value); err != nil {
		p.t.Fatal(err)
	}
}

var errNotYet = errors.New("not yet")
