// Package wire sends and sees raw Ethernet frames by AF_PACKET, in guests and on the node. Tests use it to send what no
// honest stack would, and to see where it arrives.
package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// keepFrames bounds the frames that a Sniffer keeps; it counts on.
const keepFrames = 64

// Sniffer looks for frames that hold a marker, in either direction.
type Sniffer struct {
	fd     int
	marker []byte
	seen   Seen
	stop   chan struct{} // closed by Close
	ended  chan error    // closed by the reader
}

// Seen is what a Sniffer saw.
type Seen struct {
	Count  int      `json:"count"`
	Frames [][]byte `json:"frames,omitempty"` // the first 64, from the Ethernet header on
}

// Sniff starts to look for marker in each frame of the interface named ifName, or of all interfaces of the caller's
// netns where it is empty. It sees frames from the moment it returns. Close it.
func Sniff(ifName string, marker []byte) (*Sniffer, error) {
	if len(marker) == 0 {
		return nil, errors.New("sniff: want a marker, got none")
	}
	fd, err := packetSocket(ifName, unix.ETH_P_ALL)
	if err != nil {
		return nil, fmt.Errorf("sniff: %w", err)
	}
	// A timeout lets the reader see that it is to stop: closing an fd does not wake its readers.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}); err != nil {
		return nil, errors.Join(fmt.Errorf("sniff: set a timeout: %w", err), unix.Close(fd))
	}
	s := &Sniffer{fd: fd, marker: bytes.Clone(marker), stop: make(chan struct{}), ended: make(chan error, 1)}
	go func() { s.ended <- s.read() }()
	return s, nil
}

func (s *Sniffer) read() error {
	buf := make([]byte, 1<<17)
	for {
		n, _, err := unix.Recvfrom(s.fd, buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENETDOWN):
		case err != nil:
			return fmt.Errorf("sniff: receive: %w", err)
		case bytes.Contains(buf[:n], s.marker):
			s.seen.Count++
			if len(s.seen.Frames) < keepFrames {
				s.seen.Frames = append(s.seen.Frames, bytes.Clone(buf[:n]))
			}
			continue // there may be more
		default:
			continue
		}
		select {
		case <-s.stop:
			return nil
		default:
		}
	}
}

// Close reads what has arrived already, stops and gives what was seen. Call it once. It returns when nothing has
// arrived for 50 ms.
func (s *Sniffer) Close() (Seen, error) {
	close(s.stop)
	err := <-s.ended
	return s.seen, errors.Join(err, unix.Close(s.fd))
}

// Send writes frames, each from its Ethernet header on, to the interface named ifName, as they are. gap is the time
// between two.
func Send(ifName string, gap time.Duration, frames ...[]byte) error {
	fd, err := packetSocket(ifName, 0)
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	defer unix.Close(fd)
	for i, f := range frames {
		if i > 0 {
			time.Sleep(gap)
		}
		if _, err := unix.Write(fd, f); err != nil {
			return fmt.Errorf("send frame %d of %d bytes on %q: %w", i, len(f), ifName, err)
		}
	}
	return nil
}

// packetSocket gives a packet socket on the interface, or on all where ifName is empty. Protocol 0 receives nothing.
func packetSocket(ifName string, protocol uint16) (int, error) {
	index := 0
	if ifName != "" {
		i, err := net.InterfaceByName(ifName)
		if err != nil {
			return -1, fmt.Errorf("interface %q: %w", ifName, err)
		}
		index = i.Index
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a packet socket: %w", err)
	}
	addr := &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8, Ifindex: index}
	if err := unix.Bind(fd, addr); err != nil {
		return -1, errors.Join(fmt.Errorf("bind a packet socket to %q: %w", ifName, err), unix.Close(fd))
	}
	return fd, nil
}
