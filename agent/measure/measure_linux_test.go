package measure_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/internal/counts"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"github.com/tapir-cni/tapir/xdp"
	"golang.org/x/sys/unix"
)

// What the guest writes and does not read is counted where it should be.
func TestASampleCountsFrames(t *testing.T) {
	requireNode(t)
	quiet(t)
	p, other := add(t, `"txQueueLen": 8,`), add(t, "")
	n := start(t, measure.Config{})
	q := p.open(1)
	const guest, size, dropped = 100, 200, 5
	header, err := unix.IoctlGetInt(q.FDs()[0], unix.TUNGETVNETHDRSZ)
	if err != nil {
		t.Fatal(err)
	}
	before := n.eventually(p, func(a *measure.Attachment) error {
		if a.TAP == nil || a.TAP.Queues != 1 || len(a.Queues) != 1 || a.NAPI.Threaded == nil || a.NAPI.FlushTimeout == nil || a.NAPI.DeferHardIRQs == nil {
			return fmt.Errorf("want a TAP with one queue and its settings, got %+v", a)
		}
		return nil
	})
	if one := before.Queues[0]; !one.NAPI || one.Ring != 8 || one.Attach != queueiter.Enabled || len(one.Holders) != 1 {
		t.Errorf("want one queue with NAPI and a ring of 8, got %+v", one)
	}
	frame := p.frame(header, size)
	for range guest {
		if _, err := unix.Write(q.FDs()[0], frame); err != nil {
			t.Fatal(err)
		}
	}
	// The host sends more than the ring takes, and nobody reads. The first of them may be ARP's: none, its entry is permanent.
	conn, err := net.Dial("udp", p.addr()+":9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 8 + dropped {
		_, _ = conn.Write([]byte("frame")) // the guest's answers are nobody's
	}
	after := n.eventually(p, func(a *measure.Attachment) error {
		if got := a.TAP.Stats.RxFrames - before.TAP.Stats.RxFrames; got != guest {
			return fmt.Errorf("want %d frames of the guest, got %d", guest, got)
		}
		if got := a.RingDrops() - before.RingDrops(); got != dropped {
			return fmt.Errorf("want %d frames dropped at the ring, got %d", dropped, got)
		}
		return nil
	})
	for reason, want := range map[xdp.Reason]uint64{xdp.ReasonToHost: guest, xdp.ReasonToGuest: 8 + dropped} {
		if got := after.Frames[reason].Frames - before.Frames[reason].Frames; got != want {
			t.Errorf("%s: want %d frames, got %d", reason, want, got)
		}
	}
	if merged, bytes := after.GRO(before); merged != 1 || bytes != size {
		t.Errorf("GRO: want nothing merged and %d bytes, got %.2f and %.1f", size, merged, bytes)
	}
	if after.Host == nil || after.Pod == nil || after.Host.Stats.TxFrames-before.Host.Stats.TxFrames < 8+dropped {
		t.Errorf("want the veth's counters, got %+v and %+v", after.Pod, after.Host)
	}
	idle := n.eventually(other, func(*measure.Attachment) error { return nil })
	if idle.TAP.Queues != 0 || len(idle.Queues) != 0 || idle.Frames[xdp.ReasonToHost].Frames != 0 {
		t.Errorf("want nothing of the other attachment, got %+v", idle)
	}
}

// What the shortcut's programs see is told beside what the default path does: every frame of the guest is counted by XDP first.
func TestASampleCountsTheShortcut(t *testing.T) {
	requireNode(t)
	quiet(t)
	p := add(t, `"xdp": {"mode": "auto"},`)
	n := start(t, measure.Config{})
	q := p.open(1)
	header, err := unix.IoctlGetInt(q.FDs()[0], unix.TUNGETVNETHDRSZ)
	if err != nil {
		t.Fatal(err)
	}
	const guest = 30
	frame := p.frame(header, 100)
	for range guest {
		if _, err := unix.Write(q.FDs()[0], frame); err != nil {
			t.Fatal(err)
		}
	}
	n.eventually(p, func(a *measure.Attachment) error {
		seen := uint64(0)
		for r, c := range a.Shortcut {
			if strings.HasPrefix(r.String(), "xdp_") && !r.Beside() {
				seen += c.Frames
			}
		}
		if seen != guest || a.Frames[xdp.ReasonToHost].Frames != guest {
			return fmt.Errorf("want %d frames seen by XDP and passed on, got %d of %v and %v", guest, seen, a.Shortcut, a.Frames)
		}
		return nil
	})
}

func TestASampleReadsSettingsAsTheyAre(t *testing.T) {
	requireNode(t)
	p := add(t, `"queues": 2,`)
	n := start(t, measure.Config{})
	p.open(2)
	a := n.eventually(p, func(a *measure.Attachment) error {
		if a.TAP == nil || a.TAP.Queues != 2 || len(a.Queues) != 2 {
			return fmt.Errorf("want two queues, got %+v", a)
		}
		return nil
	})
	d := n.sampler.Device(a.ID)
	if d == nil {
		t.Fatal("want the TAP's sysfs, got none")
	}
	for file, value := range map[string]string{"threaded": "1", "gro_flush_timeout": "20000", "napi_defer_hard_irqs": "1", "queues/rx-1/rps_cpus": "1"} {
		if err := d.Write(file, value); err != nil {
			t.Fatal(err)
		}
	}
	n.eventually(p, func(a *measure.Attachment) error {
		if *a.NAPI.Threaded != 1 || *a.NAPI.FlushTimeout != 20000 || *a.NAPI.DeferHardIRQs != 1 {
			return fmt.Errorf("settings: %d, %d, %d", *a.NAPI.Threaded, *a.NAPI.FlushTimeout, *a.NAPI.DeferHardIRQs)
		}
		return nil
	})
	if err := d.Write("gro_flush_timeout", "soon"); !errors.Is(err, unix.EINVAL) {
		t.Errorf("want the kernel's EINVAL, got %v", err)
	}
}

// Callers share a sample while it is taken and until it is old.
func TestSamplesAreShared(t *testing.T) {
	requireNode(t)
	add(t, "")
	n := start(t, measure.Config{MaxAge: time.Hour})
	var mu sync.Mutex
	var all []*measure.Sample
	var callers sync.WaitGroup
	for range 50 {
		callers.Go(func() {
			s, err := n.sampler.Sample(context.Background())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, s)
		})
	}
	callers.Wait()
	if first := all[0]; slices.ContainsFunc(all, func(s *measure.Sample) bool { return s != first }) {
		t.Error("want one sample for all, got several")
	}
	n.stop()
	if _, err := n.sampler.Sample(context.Background()); !errors.Is(err, measure.ErrNotRunning) {
		t.Errorf("want %v, got %v", measure.ErrNotRunning, err)
	}
	fresh := start(t, measure.Config{MaxAge: time.Nanosecond})
	if first, second := fresh.sample(), fresh.sample(); first == second {
		t.Error("want two samples where none may be old, got one")
	}
}

func TestASampleKnowsRangesAndCalls(t *testing.T) {
	requireNode(t)
	add(t, "")
	add(t, "")
	if err := counts.Add(state.DefaultDir, "ADD", 0, 70*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	n := start(t, measure.Config{})
	s := n.sample()
	want := measure.Range{Dir: state.DefaultDir, Range: "10.9.0.1-10.9.0.254", Size: 254, Leased: 2}
	if len(s.IPAM) != 1 || s.IPAM[0] != want {
		t.Errorf("ranges: want %+v, got %+v", want, s.IPAM)
	}
	i := slices.IndexFunc(s.Calls, func(c measure.Calls) bool { return c.Verb == "ADD" && c.Code == 0 })
	if i < 0 || s.Calls[i].Sum < 70*time.Millisecond || len(s.Problems) != 0 {
		t.Errorf("want the call that was counted and no problems, got %+v and %q", s.Calls, s.Problems)
	}
}

func (p *pod) addr() (addr string) {
	p.t.Helper()
	err := state.New(state.Config{}).View(context.Background(), func(tx *state.Tx) error {
		a, _, err := tx.Attachment(state.Key{Network: "pods", ContainerID: p.id, IfName: "eth0"})
		if err == nil {
			addr = a.Addresses[0].Prefix.Addr().String()
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return addr
}
