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

// lost is when an unanswered frame is given up.
const lost = 5 * time.Second

// pingPong sends one frame of 64 bytes, waits for the receiver's answer and sends the next. Both sides sleep in poll() until
// a frame is there, as a VMM does. It gives the round trips in nanoseconds.
func (p *pair) pingPong(d time.Duration) (trips []float64, err error) {
	if err := p.warm(); err != nil {
		return nil, err
	}
	there, back := p.frame(p.sender(), p.receiver()), p.frame(p.receiver(), p.sender())
	var stop atomic.Bool
	echoed := make(chan error, 1)
	go func() { echoed <- echo(p.receiver().queue, back, &stop) }()
	err = pinned(0, func() (failed error) {
		trips, failed = ping(p.sender().queue, there, d)
		return failed
	})
	stop.Store(true)
	return trips, errors.Join(err, <-echoed)
}

// frame is a small frame from one pod to the other, both ports echoPort.
func (p *pair) frame(from, to *pod) []byte {
	return guest.UDP{
		ToMAC: p.nextHop(to), FromMAC: from.mac, Size: guest.MinUDP,
		From: netip.AddrPortFrom(from.address.Addr(), echoPort), To: netip.AddrPortFrom(to.address.Addr(), echoPort),
	}.Frame()
}

func ping(q *guest.Queue, frame []byte, d time.Duration) ([]float64, error) {
	var trips []float64
	buf := make([]byte, guest.MaxFrame)
	begin := time.Now()
	for n := uint32(0); time.Since(begin) < d; n++ {
		guest.PutSequence(frame, n)
		sent := time.Now()
		if errno := q.Write(frame); errno != 0 {
			return nil, fmt.Errorf("write a frame: %w", errno)
		}
		answered, err := await(q, buf, n)
		if err != nil {
			return nil, err
		}
		if !answered {
			return nil, fmt.Errorf("frame %d: no answer within %s", n, lost)
		}
		trips = append(trips, float64(time.Since(sent).Nanoseconds()))
	}
	return trips, nil
}

// await reads until the frame with that number is there.
func await(q *guest.Queue, buf []byte, number uint32) (bool, error) {
	for deadline := time.Now().Add(lost); time.Now().Before(deadline); {
		n, errno := q.Read(buf)
		switch errno {
		case 0:
			if guest.IsUDP(buf[:n], echoPort) && guest.Sequence(buf) == number {
				return true, nil
			}
		case unix.EINTR:
		case unix.EAGAIN:
			if _, err := q.Wait(grace); err != nil {
				return false, err
			}
		default:
			return false, fmt.Errorf("read a frame: %w", errno)
		}
	}
	return false, nil
}

// echo answers each frame with its number.
func echo(q *guest.Queue, frame []byte, stop *atomic.Bool) error {
	defer pin(1)()
	buf := make([]byte, guest.MaxFrame)
	for !stop.Load() {
		n, errno := q.Read(buf)
		switch errno {
		case 0:
			if !guest.IsUDP(buf[:n], echoPort) {
				continue
			}
			guest.PutSequence(frame, guest.Sequence(buf))
			if errno = q.Write(frame); errno != 0 {
				return fmt.Errorf("write an answer: %w", errno)
			}
		case unix.EINTR:
		case unix.EAGAIN:
			if _, err := q.Wait(grace / 2); err != nil {
				return err
			}
		default:
			return fmt.Errorf("read a frame: %w", errno)
		}
	}
	return nil
}
