// Package guest has stand-ins for a microVM, for benchmarks: queues of a TAP that are written and read as a VMM does it,
// frames to write, and a pump that lends a guest the kernel's own network stack.
//
// Hot paths use raw system calls, which the Go scheduler does not see: they cost what they cost in C. A benchmark that has
// several of them at work sets GOMAXPROCS to more than their number, so that the kernel shares out the CPUs.
package guest

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/tapir-cni/tapir/tap"
	"golang.org/x/sys/unix"
)

// HeaderSize is the bytes of the virtio-net header before each frame: struct virtio_net_hdr_v1, what a VMM sets for a guest
// with a driver of today.
const HeaderSize = 12

// The offloads of a guest's driver, as masks for TUNSETOFFLOAD.
const (
	OffloadNone     = 0
	OffloadChecksum = unix.TUN_F_CSUM
	OffloadTSO      = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
)

// A Queue is the queue of a single-queue TAP, opened by name as a VMM does: non-blocking, without NAPI.
type Queue struct {
	queues *tap.Queues
	fd     int
}

// Open opens the TAP of that name in the netns at path. The TAP must exist. offload is a TUN_F_* mask of what the reader
// takes.
func Open(netns, name string, offload int) (*Queue, error) {
	return open(tap.QueueOptions{Netns: netns, Name: name, Offload: &offload})
}

// OpenNAPI is Open, with NAPI on the queue.
func OpenNAPI(netns, name string, offload int) (*Queue, error) {
	return open(tap.QueueOptions{Netns: netns, Name: name, Offload: &offload, NAPI: true})
}

func open(o tap.QueueOptions) (*Queue, error) {
	o.Count, o.VnetHdrSize = 1, HeaderSize
	queues, err := tap.OpenQueues(o)
	if err != nil {
		return nil, err
	}
	return &Queue{queues: queues, fd: queues.FDs()[0]}, nil
}

// Close closes the queue.
func (q *Queue) Close() error { return q.queues.Close() }

// SetOffload changes what the reader takes.
func (q *Queue) SetOffload(mask int) error {
	if err := unix.IoctlSetInt(q.fd, unix.TUNSETOFFLOAD, mask); err != nil {
		return fmt.Errorf("tap %q: set offload mask %#x: %w", q.queues.Name, mask, err)
	}
	return nil
}

// Write writes one frame with its virtio-net header. The errno is the kernel's, 0 where it took the frame.
func (q *Queue) Write(frame []byte) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(q.fd), uintptr(unsafe.Pointer(&frame[0])), uintptr(len(frame)))
	return errno
}

// Read reads one frame with its virtio-net header; EAGAIN where none is there.
func (q *Queue) Read(buf []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(q.fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
	return int(n), errno
}

// Wait sleeps until a frame can be read, and says whether one can; false after the time-out.
func (q *Queue) Wait(timeout time.Duration) (bool, error) {
	ready := []unix.PollFd{{Fd: int32(q.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(ready, int(timeout.Milliseconds()))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return false, fmt.Errorf("poll tap %q: %w", q.queues.Name, err)
	}
	return n > 0, nil
}

// Drain reads and forgets what is waiting.
func (q *Queue) Drain() error {
	buf := make([]byte, MaxFrame)
	for {
		_, errno := q.Read(buf)
		switch errno {
		case 0, unix.EINTR:
		case unix.EAGAIN:
			return nil
		default:
			return fmt.Errorf("read from tap %q: %w", q.queues.Name, errno)
		}
	}
}

// MaxFrame is room for any frame with its headers, a GSO frame of 64 KiB too.
const MaxFrame = 1<<16 + 256
