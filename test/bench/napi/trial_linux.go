package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"github.com/tapir-cni/tapir/test/bench/node"
	"golang.org/x/sys/unix"
)

// setOffload sets what a queue's reader takes: the features of the device that the kernel behind it sees.
func setOffload(q *tap.Queues, mask int) error {
	if err := unix.IoctlSetInt(q.FDs()[0], unix.TUNSETOFFLOAD, mask); err != nil {
		return fmt.Errorf("set offload mask %#x: %w", mask, err)
	}
	return nil
}

// prepare asks the kernel whether the pump's queue of the pod's TAP runs as the setting says, and finds the thread that polls it.
func (r *trial) prepare(s tap.Setting) error {
	q, err := r.queue()
	if err != nil {
		return err
	}
	if q.NAPI != s.NAPI {
		return fmt.Errorf("NAPI of the pump's queue: want %t, got %t", s.NAPI, q.NAPI)
	}
	if !s.NAPI || !s.Threaded {
		return nil
	}
	if r.polls, err = pollThreads(r.b.tap); err != nil {
		return err
	}
	if len(r.polls) != 1 {
		return fmt.Errorf("NAPI threads of tap %q: want 1, got %d", r.b.tap, len(r.polls))
	}
	return s.ApplyThread(r.polls[0])
}

// queue finds the pump's queue of the pod's TAP.
func (r *trial) queue() (queueiter.Queue, error) {
	queues, err := r.b.iterator.Read()
	if err != nil {
		return queueiter.Queue{}, err
	}
	for _, q := range queues {
		for _, h := range q.Holders {
			if h.PID == r.pump.pid() && q.Device.Name == r.b.tap {
				return q, nil
			}
		}
	}
	return queueiter.Queue{}, fmt.Errorf("the pump holds no queue of tap %q", r.b.tap)
}

// separate keeps the pump on CPU 0 and the NAPI thread on CPU 1.
func (r *trial) separate() error {
	tids, err := threads(r.pump.pid())
	if err != nil {
		return err
	}
	for _, tid := range tids {
		if err := pin(tid, 0); err != nil {
			return err
		}
	}
	for _, tid := range r.polls {
		if err := pin(tid, 1); err != nil {
			return err
		}
	}
	return nil
}

// close ends the streams, then the pump.
func (r *trial) close() error {
	var errs []error
	for _, s := range r.streams {
		errs = append(errs, s.close())
	}
	return errors.Join(append(errs, r.pump.close())...)
}

// look is the state at one moment; two of them make a measurement.
func (r *trial) look() (m measurement, err error) {
	if m.received, err = readCounters(r.b.hostEnd); err != nil {
		return m, err
	}
	if err = node.In(r.b.pod, func() error { m.written, err = readCounters(r.b.tap); return err }); err != nil {
		return m, err
	}
	var guest counters
	if err = node.In(r.b.guest, func() error { guest, err = readCounters(guestTAP); return err }); err != nil {
		return m, err
	}
	m.guestDropped = guest.dropped
	if m.pump, err = processRuntime(r.pump.pid()); err != nil {
		return m, err
	}
	var spent time.Duration
	for _, tid := range r.polls {
		if spent, err = taskRuntime(tid, tid); err != nil {
			return m, err
		}
		m.poll += spent
	}
	for _, s := range r.streams {
		if spent, err = taskRuntime(os.Getpid(), s.receiver); err != nil {
			return m, err
		}
		m.receiver += spent
		m.bytes += s.bytes.Load()
		m.reads += s.reads.Load()
	}
	m.machine, err = machineBusy()
	m.took = time.Duration(time.Now().UnixNano())
	return m, err
}

func (m measurement) minus(before measurement) measurement {
	return measurement{
		took: m.took - before.took, bytes: m.bytes - before.bytes, reads: m.reads - before.reads,
		machine: m.machine - before.machine, receiver: m.receiver - before.receiver, pump: m.pump - before.pump, poll: m.poll - before.poll,
		written: m.written.minus(before.written), received: m.received.minus(before.received),
		guestDropped: m.guestDropped - before.guestDropped,
	}
}
