package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/tapir-cni/tapir/test/bench/node"
	"golang.org/x/sys/unix"
)

// threads is above the number of threads that a measurement keeps busy: none waits for Go's scheduler while a CPU is free.
const threads = 16

// patience bounds what must happen before a measurement can begin.
const patience = 10 * time.Second

// warmUp bounds a measurement of the round that is not counted.
const warmUp = 300 * time.Millisecond

// A test is measured on each pair.
type test struct {
	name, unit string
	measure    func(*pair, time.Duration) (float64, error)
}

var tests = []test{
	{"tcp-tso", "bit/s", func(p *pair, d time.Duration) (float64, error) { return p.bulk(guest.OffloadTSO, d) }},
	{"tcp", "bit/s", func(p *pair, d time.Duration) (float64, error) { return p.bulk(guest.OffloadNone, d) }},
	{"frames-64", "frames/s", (*pair).flood},
}

var networks = []network{
	{name: "default", subnet: "10.210.0.0/24"},
	{name: "default-clones", subnet: "10.211.0.0/24", clones: true},
	{name: "xdp", subnet: "10.212.0.0/24", xdp: true},
	{name: "xdp-clones", subnet: "10.213.0.0/24", xdp: true, clones: true},
}

// measureTraffic runs the rounds: in each, every test is made once on each pair, in random order.
func measureTraffic(o options, n *node.Node, report *Report) (err error) {
	runtime.GOMAXPROCS(threads)
	var pairs []*pair
	defer func() {
		for _, p := range pairs {
			err = errors.Join(err, p.close())
		}
	}()
	for _, net := range networks {
		p, err := open(o, n, net)
		if err != nil {
			return err
		}
		pairs = append(pairs, p)
	}
	order := rand.New(rand.NewPCG(1, 2)) // the same order in every run
	for round := range 1 + o.rounds {
		for _, i := range order.Perm(len(tests)) {
			for _, j := range order.Perm(len(pairs)) {
				d := o.duration
				if round == 0 {
					d = min(d, warmUp)
				}
				value, err := tests[i].measure(pairs[j], d)
				if err != nil {
					return fmt.Errorf("%s of %s: %w", tests[i].name, pairs[j].network.name, err)
				}
				if round > 0 {
					report.add(tests[i].name, pairs[j].network.name, tests[i].unit, value)
				}
			}
		}
	}
	return nil
}

// Ports of the small frames.
const (
	firstPort = 20000
	sinkPort  = 9999
)

// flood writes frames of 64 bytes on a wire as fast as the kernel takes them, and gives how many a second arrive.
func (p *pair) flood(d time.Duration) (float64, error) {
	frame := guest.UDP{
		ToMAC: gatewayMAC, FromMAC: p.sender().own.MAC, Size: guest.MinUDP,
		From: netip.AddrPortFrom(p.sender().own.Address.Addr(), firstPort), To: netip.AddrPortFrom(p.receiver().address.Addr(), sinkPort),
	}.Frame()
	from, to := p.sender().queue, p.receiver().queue
	if err := to.Drain(); err != nil {
		return 0, err
	}
	var arrived atomic.Uint64
	var stop atomic.Bool
	done := make(chan error, 1)
	go func() { done <- p.sink(&arrived, &stop) }()
	err := write(from, frame, d/4) // until pages and caches are warm
	before, begin := arrived.Load(), time.Now()
	err = errors.Join(err, write(from, frame, d))
	count, took := arrived.Load()-before, time.Since(begin)
	stop.Store(true)
	if err := errors.Join(err, <-done); err != nil {
		return 0, err
	}
	if count == 0 {
		return 0, errors.New("no frame arrived")
	}
	return float64(count) / took.Seconds(), nil
}

func write(q *guest.Queue, frame []byte, d time.Duration) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for end := time.Now().Add(d); time.Now().Before(end); {
		for range 256 {
			switch errno := q.Write(frame); errno {
			case 0, unix.EAGAIN, unix.EINTR, unix.ENOBUFS:
			default:
				return fmt.Errorf("write a frame: %w", errno)
			}
		}
	}
	return nil
}

// sink counts what arrives for the sink's port, and checks that the guest is spoken to by the address that it knows.
func (p *pair) sink(count *atomic.Uint64, stop *atomic.Bool) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const offDest = guest.HeaderSize + guest.EthernetSize + 16
	own := p.receiver().own.Address.Addr().As4()
	buf := make([]byte, guest.MaxFrame)
	for !stop.Load() {
		n, errno := p.receiver().queue.Read(buf)
		switch errno {
		case 0:
			if !guest.IsUDP(buf[:n], sinkPort) {
				continue
			}
			if got := [4]byte(buf[offDest:]); got != own {
				return fmt.Errorf("a frame arrived for %s, want %s", netip.AddrFrom4(got), netip.AddrFrom4(own))
			}
			count.Add(1)
		case unix.EINTR:
		case unix.EAGAIN:
			if _, err := p.receiver().queue.Wait(20 * time.Millisecond); err != nil {
				return err
			}
		default:
			return fmt.Errorf("read a frame: %w", errno)
		}
	}
	return nil
}
