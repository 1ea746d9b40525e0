package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap"
)

func TestMain(m *testing.M) {
	// The pump is this program.
	if len(os.Args) > 1 && os.Args[1] == pumpCommand {
		exit(1, pumpMain())
		return
	}
	testnode.MainWithCommands(m, "tapir", "tapirctl")
}

// short is a round long enough for bytes to arrive.
const short = 200 * time.Millisecond

func openBench(t *testing.T) *bench {
	t.Helper()
	testnode.Require(t, "root", "bpf", "btf", "tun")
	o := options{bin: os.Getenv(testnode.BinDirEnv), duration: short}
	b, err := newBench(o, testnode.NewNetns(t), testnode.NewNetns(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
		if out, err := exec.Command(filepath.Join(o.bin, "tapirctl"), "cleanup", "--yes").CombinedOutput(); err != nil {
			t.Errorf("tapirctl cleanup: %v\n%s", err, out)
		}
	})
	return b
}

func TestRoundMovesTheGuestsBytesUnderEverySetting(t *testing.T) {
	b := openBench(t)
	batch := polling(true, true)[1]
	for _, r := range []*Row{
		newRow(load{guest: bare, streams: 1}, tap.Setting{}),
		newRow(load{guest: bare, streams: 1}, batch),
		newRow(load{guest: checksum, streams: 2}, polling(false, false)[2]),
		newRow(load{guest: tso, streams: 1}, polling(true, false)[0]),
		newRow(load{guest: tso, streams: 1, down: true}, tap.Setting{}), // after one with NAPI: nothing of it stays
	} {
		m, err := b.measure(r)
		if err != nil {
			t.Fatalf("%s, %s: %v", r.Load, r.Name, err)
		}
		if m.took < short || m.reads == 0 || m.receiver == 0 || m.pump == 0 || m.received.frames == 0 {
			t.Errorf("%s, %s: want time, reads, CPU of receiver and pump, and frames at the host end, got %+v", r.Load, r.Name, m)
		}
		if (m.poll > 0) != r.Setting.Threaded {
			t.Errorf("%s, %s: want CPU of a NAPI thread %t, got %s", r.Load, r.Name, r.Setting.Threaded, m.poll)
		}
		if whole := m.written.bytesPerFrame() > mtu+14; whole != (r.load.guest == tso && !r.load.down) {
			t.Errorf("%s, %s: frames of the guest above the MTU: got %.0f bytes", r.Load, r.Name, m.written.bytesPerFrame())
		}
		// GRO merges where a timeout holds segments back, and does not exist without NAPI.
		merged := m.received.bytesPerFrame() > 1.5*m.written.bytesPerFrame()
		if r.load.guest != tso && merged != (r.Setting.GROFlushTimeout > 0) {
			t.Errorf("%s, %s: merged %t: got %.0f bytes a frame from the guest and %.0f into the stack", r.Load, r.Name, merged,
				m.written.bytesPerFrame(), m.received.bytesPerFrame())
		}
	}
}

func TestQueueThatRunsOtherwiseIsNotMeasured(t *testing.T) {
	b := openBench(t)
	for _, napi := range []bool{true, false} {
		r := newRow(load{guest: bare, streams: 1}, tap.Setting{NAPI: napi})
		running, err := b.start(r)
		if err != nil {
			t.Fatal(err)
		}
		q, err := running.queue()
		if err != nil || q.NAPI != napi || q.Device.Index != b.tapIndex {
			t.Errorf("want queue of tap %d with NAPI %t, got %+v (%v)", b.tapIndex, napi, q, err)
		}
		if err := running.prepare(tap.Setting{NAPI: !napi}); err == nil {
			t.Errorf("a row that wants NAPI %t on a queue with NAPI %t: want an error", !napi, napi)
		}
		if err := running.close(); err != nil {
			t.Error(err)
		}
	}
}

func TestPumpThatEndsIsAnErrorOfTheRow(t *testing.T) {
	b := openBench(t)
	b.pump, b.patience = "false", short
	if _, err := b.measure(newRow(load{guest: bare, streams: 1}, tap.Setting{})); err == nil {
		t.Error("want an error, got none")
	}
}
