package main

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// readSlice fills the rings and then empties them, a thread for each queue, until the emptying, which alone is timed, has taken that long.
func readSlice(d *device, m method, size int, slice time.Duration) (measurement, error) {
	fds := d.queues.FDs()
	g, err := openGenerator(d, size)
	if err != nil {
		return measurement{}, err
	}
	defer g.close()
	readers := make([]*reader, len(fds))
	for i, fd := range fds {
		readers[i] = startReader(fd, m, vnetHeader+size)
	}
	var r measurement
	for err == nil && readers[0].elapsed < slice {
		if err = g.fill(len(fds)); err == nil {
			err = emptyAll(readers)
		}
	}
	for _, reader := range readers {
		close(reader.bursts)
		reader.ended.Wait()
		err = errors.Join(err, reader.err)
		r.frames += reader.frames
		r.own += reader.cpu
		r.rate += float64(reader.frames) / reader.elapsed.Seconds()
	}
	return r, err
}

// emptyAll has each reader empty its ring, all at the same time.
func emptyAll(readers []*reader) error {
	var b burst
	b.waiting.Store(int32(len(readers)))
	b.done.Add(len(readers))
	for _, r := range readers {
		r.bursts <- &b
	}
	b.done.Wait()
	for _, r := range readers {
		if r.err != nil {
			return r.err
		}
		if r.last == 0 {
			return errors.New("a ring was empty: no frame reached it")
		}
	}
	return nil
}

// A burst is one emptying.
type burst struct {
	waiting atomic.Int32 // readers that are not at the start yet
	done    sync.WaitGroup
}

// A reader is a thread that empties one queue's ring whenever it is told to.
type reader struct {
	bursts chan *burst
	ended  sync.WaitGroup

	// Written during a burst alone.
	frames, last int
	elapsed, cpu time.Duration
	err          error
}

func startReader(fd int, m method, length int) *reader {
	r := &reader{bursts: make(chan *burst)}
	r.ended.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer realtime()()
		var queue mover
		queue, r.err = openMover(fd, m, false, [][]byte{make([]byte, length)})
		for b := range r.bursts {
			for b.waiting.Add(-1); b.waiting.Load() > 0; {
				runtime.Gosched()
			}
			if r.err == nil {
				r.err = r.empty(queue)
			}
			b.done.Done()
		}
		if queue != nil {
			r.err = errors.Join(r.err, queue.close())
		}
	})
	return r
}

// empty reads until nothing is left.
func (r *reader) empty(m mover) error {
	cpu, err := clock(unix.CLOCK_THREAD_CPUTIME_ID)
	begin := time.Now()
	r.last = 0
	for n := 1; n > 0 && err == nil; {
		n, err = m.move()
		r.last += n
	}
	r.elapsed += time.Since(begin)
	r.frames += r.last
	cpu2, err2 := clock(unix.CLOCK_THREAD_CPUTIME_ID)
	r.cpu += cpu2 - cpu
	return errors.Join(err, err2)
}

// flows is how many datagrams' hashes spread over the queues.
const flows = 64

// generator puts frames on a TAP, past the qdisc, through a packet socket.
type generator struct {
	fd     int
	frames [flows][]byte
}

func openGenerator(d *device, size int) (*generator, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	g := &generator{fd: fd}
	err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: d.link.Attrs().Index})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the generator: %w", err), unix.Close(fd))
	}
	for i := range g.frames {
		g.frames[i] = datagram(d.host, d.guest, uint16(5000+i), size)[vnetHeader:]
	}
	return g, nil
}

func (g *generator) close() { _ = unix.Close(g.fd) }

// fill puts as many frames into the rings as they take. The hash does not share out evenly: what finds its ring full is lost.
func (g *generator) fill(queues int) error {
	count := ringLength
	if queues > 1 {
		count = 2 * queues * ringLength
	}
	for i := range count {
		if _, err := unix.Write(g.fd, g.frames[i%flows]); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("fill the rings: %w", err)
		}
	}
	return nil
}
