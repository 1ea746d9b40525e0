package main

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/tapir-cni/tapir/test/bench/node"
	"golang.org/x/sys/unix"
)

// chunk is what one send or receive call may move.
const chunk = 1 << 18

// connectTimeout bounds how long a guest may take to reach the node; each end waits no longer for the other later, either.
const connectTimeout = 10 * time.Second

// A stream is one TCP connection that the guest opened, on which one end sends as fast as it can.
type stream struct {
	source, sink int // sockets
	receiver     int // thread
	bytes, reads atomic.Int64
	closing      atomic.Bool
	done         chan error
}

// listen opens a listening socket in the calling thread's netns at the address, port chosen by the kernel.
func listen(at netip.Addr, patience time.Duration) (fd, port int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, 0, fmt.Errorf("open a socket: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err = unix.Bind(fd, &unix.SockaddrInet4{Addr: at.As4()}); err != nil {
		return -1, 0, fmt.Errorf("bind to %s: %w", at, err)
	}
	if err = unix.Listen(fd, 16); err != nil {
		return -1, 0, fmt.Errorf("listen at %s: %w", at, err)
	}
	// A guest that never arrives must not hold up the benchmark.
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return -1, 0, err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return -1, 0, err
	}
	return fd, name.(*unix.SockaddrInet4).Port, nil
}

// startStream connects from the guest's netns to the node's address and starts to send: the guest, or the node where down is true.
func startStream(guest string, to netip.Addr, patience time.Duration, down bool) (*stream, error) {
	listener, port, err := listen(to, patience)
	if err != nil {
		return nil, err
	}
	defer unix.Close(listener)
	s := &stream{done: make(chan error, 2)}
	if s.source, err = connect(guest, to, port, patience); err != nil {
		return nil, err
	}
	if s.sink, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for the guest's connection: %w", err), unix.Close(s.source))
	}
	if down {
		s.source, s.sink = s.sink, s.source
	}
	started := make(chan int)
	go func() { s.done <- s.receive(started) }()
	s.receiver = <-started
	go func() { s.done <- s.send() }()
	return s, nil
}

// connect opens a socket in the netns at path.
func connect(path string, to netip.Addr, port int, patience time.Duration) (fd int, err error) {
	err = node.In(path, func() error {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open a socket: %w", err)
		}
		limit := unix.NsecToTimeval(patience.Nanoseconds())
		if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err == nil {
			err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.As4(), Port: port})
		}
		if err != nil {
			unix.Close(fd)
			return fmt.Errorf("connect to %s port %d: %w", to, port, err)
		}
		return nil
	})
	return fd, err
}

func (s *stream) send() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	buf := make([]byte, chunk)
	for {
		_, err := unix.SendmsgN(s.source, buf, nil, nil, unix.MSG_NOSIGNAL)
		switch {
		case err == nil || errors.Is(err, unix.EINTR):
		case (errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)) && s.closing.Load():
			return nil
		default:
			return fmt.Errorf("send: %w", err)
		}
	}
}

func (s *stream) receive(started chan<- int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	started <- unix.Gettid()
	buf := make([]byte, chunk)
	for {
		n, err := unix.Read(s.sink, buf)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECONNRESET) && s.closing.Load():
			return nil
		case err != nil:
			return fmt.Errorf("receive: %w", err)
		case n == 0:
			return nil
		default:
			s.bytes.Add(int64(n))
			s.reads.Add(1)
		}
	}
}

// close ends the stream while its queues still work, so that neither end has to wait for a timeout.
func (s *stream) close() error {
	s.closing.Store(true)
	err := errors.Join(unix.Shutdown(s.source, unix.SHUT_RDWR), unix.Shutdown(s.sink, unix.SHUT_RDWR))
	if errors.Is(err, unix.ENOTCONN) {
		err = nil // the other end was faster
	}
	return errors.Join(err, <-s.done, <-s.done, unix.Close(s.source), unix.Close(s.sink))
}
