package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/tap/queueiter"
)

// warmUp is how long the streams run before they are measured: TCP finds its window, the kernel its receive buffer.
const warmUp = 300 * time.Millisecond

// vnetHdrSize is what VMMs set: struct virtio_net_hdr_mrg_rxbuf.
const vnetHdrSize = 12

// A bench is the set-up that all rows share.
type bench struct {
	*sandbox
	guestQueue *tap.Queues // stays open: only the pod's TAP is opened anew for each row
	iterator   *queueiter.Iterator
	duration   time.Duration
	patience   time.Duration // for the guest to reach the node
	pump       string        // command in place of this program's own; empty: its own
}

func newBench(o options, pod, guest string) (b *bench, err error) {
	b = &bench{duration: o.duration, patience: connectTimeout, pump: o.pump}
	if b.sandbox, err = newSandbox(o.bin, pod, guest); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
			b = nil
		}
	}()
	if b.iterator, err = queueiter.Open(); err != nil {
		return nil, err
	}
	b.guestQueue, err = tap.OpenQueues(tap.QueueOptions{Netns: b.guest, Name: guestTAP, Count: 1, VnetHdrSize: vnetHdrSize})
	return b, err
}

func (b *bench) close() error {
	var errs []error
	if b.guestQueue != nil {
		errs = append(errs, b.guestQueue.Close())
	}
	if b.iterator != nil {
		errs = append(errs, b.iterator.Close())
	}
	return errors.Join(append(errs, b.sandbox.close())...)
}

// measurement is what one round of one row gave.
type measurement struct {
	took                          time.Duration
	bytes, reads                  int64
	machine, receiver, pump, poll time.Duration
	written, received             counters // at the TAP, and at the host end
	guestDropped                  uint64
}

// measure opens the pod's TAP as the row says, lets the guest send into the node and looks at both ends of the time.
func (b *bench) measure(r *Row) (m measurement, err error) {
	running, err := b.start(r)
	if err != nil {
		return measurement{}, err
	}
	defer func() { err = errors.Join(err, running.close()) }()
	time.Sleep(warmUp)
	before, err := running.look()
	if err != nil {
		return measurement{}, err
	}
	time.Sleep(b.duration)
	after, err := running.look()
	if err != nil {
		return measurement{}, err
	}
	m = after.minus(before)
	if m.bytes == 0 {
		return measurement{}, fmt.Errorf("no byte of the guest reached the node in %s", m.took)
	}
	return m, nil
}

// A trial is one row while it is measured.
type trial struct {
	b       *bench
	pump    *pump
	streams []*stream
	polls   []int // NAPI threads
}

func (b *bench) start(r *Row) (_ *trial, err error) {
	offload := r.load.guest.offload
	if err := setOffload(b.guestQueue, offload); err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	pod, err := tap.OpenQueues(tap.QueueOptions{
		Netns: b.pod, Name: b.tap, Index: b.tapIndex, Count: 1, NAPI: r.Setting.NAPI, Offload: &offload, VnetHdrSize: vnetHdrSize,
	})
	if err != nil {
		return nil, err
	}
	running := &trial{b: b}
	running.pump, err = startPump(b.pump, b.guestQueue.FDs()[0], pod.FDs()[0])
	if err = errors.Join(err, pod.Close()); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, running.close())
		}
	}()
	if err = r.Setting.Apply(b.pod, b.tap); err != nil {
		return nil, err
	}
	if err = running.prepare(r.Setting); err != nil {
		return nil, err
	}
	for range r.load.streams {
		var s *stream
		if s, err = startStream(b.guest, b.gateway, b.patience, r.load.down); err != nil {
			return nil, err
		}
		running.streams = append(running.streams, s)
	}
	if r.apart {
		err = running.separate()
	}
	return running, err
}

// traffic is what a look at the pod's TAP shows under the row's load.
func (b *bench) traffic(r *Row) (tap.Traffic, error) {
	m, err := b.measure(r)
	if err != nil {
		return tap.Traffic{}, err
	}
	return tap.Traffic{
		MTU: mtu, BytesPerFrame: m.written.bytesPerFrame(), FramesPerSecond: float64(m.written.frames) / m.took.Seconds(),
	}, nil
}
