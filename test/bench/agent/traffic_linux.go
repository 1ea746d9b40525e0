package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/tapir-cni/tapir/test/bench/node"
)

// A load is who sends what, as in bench-napi.
type load struct {
	name    string
	offload int  // what the guest leaves to its device
	streams int  // TCP connections at once
	down    bool // the node sends
}

var loads = []load{
	{"bare", guest.OffloadNone, 1, false},
	{"checksum", guest.OffloadChecksum, 1, false},
	{"tso", guest.OffloadTSO, 1, false},
	{"bare-x2", guest.OffloadNone, 2, false},
	{"bare-down", guest.OffloadNone, 1, true},
}

// patience bounds how long a guest may take to reach the node.
const patience = 10 * time.Second

// A run is a guest at work: its VMM's pump, and its connections.
type run struct {
	outside *guest.Queue
	pump    *guest.Pump
	conns   []net.Conn // both ends
	bytes   atomic.Int64
}

// start opens the pod's TAP as a VMM does and lets the guest send, or receive.
func (s *sandbox) start(l load, napi bool) (r *run, err error) {
	open := guest.Open
	if napi {
		open = guest.OpenNAPI
	}
	r = &run{}
	if r.outside, err = open(s.pod, tapName, l.offload); err != nil {
		return nil, err
	}
	r.pump = guest.StartPump(s.inside, r.outside)
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if err = s.offload(r, l.offload); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp4", net.JoinHostPort(s.guest.Gateway.String(), "0"))
	if err != nil {
		return nil, fmt.Errorf("listen at the gateway's address: %w", err)
	}
	defer listener.Close()
	for range l.streams {
		if err = s.connect(r, listener, l.down); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// offload changes what the guest leaves to its device, while it sends.
func (s *sandbox) offload(r *run, mask int) error {
	return errors.Join(s.inside.SetOffload(mask), r.outside.SetOffload(mask))
}

func (s *sandbox) connect(r *run, listener net.Listener, down bool) error {
	var from net.Conn
	err := node.In(s.guest.Netns, func() (err error) {
		from, err = net.DialTimeout("tcp4", listener.Addr().String(), patience)
		return err
	})
	if err != nil {
		return fmt.Errorf("connect from the guest: %w", err)
	}
	r.conns = append(r.conns, from)
	to, err := listener.Accept()
	if err != nil {
		return fmt.Errorf("wait for the guest: %w", err)
	}
	r.conns = append(r.conns, to)
	if down {
		from, to = to, from
	}
	go func() {
		buf := make([]byte, 1<<18)
		for {
			if _, err := from.Write(buf); err != nil {
				return // it is closed at the end; that nothing arrives is told by who counts
			}
		}
	}()
	go func() { _, _ = io.CopyBuffer(counter{&r.bytes}, struct{ io.Reader }{to}, make([]byte, 1<<18)) }()
	return nil
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return len(b), nil
}

// rate is the throughput over a time from now on, in Gbit/s.
func (r *run) rate(over time.Duration) (float64, error) {
	from, began := r.bytes.Load(), time.Now()
	time.Sleep(over)
	got := r.bytes.Load() - from
	if got == 0 {
		return 0, fmt.Errorf("no byte reached the other end in %s", over)
	}
	return float64(got) * 8 / 1e9 / time.Since(began).Seconds(), nil
}

func (r *run) close() error {
	for _, c := range r.conns {
		_ = c.Close() // the peer may have been faster
	}
	var errs []error
	if r.pump != nil {
		errs = append(errs, r.pump.Stop())
	}
	return errors.Join(append(errs, r.outside.Close())...)
}
