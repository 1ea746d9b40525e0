package guest

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A Pump stands in for a VMM's virtio-net back end between two queues: that of a TAP in the guest's netns, through which the
// kernel's stack there sends and receives, and that of the pod's TAP. One thread a direction, one read and one write a frame,
// virtio-net headers passed through.
type Pump struct {
	stop atomic.Bool
	done chan error
}

// pumpTick bounds how long a sleeping direction takes to see that it shall end.
const pumpTick = 50 * time.Millisecond

// StartPump moves frames until Stop. The queues stay the caller's.
func StartPump(inside, outside *Queue) *Pump {
	p := &Pump{done: make(chan error, 2)}
	go func() { p.done <- p.move(inside, outside) }()
	go func() { p.done <- p.move(outside, inside) }()
	return p
}

// Stop ends both directions and says what went wrong in them.
func (p *Pump) Stop() error {
	p.stop.Store(true)
	return errors.Join(<-p.done, <-p.done)
}

func (p *Pump) move(from, to *Queue) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	buf := make([]byte, MaxFrame)
	for !p.stop.Load() {
		n, errno := from.Read(buf)
		switch errno {
		case 0:
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			if _, err := from.Wait(pumpTick); err != nil {
				return err
			}
			continue
		default:
			return fmt.Errorf("pump: read from tap %q: %w", from.queues.Name, errno)
		}
		if err := p.put(to, buf[:n]); err != nil {
			return err
		}
	}
	return nil
}

// put writes the frame once the queue takes it. One that it refuses for its content is lost, as on a wire.
func (p *Pump) put(to *Queue, frame []byte) error {
	for !p.stop.Load() {
		switch errno := to.Write(frame); errno {
		case 0, unix.EINVAL, unix.ENOBUFS:
			return nil
		case unix.EAGAIN, unix.EINTR:
		default:
			return fmt.Errorf("pump: write to tap %q: %w", to.queues.Name, errno)
		}
	}
	return nil
}
