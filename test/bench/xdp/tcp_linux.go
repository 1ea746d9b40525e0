package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/tapir-cni/tapir/test/bench/node"
	"golang.org/x/sys/unix"
)

// chunk is what one write or read of a socket may move, in bytes.
const chunk = 1 << 18

// growth is the least time that a connection gets before it is measured.
const growth = 100 * time.Millisecond

// bulk sends TCP from one guest to the other as fast as it goes and gives bits per second of payload. The guests are netns
// with the kernel's stack, joined to the pods' TAPs by pumps. offload is a TUN_F_* mask of what the guests' drivers have.
func (p *pair) bulk(offload int, d time.Duration) (_ float64, err error) {
	for _, one := range p.pods {
		if err := one.stack(); err != nil {
			return 0, err
		}
		for _, q := range []*guest.Queue{one.queue, one.port} {
			if err := errors.Join(q.SetOffload(offload), q.Drain()); err != nil {
				return 0, err
			}
		}
		pump := guest.StartPump(one.port, one.queue)
		defer func() { err = errors.Join(err, pump.Stop()) }()
	}
	defer func() {
		err = errors.Join(err, p.sender().queue.SetOffload(guest.OffloadNone), p.receiver().queue.SetOffload(guest.OffloadNone))
	}()
	s, err := p.connect()
	if err != nil {
		return 0, err
	}
	bits, err := s.measure(d)
	return bits, errors.Join(err, s.end())
}

// A stream is one TCP connection between the guests.
type stream struct {
	sender, receiver net.Conn
	bytes            atomic.Int64
	done             chan error
}

// connect makes the connection, from inside the guests' netns.
func (p *pair) connect() (*stream, error) {
	var listener *net.TCPListener
	at := netip.AddrPortFrom(p.receiver().address.Addr(), 0)
	err := node.In(p.receiver().inside, func() (failed error) {
		listener, failed = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
		return failed
	})
	if err != nil {
		return nil, fmt.Errorf("listen in the guest: %w", err)
	}
	defer func() { _ = listener.Close() }() // one connection was all that it was for
	s := &stream{done: make(chan error, 2)}
	err = node.In(p.sender().inside, func() (failed error) {
		s.sender, failed = net.DialTimeout("tcp4", listener.Addr().String(), patience)
		return failed
	})
	if err != nil {
		return nil, fmt.Errorf("connect from the guest: %w", err)
	}
	if err = listener.SetDeadline(time.Now().Add(patience)); err == nil {
		s.receiver, err = listener.Accept()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("accept in the guest: %w", err), s.sender.Close())
	}
	return s, nil
}

// measure sends for a while before it begins to count, so that windows have grown. A connection that stands still (a lost frame
// costs a short measurement all of its time) is waited for.
func (s *stream) measure(d time.Duration) (bitsPerSecond float64, err error) {
	go func() { s.done <- s.send() }()
	go func() { s.done <- s.receive() }()
	time.Sleep(max(d/4, growth))
	begin, before := time.Now(), s.bytes.Load()
	time.Sleep(d)
	for s.bytes.Load() == before {
		if time.Since(begin) > patience {
			return 0, fmt.Errorf("no byte arrived within %s", patience)
		}
		time.Sleep(time.Millisecond)
	}
	after, took := s.bytes.Load(), time.Since(begin)
	return float64(after-before) * 8 / took.Seconds(), nil
}

// end closes both ends while the pumps still work.
func (s *stream) end() error {
	// The sender's first: it stops to send.
	err := errors.Join(s.sender.Close(), <-s.done)
	if limit := s.receiver.SetReadDeadline(time.Now().Add(patience)); limit != nil {
		err = errors.Join(err, limit)
	}
	return errors.Join(err, <-s.done, s.receiver.Close())
}

func (s *stream) send() error {
	buf := make([]byte, chunk)
	for {
		_, err := s.sender.Write(buf)
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET):
			return nil
		default:
			return fmt.Errorf("send: %w", err)
		}
	}
}

func (s *stream) receive() error {
	buf := make([]byte, chunk)
	for {
		n, err := s.receiver.Read(buf)
		s.bytes.Add(int64(n))
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return nil
		default:
			return fmt.Errorf("receive: %w", err)
		}
	}
}
