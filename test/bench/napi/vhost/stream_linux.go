package vhost

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/tapir-cni/tapir/test/bench/node"
	"golang.org/x/sys/unix"
)

const (
	port = 5201
	// readSize is the receiver's buffer, as large as iperf's.
	readSize = 128 << 10
	// silence is how long the receiver waits for a byte, in seconds.
	silence = 30
	// connectTime bounds the sender's attempts: testpmd opens the TAP long before it forwards.
	connectTime = 60 * time.Second
)

// round runs one transfer through a fresh testpmd.
func (s *setup) round(ctx context.Context, napi bool) (Round, error) {
	p, err := s.startTestpmd(ctx, napi)
	if err != nil {
		return Round{}, err
	}
	r, err := s.transfer(p)
	r.NAPI = p.napi
	err = errors.Join(err, p.stop())
	if err != nil { // asked after its end: what it says comes late
		err = fmt.Errorf("%w; testpmd said: %s", err, lastLines(p.said))
	}
	return r, err
}

// transfer moves Warm and then Bytes of payload; what is measured is measured over the latter.
func (s *setup) transfer(p *testpmd) (Round, error) {
	for _, tid := range p.vhost {
		if err := pin(tid, s.cpus.vhost); err != nil {
			return Round{}, err
		}
	}
	listener, err := s.listen()
	if err != nil {
		return Round{}, err
	}
	defer unix.Close(listener)
	sent := make(chan error, 1)
	go func() { sent <- node.In(s.client, s.send) }()
	var r Round
	received := make(chan error, 1)
	go func() { received <- onThread(s.cpus.receiver, func() error { return s.receive(listener, p, &r) }) }()
	if err := <-received; err != nil {
		// A sender that could not even connect is the nearer reason.
		select {
		case serr := <-sent:
			return r, errors.Join(err, serr)
		case <-time.After(time.Second):
			return r, err
		}
	}
	return r, <-sent
}

func (s *setup) listen() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, s.Window), // accepted sockets inherit it
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(connectTime/time.Second) + silence}),
		unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: s.gateway.As4()}),
		unix.Listen(fd, 1),
	)
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("listen on %s: %w", netip.AddrPortFrom(s.gateway, port), err)
	}
	return fd, nil
}

// send writes until the receiver has closed. It runs in the sender's netns.
func (s *setup) send() error {
	if err := pin(0, s.cpus.sender); err != nil {
		return err
	}
	fd, err := s.connect()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 64<<10)
	begin, total := time.Now(), int64(0)
	for {
		n, err := unix.SendmsgN(fd, buf, nil, nil, unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("send: %w", err)
		}
		total += int64(n)
		if s.Rate > 0 {
			ahead := time.Duration(float64(total)/float64(s.Rate)*float64(time.Second)) - time.Since(begin)
			time.Sleep(ahead)
		}
	}
}

// connect tries until testpmd forwards: each time anew, since a SYN that was lost is sent again later and later.
func (s *setup) connect() (int, error) {
	for begin := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		err = errors.Join(
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 2}), // of connect; it is EINPROGRESS then
			unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: s.gateway.As4()}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: silence}),
		)
		if err == nil {
			return fd, nil
		}
		unix.Close(fd)
		if time.Since(begin) > connectTime {
			return -1, fmt.Errorf("connect to %s: %w, for %s", netip.AddrPortFrom(s.gateway, port), err, connectTime)
		}
	}
}

// receive takes one connection and reads it on the calling thread, which does nothing else.
func (s *setup) receive(listener int, p *testpmd, r *Round) error {
	fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return fmt.Errorf("wait for the sender: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: silence}); err != nil {
		return err
	}
	buf := make([]byte, readSize)
	if _, err := readBytes(fd, buf, s.Warm); err != nil {
		return err
	}
	before, err := s.counters()
	if err != nil {
		return err
	}
	spentBefore, err := s.spent(p)
	if err != nil {
		return err
	}
	begin := time.Now()
	if r.Bytes, err = readBytes(fd, buf, s.Bytes); err != nil {
		return err
	}
	r.Seconds = time.Since(begin).Seconds()
	spentAfter, err := s.spent(p)
	if err != nil {
		return err
	}
	after, err := s.counters()
	if err != nil {
		return err
	}
	spentAfter.sub(spentBefore, r)
	after.sub(before, r)
	return nil
}

// readBytes reads at least want bytes.
func readBytes(fd int, buf []byte, want int64) (int64, error) {
	var got int64
	for got < want {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return got, fmt.Errorf("receive after %d bytes: %w", got, err)
		}
		if n == 0 {
			return got, fmt.Errorf("receive: the sender closed after %d bytes", got)
		}
		got += int64(n)
	}
	return got, nil
}
