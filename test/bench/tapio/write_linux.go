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

// groSlice is writeSlice with the segments of a TCP stream, and counts what GRO makes of them.
func groSlice(d *device, m method, size int, slice time.Duration) (measurement, error) {
	before, err := d.dropped()
	if err != nil {
		return measurement{}, err
	}
	const run = 32 // segments; the stream begins anew after them, where GRO cannot merge
	r, err := writeFrames(d, m, slice, func(queue int) [][]byte { return segments(d.guest, d.host, uint16(4000+queue), size, run) })
	if err != nil {
		return measurement{}, err
	}
	time.Sleep(5 * time.Millisecond) // what a timer or a thread has to flush
	after, err := d.dropped()
	if err == nil && after == before {
		err = fmt.Errorf("%s: no skb of %d frames reached the program", d.name, r.all)
	}
	r.merged = float64(r.all) / float64(after-before)
	return r, err
}

// writeSlice writes datagrams to each queue of the device, a thread for each, for that long.
func writeSlice(d *device, m method, size int, slice time.Duration) (measurement, error) {
	return writeFrames(d, m, slice, func(queue int) [][]byte { return [][]byte{datagram(d.guest, d.host, uint16(4000+queue), size)} })
}

func writeFrames(d *device, m method, slice time.Duration, framesOf func(queue int) [][]byte) (measurement, error) {
	fds := d.queues.FDs()
	before, err := d.received()
	if err != nil {
		return measurement{}, err
	}
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	results := make([]worked, len(fds))
	for i, fd := range fds {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			results[i] = write(fd, m, framesOf(i), slice, func() { ready.Done(); <-start })
		})
	}
	ready.Wait()
	var r measurement
	own, machine, err := bothClocks()
	close(start)
	done.Wait()
	own2, machine2, err2 := bothClocks()
	if err := errors.Join(err, err2); err != nil {
		return measurement{}, err
	}
	r.own, r.machine = own2-own, machine2-machine
	for _, w := range results {
		if w.err != nil {
			return measurement{}, w.err
		}
		r.frames += w.frames
		r.rate += float64(w.frames) / w.elapsed.Seconds()
		r.all += w.all
	}
	after, err := d.received()
	if err == nil && after-before != uint64(r.all) {
		err = fmt.Errorf("%s: %d frames written and %d counted by the driver", d.name, r.all, after-before)
	}
	return r, err
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
