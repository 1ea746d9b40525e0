package main

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A measurement is what one slice of one row gave.
type measurement struct {
	frames  int           // while the clock ran
	all     int           // with those before and after
	rate    float64       // frames a second, of all queues
	own     time.Duration // CPU time of this process
	machine time.Duration // of the whole machine
	merged  float64       // frames of each skb that the sink got; 0 where it does not count them
}

// warmUp is how many frames cross before the clock starts, and checkEvery how many between looks at it.
const (
	warmUp     = 512
	checkEvery = 128
)

// groSlice is writeSlice with the segments of a TCP stream.
func groSlice(d *device, m method, size int, slice time.Duration) (measurement, error) {
	const run = 32 // segments; the stream begins anew after them, where GRO cannot merge
	return writeFrames(d, m, slice, func(queue int) [][]byte { return segments(d.guest, d.host, uint16(4000+queue), size, run) })
}

// writeSlice writes datagrams to each queue of the device, a thread for each, for that long.
func writeSlice(d *device, m method, size int, slice time.Duration) (measurement, error) {
	return writeFrames(d, m, slice, func(queue int) [][]byte { return [][]byte{datagram(d.guest, d.host, uint16(4000+queue), size)} })
}

func writeFrames(d *device, m method, slice time.Duration, framesOf func(queue int) [][]byte) (r measurement, err error) {
	fds := d.queues.FDs()
	received, err := d.received()
	if err != nil {
		return r, err
	}
	var before passed
	if d.counts() {
		if before, err = d.passed(); err != nil {
			return r, err
		}
	}
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	results := make([]worked, len(fds))
	for i, fd := range fds {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			defer realtime()()
			results[i] = write(fd, m, framesOf(i), slice, func() { ready.Done(); <-start })
		})
	}
	ready.Wait()
	own, machine, err := bothClocks()
	close(start)
	done.Wait()
	begin := time.Now()
	own2, machine2, err2 := bothClocks()
	if err := errors.Join(err, err2, r.sum(results)); err != nil {
		return r, err
	}
	if now, err := d.received(); err != nil || now-received != uint64(r.all) {
		return r, errors.Join(fmt.Errorf("%s: %d frames written and %d counted by the driver", d.name, r.all, now-received), err)
	}
	if d.counts() {
		var got passed
		if got, err = d.drain(before, r.all); err != nil {
			return r, err
		}
		r.merged = float64(got.frames) / float64(got.skbs)
	}
	if d.napi == napiThreaded { // the thread is part of it, and its backlog not the writer's gain
		r.rate = float64(r.frames) / (results[0].elapsed + time.Since(begin)).Seconds()
		_, machine2, err = bothClocks()
	}
	r.own, r.machine = own2-own, machine2-machine
	return r, err
}

// sum adds up what the threads did.
func (r *measurement) sum(results []worked) error {
	for _, w := range results {
		if w.err != nil {
			return w.err
		}
		r.frames += w.frames
		r.all += w.all
		r.rate += float64(w.frames) / w.elapsed.Seconds()
	}
	return nil
}

func bothClocks() (own, machine time.Duration, err error) {
	if own, err = clock(unix.CLOCK_PROCESS_CPUTIME_ID); err != nil {
		return 0, 0, err
	}
	machine, err = machineBusy()
	return own, machine, err
}

// worked is what one thread did.
type worked struct {
	frames  int // while the clock ran
	all     int
	elapsed time.Duration
	err     error
}

func write(fd int, m method, frames [][]byte, slice time.Duration, wait func()) (w worked) {
	queue, err := openMover(fd, m, true, frames)
	if err != nil {
		wait()
		return worked{err: err}
	}
	for err == nil && w.all < warmUp {
		var n int
		n, err = queue.move()
		w.all += n
	}
	wait()
	begin := time.Now()
	for err == nil && w.elapsed < slice {
		for moved := 0; err == nil && moved < checkEvery; {
			var n int
			n, err = queue.move()
			moved += n
			w.frames += n
		}
		w.elapsed = time.Since(begin)
	}
	w.all += w.frames
	if b, ok := queue.(*batcher); ok && err == nil { // a kernel thread may still have some
		var n int
		n, err = b.finish()
		w.all += n
	}
	w.err = errors.Join(err, queue.close())
	return w
}
