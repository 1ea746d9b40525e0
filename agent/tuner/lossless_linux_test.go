package tuner

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/test/bench/guest"
	"golang.org/x/sys/unix"
)

// Two profiles that differ in everything; neither grows the ring, since a resize may cost frames (KERNEL-FACTS K24).
const (
	threadsConfig = `{"profile": "one", "profiles": {"one": {"rps": "0-1", "xps": "1", "ring": {"max": 1},
		"rules": [{"name": "all", "threaded": true, "batch": true, "groFlushTimeout": "50us", "deferHardIRQs": 1}]}}}`
	timelyConfig = `{"profile": "two", "profiles": {"two": {"rps": "1", "xps": "off", "ring": {"max": 1},
		"rules": [{"name": "all", "groFlushTimeout": "20us", "deferHardIRQs": 2}]}}}`
)

var (
	threadsWant = with(full, policyOf, policyBatch+" "+policyBatch, "queues/rx-0/rps_cpus", "3", "queues/rx-1/rps_cpus", "3",
		"queues/tx-0/xps_cpus", "2", "queues/tx-1/xps_cpus", "2")
	timelyWant = with(plain, timeoutFile, "20000", deferFile, "2", "queues/rx-0/rps_cpus", "2", "queues/rx-1/rps_cpus", "2",
		"queues/tx-0/xps_cpus", "0", "queues/tx-1/xps_cpus", "0")
)

// VMMs and tapird restart and profiles change, a hundred times in all, under traffic both ways: each frame is received or counted as dropped,
// no call of the VMM fails, and the settings are right after each.
func TestNoFrameIsLostUncounted(t *testing.T) {
	requireNode(t)
	p := add(t, `"queues": 2,`)
	b := newBalance(t, p)
	file := filepath.Join(t.TempDir(), "tapird.json")
	configs := []struct {
		text string
		want map[string]string
	}{{threadsConfig, threadsWant}, {timelyConfig, timelyWant}}
	write := func(i int) {
		if err := os.WriteFile(file, []byte(configs[i%2].text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rounds := 100
	if testing.Short() {
		rounds = 12
	}
	now := 0
	write(now)
	d := startDaemon(t, "--config", file)
	b.attach()
	b.resume()
	p.want(configs[now].want)
	took := map[string]time.Duration{}
	for i := range rounds {
		began := time.Now()
		what := ""
		switch i % 3 {
		case 0:
			what = "a VMM's restart"
			b.detach()
			b.sendDown.Store(true) // what is sent to a TAP without a VMM is dropped, and counted
			time.Sleep(5 * time.Millisecond)
			b.mu.Lock()
			b.attach()
			b.mu.Unlock()
			b.resume()
		case 1:
			what = "tapird's restart"
			d.end([]unix.Signal{unix.SIGTERM, unix.SIGKILL}[i/3%2])
			now = 1 - now // so that what is right is the new one's work
			write(now)
			d = startDaemon(t, "--config", file)
		case 2:
			what = "a reconfiguration"
			now = 1 - now
			write(now)
			if err := d.cmd.Process.Signal(unix.SIGHUP); err != nil {
				t.Fatal(err)
			}
		}
		p.want(configs[now].want)
		took[what] += time.Since(began)
	}
	b.pause()
	b.errnos.Range(func(said, _ any) bool { t.Error(said); return true })
	if b.dropped("tap-eth0 tx") == 0 {
		t.Error("want drops of a TAP without a VMM, got none")
	}
	// Each way by itself: nothing from the guest is lost, and to it no more than met a TAP without a VMM.
	if up, down := b.up.sent.Load()-b.up.received.Load(), b.down.sent.Load()-b.down.received.Load(); up != 0 || down != b.dropped("tap-eth0 tx") {
		t.Errorf("want all frames from the guest, and to it all but %d, got %d and %d less", b.dropped("tap-eth0 tx"), up, down)
	}
	t.Logf("%d frames from the guest, %d to it, of which %d met a TAP without a VMM; %v", b.up.sent.Load(), b.down.sent.Load(), b.dropped("tap-eth0 tx"), took)
}

// What the test above rests on: drops that are counted balance, and frames that nobody counts are missed.
func TestFramesAreMissedWhereNobodyCountsThem(t *testing.T) {
	requireNode(t)
	p := add(t, `"queues": 2, "txQueueLen": 50,`)
	b := newBalance(t, p)
	b.attach()
	b.resume()
	time.Sleep(50 * time.Millisecond)
	b.pause()
	if b.up.received.Load() == 0 || b.down.received.Load() == 0 {
		t.Fatalf("want frames both ways, got %d and %d", b.up.received.Load(), b.down.received.Load())
	}

	// A guest that does not read: the ring is full, and the TAP counts.
	b.stopReading()
	for range 200 {
		b.writeDown()
	}
	// A ring frees the slots of frames that were read some at a time, so it may hold less than its length.
	inRing := 200 - b.dropped("tap-eth0 tx")
	if inRing < 1 || inRing > 50 {
		t.Errorf("want 1 to 50 frames in the ring of the one queue that a flow goes to, got %d", inRing)
	}
	b.settled(inRing)

	// A closed queue takes its ring along, which nobody counts.
	if err := b.q.Close(); err != nil {
		t.Fatal(err)
	}
	b.attach()
	b.settled(inRing)

	// A guest that lies about itself: the programs count.
	f := p.frame(tiny)
	f[guest.HeaderSize+11]++ // the last byte of its MAC
	for range 7 {
		if _, err := unix.Write(b.q.FDs()[0], f); err != nil {
			t.Fatal(err)
		}
		b.up.sent.Add(1)
	}
	b.settled(inRing)
	if got := b.dropped("reason spoof_mac"); got != 7 {
		t.Errorf("want 7 drops for the MAC, got %d", got)
	}
}
