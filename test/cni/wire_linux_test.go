package cni_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// A wire is a packet socket on a device: it sees every frame there, and can send any.
type wire struct {
	t     testing.TB
	fd    int
	index int
}

// tapWire listens on a device of a netns until the test ends.
func tapWire(t testing.TB, netns, dev string) *wire {
	t.Helper()
	w := &wire{t: t}
	testnode.In(t, netns, func() {
		w.index = link(t, dev).Attrs().Index
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			w.fd = fd
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: w.index})
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { _ = unix.Close(w.fd) })
	return w
}

// send puts a frame onto the device.
func (w *wire) send(frame []byte) {
	w.t.Helper()
	if err := unix.Sendto(w.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.index, Halen: 6}); err != nil {
		w.t.Fatalf("send a frame: %v", err)
	}
}

// frames gives every frame that comes until one fits, and whether one did within the wait.
func (w *wire) frames(wait time.Duration, fits func(frame []byte) bool) (seen [][]byte, ok bool) {
	w.t.Helper()
	buf := make([]byte, 1<<16)
	for deadline := time.Now().Add(wait); ; {
		n, from, err := unix.Recvfrom(w.fd, buf, 0)
		if err == nil {
			if ll, isLL := from.(*unix.SockaddrLinklayer); isLL && ll.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			seen = append(seen, bytes.Clone(buf[:n]))
			if fits(buf[:n]) {
				return seen, true
			}
			continue
		}
		left := time.Until(deadline)
		if left <= 0 || !errors.Is(err, unix.EAGAIN) {
			return seen, false
		}
		ready := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			w.t.Fatal(err)
		}
	}
}

// contains tells whether a frame is among those seen.
func contains(seen [][]byte, frame []byte) bool {
	for _, f := range seen {
		if bytes.Equal(f, frame) {
			return true
		}
	}
	return false
}
