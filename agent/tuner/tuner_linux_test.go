package tuner

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"golang.org/x/sys/unix"
)

// What the guest sends decides, within seconds (five are the goal of bench-agent, on a quiet machine); and the switch gives back what was there.
func TestSettingsFollowTheTraffic(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	n := start(t, Options{})
	q := p.vmm(1, true)
	tr := p.send(q, fullFrames)
	for i, s := range []shape{fullFrames, gsoFrames, fullFrames, tiny} {
		tr.shape.Store(s)
		want := plain
		if s == fullFrames {
			want = full
		}
		took := p.want(want)
		n.decided(p, KindRule, string(s))
		if t.Logf("%s: after %s", s, took); took > 10*time.Second && i > 0 {
			t.Errorf("%s: want it within 10s, got %s", s, took)
		}
	}
	tr.shape.Store(fullFrames)
	p.want(full)
	if s, ok := n.State(p.watchID()); !ok || s.Rule != "full" || s.Profile != DefaultProfile || s.NoNAPI {
		t.Errorf("want rule full, got %+v, %t", s, ok)
	}
	n.Reload(Options{Mode: Off})
	p.want(plain)
	if got := n.journal.Changes(Part); len(got) != 0 {
		t.Errorf("want an empty journal, got %+v", got)
	}
	time.Sleep(2500 * time.Millisecond)
	if p.want(plain); len(n.Decisions()) > 20 {
		t.Errorf("want few decisions, got %d", len(n.Decisions()))
	}
	tr.stop()
	tr.fine(t)
	for _, word := range []string{"kind=rule", "to=full", "gro_flush_timeout 0 → 50000", "threads/policy SCHED_OTHER → SCHED_BATCH", "kind=giveBack"} {
		if !strings.Contains(n.log.String(), word) {
			t.Errorf("want %q in the log", word)
		}
	}
}

// Masks and policies belong to queues and threads that are new with each VMM.
func TestAVMMThatRestartsFindsEverythingSet(t *testing.T) {
	requireNode(t)
	p := add(t, `"queues": 2,`)
	n := start(t, Options{Profiles: Profiles{DefaultProfile: {RPS: "0-1", XPS: "1"}}})
	want := with(full, policyOf, policyBatch+" "+policyBatch, "queues/rx-0/rps_cpus", "3", "queues/rx-1/rps_cpus", "3", "queues/tx-0/xps_cpus", "2", "queues/tx-1/xps_cpus", "2")
	for round := range 4 {
		q := p.vmm(2, true)
		if round == 0 {
			took := p.want(with(plain, "queues/rx-0/rps_cpus", "3", "queues/rx-1/rps_cpus", "3"))
			t.Logf("settings after the first attach: %s", took)
			tr := p.send(q, fullFrames)
			n.decided(p, KindRule, "full")
			p.want(want)
			tr.stop()
			tr.fine(t)
		} else {
			t.Logf("settings after attach %d: %s", round, p.want(want))
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.dev.Read("queues/rx-1/rps_cpus"); !errors.Is(err, unix.ENOENT) { // the control: the kernel forgets it
			t.Errorf("want no second queue without a VMM, got %v", err)
		}
	}
	p.vmm(2, true)
	n.Reload(Options{Mode: Off})
	p.want(with(plain, "queues/rx-0/rps_cpus", "0", "queues/rx-1/rps_cpus", "0", "queues/tx-0/xps_cpus", "0", "queues/tx-1/xps_cpus", "0"))
}

// Another tapird goes on from what the first one made, without a change in between; one that is off gives back all.
func TestTheNextTunerGoesOn(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	p.write(ringFile, "700")
	n := start(t, Options{})
	q := p.vmm(1, true)
	tr := p.send(q, fullFrames)
	want := with(full, ringFile, "700")
	p.want(want)
	n.stop()
	next := start(t, Options{})
	testnode.Eventually(t, patience, func() error {
		if s, ok := next.State(p.watchID()); !ok || s.Rule != "full" {
			return errNotYet
		}
		return nil
	})
	time.Sleep(1500 * time.Millisecond)
	p.want(want)
	for _, d := range next.Decisions() {
		t.Errorf("want no decision, got %+v", d)
	}
	next.stop()
	start(t, Options{Mode: Off})
	p.want(with(plain, ringFile, "700"))
	tr.stop()
	tr.fine(t)
}

// A queue without NAPI cannot have threads. That is no fault.
func TestAQueueWithoutNAPIIsLeftAlone(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	n := start(t, Options{})
	tr := p.send(p.vmm(1, false), fullFrames)
	d := n.decided(p, KindRule, "full")
	if d.Result != Done || len(d.Settings) != 0 || !strings.Contains(d.Why, "no queue runs NAPI") {
		t.Errorf("want nothing set, got %+v", d)
	}
	p.want(plain)
	if s, _ := n.State(p.watchID()); !s.NoNAPI {
		t.Errorf("want it known, got %+v", s)
	}
	tr.stop()
	tr.fine(t)
}

func TestADryRunChangesNothing(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	n := start(t, Options{Mode: Look})
	tr := p.send(p.vmm(1, true), fullFrames)
	if d := n.decided(p, KindRule, "full"); d.Result != DryRun || len(d.Settings) != 3 {
		t.Errorf("want three settings that are not made, got %+v", d)
	}
	p.want(plain)
	if got := n.journal.Changes(""); len(got) != 0 {
		t.Errorf("want nothing recorded, got %+v", got)
	}
	tr.stop()
}

// A pod may have the profiles of the list and no others.
func TestAPodChoosesAmongWhatIsAllowed(t *testing.T) {
	requireNode(t)
	o := Options{PodProfiles: []string{"timely", OffProfile}, Profiles: Profiles{
		"timely": {Rules: []Rule{{Name: "all", GROFlushTimeout: Duration(20 * time.Microsecond), DeferHardIRQs: 1}}},
		"secret": {Rules: []Rule{{Name: "all", GROFlushTimeout: Duration(30 * time.Microsecond), DeferHardIRQs: 1}}},
	}}
	pods := map[string]*pod{"": nil, "timely": nil, "secret": nil, OffProfile: nil}
	for name := range pods {
		p := add(t, fmt.Sprintf(`"podAnnotations": ["profile"], "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"tapir.dev/profile": %q}},`, name))
		p.vmm(1, true)
		pods[name] = p
	}
	n := start(t, o)
	timely := with(plain, timeoutFile, "20000", deferFile, "1")
	pods["timely"].want(timely)
	pods["secret"].want(plain)
	if d := n.decided(pods["secret"], KindProfile, DefaultProfile); !strings.Contains(d.Why, "secret") {
		t.Errorf("want the reason, got %+v", d)
	}
	pods[""].want(plain)
	pods[OffProfile].want(plain)
	if _, ok := n.State(pods[OffProfile].watchID()); ok {
		t.Error("want a TAP that is left alone, got one that is tuned")
	}
	pods["timely"].record(func(a *state.Attachment) { a.Profile = OffProfile })
	pods["timely"].want(plain)
}

// A ring grows while bursts find no room, and is given back.
func TestTheRingGrowsOnDropsAndIsGivenBack(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	n := start(t, Options{Profiles: Profiles{DefaultProfile: {Ring: Ring{GiveBack: Duration(3 * time.Second)}}}})
	q := p.vmm(1, true)
	var a state.Attachment
	p.record(func(r *state.Attachment) { a = *r })
	conn, err := net.Dial("udp4", net.JoinHostPort(a.Addresses[0].Prefix.Addr().String(), "9"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var stop, quiet atomic.Bool
	var ended sync.WaitGroup
	ended.Go(func() {
		buf := make([]byte, 4096)
		for !stop.Load() {
			for range 3000 {
				if quiet.Load() {
					break
				}
				_, _ = conn.Write(buf[:64]) // what finds no room is told as ENOBUFS, or not at all
			}
			for { // a guest that wakes up now and then
				if _, err := unix.Read(q.FDs()[0], buf); err != nil {
					break
				}
			}
			time.Sleep(40 * time.Millisecond)
		}
	})
	defer ended.Wait()
	defer stop.Store(true)
	p.want(with(plain, ringFile, "2000"))
	p.want(with(plain, ringFile, "4000"))
	if s, _ := n.State(p.watchID()); s.Ring != 4000 || s.RingBefore != 1000 {
		t.Errorf("want 4000 of 1000 frames, got %+v", s)
	}
	quiet.Store(true)
	p.want(plain)
	if c := n.Counts(); len(c) == 0 {
		t.Error("want decisions counted")
	}
	for _, d := range n.Decisions() {
		if d.Result == Failed || d.Kind == KindRing && d.Why == "" {
			t.Errorf("got %+v", d)
		}
	}
	t.Logf("lost by resizes: %d frames", n.LostByResize())
}
