package main

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tapir-cni/tapir/test/bench/guest"
	"golang.org/x/sys/unix"
)

// Ports of the frames. None is a tunnel's.
const (
	firstPort = 20000
	sinkPort  = 9999
	echoPort  = 7777
)

// patience bounds what must happen before a measurement can begin.
const patience = 10 * time.Second

// A shape is what the frames of one measurement look like.
type shape struct {
	size    int // bytes without the checksum of Ethernet
	flows   int
	partial bool
}

// frames builds one frame a flow, from the sender to the receiver's sinkPort.
func (p *pair) frames(s shape) [][]byte {
	from, to, hop := p.sender(), peer, gatewayMAC
	if len(p.pods) > 1 {
		to, hop = p.receiver().address.Addr(), p.nextHop(p.receiver())
	}
	frames := make([][]byte, s.flows)
	for i := range frames {
		frames[i] = guest.UDP{
			ToMAC: hop, FromMAC: from.mac,
			From: netip.AddrPortFrom(from.address.Addr(), uint16(firstPort+i)), To: netip.AddrPortFrom(to, sinkPort),
			Size: s.size, PartialChecksum: s.partial,
		}.Frame()
	}
	return frames
}

// flow is what a writer got done.
type flow struct {
	accepted uint64 // frames that the kernel took
	took     time.Duration
	cpu      time.Duration // of the writing thread, with what the kernel did in it
}

// batch is how many frames are written between two looks at the clock.
const batch = 256

// write writes the frames round and round for as long as it is told, on the calling thread.
func write(q *guest.Queue, frames [][]byte, d time.Duration) (flow, error) {
	var f flow
	next := 0
	begin, cpu := time.Now(), threadCPU()
	for f.took < d {
		for range batch {
			switch errno := q.Write(frames[next]); errno {
			case 0:
				f.accepted++
			case unix.EAGAIN, unix.EINTR, unix.ENOBUFS:
			default:
				return f, fmt.Errorf("write a frame: %w", errno)
			}
			if next++; next == len(frames) {
				next = 0
			}
		}
		f.took = time.Since(begin)
	}
	f.cpu = threadCPU() - cpu
	return f, nil
}

// A sink counts the frames for sinkPort that arrive at a queue.
type sink struct {
	spin  bool
	count atomic.Uint64
	stop  atomic.Bool
	done  chan error
}

func (p *pair) startSink() *sink {
	s, q := &sink{spin: p.spin, done: make(chan error, 1)}, p.receiver().queue
	go func() { s.done <- s.read(q) }()
	return s
}

// grace is how long frames may be under way when the last was written.
const grace = 50 * time.Millisecond

// end waits for what is under way and gives the count.
func (s *sink) end() (uint64, error) {
	time.Sleep(grace)
	s.stop.Store(true)
	err := <-s.done
	return s.count.Load(), err
}

func (s *sink) read(q *guest.Queue) error {
	defer pin(1)()
	buf := make([]byte, guest.MaxFrame)
	for !s.stop.Load() {
		n, errno := q.Read(buf)
		switch errno {
		case 0:
			if guest.IsUDP(buf[:n], sinkPort) {
				s.count.Add(1)
			}
		case unix.EINTR:
		case unix.EAGAIN:
			if s.spin {
				continue
			}
			if _, err := q.Wait(grace / 2); err != nil {
				return err
			}
		default:
			return fmt.Errorf("read a frame: %w", errno)
		}
	}
	return nil
}

// rate is in frames a second.
func (f flow) rate() float64 { return float64(f.accepted) / f.took.Seconds() }

// perFrame is the writer's CPU time for each frame, in nanoseconds.
func (f flow) perFrame() float64 { return float64(f.cpu.Nanoseconds()) / float64(f.accepted) }

// threadCPU is the CPU time that the calling thread has used; 0 where the kernel does not say.
func threadCPU() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// flood writes frames for the duration and counts what arrives. Frames that did not go the way of the variant are an error.
func (p *pair) flood(s shape, d time.Duration) (sent flow, arrived uint64, err error) {
	var counter *sink
	if len(p.pods) > 1 {
		if err := p.offload(s.partial); err != nil {
			return flow{}, 0, err
		}
		if err := p.warm(); err != nil {
			return flow{}, 0, err
		}
		counter = p.startSink()
	}
	sent, passed, err := p.watched(p.frames(s), d)
	if counter != nil {
		var ended error
		arrived, ended = counter.end()
		err = errors.Join(err, ended)
	}
	if err != nil {
		return flow{}, 0, err
	}
	p.total.add(passed, sent.accepted)
	return sent, arrived, passed.sent(p.variant, sent.accepted)
}

// offload has the receiver take partial checksums like the sender that makes them: guests of one kind.
func (p *pair) offload(partial bool) error {
	mask := guest.OffloadNone
	if partial {
		mask = guest.OffloadChecksum
	}
	return p.receiver().queue.SetOffload(mask)
}

// watched writes the frames on the first CPU and gives where they passed meanwhile.
func (p *pair) watched(frames [][]byte, d time.Duration) (sent flow, passed passages, err error) {
	before, err := p.passages()
	if err != nil {
		return flow{}, passages{}, err
	}
	err = pinned(0, func() (failed error) {
		sent, failed = write(p.sender().queue, frames, d)
		return failed
	})
	if err != nil {
		return flow{}, passages{}, err
	}
	after, err := p.passages()
	return sent, after.minus(before), err
}

// warm sends frames both ways until one arrives each way: neighbours, a bridge's table and pages are there then. What waited
// in the queues is forgotten.
func (p *pair) warm() error {
	for _, way := range [][2]*pod{{p.receiver(), p.sender()}, {p.sender(), p.receiver()}} {
		from, to := way[0], way[1]
		if err := to.queue.Drain(); err != nil {
			return err
		}
		frame := guest.UDP{
			ToMAC: p.nextHop(to), FromMAC: from.mac, Size: guest.MinUDP,
			From: netip.AddrPortFrom(from.address.Addr(), firstPort), To: netip.AddrPortFrom(to.address.Addr(), sinkPort),
		}.Frame()
		if err := arrive(from.queue, to.queue, frame); err != nil {
			return fmt.Errorf("%s: from %s to %s: %w", p.variant, from.address.Addr(), to.address.Addr(), err)
		}
	}
	return nil
}

func arrive(from, to *guest.Queue, frame []byte) error {
	buf := make([]byte, guest.MaxFrame)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if errno := from.Write(frame); errno != 0 {
			return fmt.Errorf("write a frame: %w", errno)
		}
		if _, err := to.Wait(20 * time.Millisecond); err != nil {
			return err
		}
		for {
			n, errno := to.Read(buf)
			if errno != 0 {
				break
			}
			if guest.IsUDP(buf[:n], sinkPort) {
				return to.Drain()
			}
		}
	}
	return fmt.Errorf("no frame arrived within %s", patience)
}
