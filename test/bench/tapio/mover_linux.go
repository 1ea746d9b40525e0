package main

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A method is how frames cross between userspace and a TAP's queue.
type method struct {
	name   string
	vector bool // writev or readv of header and frame
	batch  int  // requests of one io_uring_enter; 0: one system call a frame
	fixed  bool // file and buffers are registered
	sqpoll bool // a kernel thread takes the requests
}

// A mover moves frames over one queue by one method. It belongs to the thread that opened it.
type mover interface {
	// move makes one call, or one batch, and gives how many frames crossed: 0 where a read found none.
	move() (int, error)
	close() error
}

// openMover makes the buffers and whatever else a method needs. A write's hold the frames, of one length, again and again; a read's are as
// large as these.
func openMover(fd int, m method, write bool, frames [][]byte) (mover, error) {
	if m.batch > 0 {
		b, err := openBatcher(fd, m, write, len(frames[0]))
		if err != nil {
			return nil, err
		}
		for i, buffer := range b.buffers {
			copy(buffer, frames[i%len(frames)])
		}
		return b, nil
	}
	s := &single{fd: uintptr(fd), call: unix.SYS_READ, size: uintptr(len(frames[0]))}
	if write {
		s.call = unix.SYS_WRITE
	}
	for _, f := range frames {
		f = append([]byte(nil), f...)
		iov := &[2]unix.Iovec{{Base: &f[0]}, {Base: &f[vnetHeader]}}
		iov[0].SetLen(vnetHeader)
		iov[1].SetLen(len(f) - vnetHeader)
		s.calls = append(s.calls, singleCall{arg: unsafe.Pointer(&f[0]), length: uintptr(len(f))})
		if m.vector {
			s.calls[len(s.calls)-1] = singleCall{arg: unsafe.Pointer(iov), length: uintptr(len(iov))}
		}
	}
	if m.vector {
		s.call = unix.SYS_READV
	}
	if m.vector && write {
		s.call = unix.SYS_WRITEV
	}
	return s, nil
}

// single makes one system call a frame, without telling Go's scheduler: the descriptor does not block, and a VMM has no such cost.
type single struct {
	fd, call, size uintptr
	calls          []singleCall // one a frame
	next           int
}

// singleCall is the last two arguments of read, write, readv or writev.
type singleCall struct {
	arg    unsafe.Pointer
	length uintptr
}

func (s *single) move() (int, error) {
	c := &s.calls[s.next]
	if s.next++; s.next == len(s.calls) {
		s.next = 0
	}
	n, _, errno := unix.RawSyscall(s.call, s.fd, uintptr(c.arg), c.length)
	switch {
	case errno == 0 && n == s.size:
		return 1, nil
	case errno == unix.EAGAIN:
		return 0, nil
	case errno != 0:
		return 0, fmt.Errorf("move one frame: %w", errno)
	}
	return 0, fmt.Errorf("move one frame: want %d bytes, got %d", s.size, n)
}

func (s *single) close() error { return nil }

// batcher moves a batch of frames by one io_uring_enter.
type batcher struct {
	ring    *ring
	request sqe
	buffers [][]byte
	mem     []byte
	n       int
	next    int

	moved int   // of the last reap
	err   error // its first
}

// align keeps buffers apart by whole cache lines.
const align = 64

func openBatcher(fd int, m method, write bool, length int) (_ *batcher, err error) {
	entries := m.batch
	if m.sqpoll {
		entries *= 2 // one batch is pushed while the kernel's thread works on another
	}
	b := &batcher{n: m.batch, request: sqe{opcode: opRead, fd: int32(fd), length: uint32(length)}}
	if write {
		b.request.opcode = opWrite
	} else {
		b.request.rwFlags = rwfNowait // else a request that finds the ring empty waits for a frame
	}
	stride := (length + align - 1) / align * align
	if b.mem, err = unix.Mmap(-1, 0, entries*stride, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE); err != nil {
		return nil, fmt.Errorf("map buffers: %w", err)
	}
	for i := range entries {
		b.buffers = append(b.buffers, b.mem[i*stride:][:length:length])
	}
	if b.ring, err = newRing(entries, m.sqpoll); err != nil {
		return nil, errors.Join(err, unix.Munmap(b.mem))
	}
	if m.fixed {
		if err := b.ring.register(fd, b.buffers); err != nil {
			return nil, errors.Join(err, b.close())
		}
		b.request.fd, b.request.flags = 0, sqeFixedFile
		b.request.opcode = opReadFixed
		if write {
			b.request.opcode = opWriteFixed
		}
	}
	return b, nil
}

func (b *batcher) move() (int, error) {
	for range b.n {
		s := b.request
		s.addr, s.bufIndex = uint64(uintptr(unsafe.Pointer(&b.buffers[b.next][0]))), 0
		if s.flags&sqeFixedFile != 0 {
			s.bufIndex = uint16(b.next)
		}
		b.ring.push(s)
		if b.next++; b.next == len(b.buffers) {
			b.next = 0
		}
	}
	if err := b.ring.submit(b.n, b.n); err != nil {
		return 0, err
	}
	if !b.ring.sqpoll {
		return b.reap()
	}
	total := 0
	for b.ring.inFlight > len(b.buffers)-b.n {
		n, err := b.reap()
		if total += n; err != nil {
			return total, err
		}
	}
	return total, nil
}

// reap takes what has completed and gives how many frames crossed.
func (b *batcher) reap() (int, error) {
	b.moved, b.err = 0, nil
	b.ring.reap(b.done)
	return b.moved, b.err
}

func (b *batcher) done(_ uint64, res int32) {
	switch {
	case res == int32(b.request.length):
		b.moved++
	case res == -int32(unix.EAGAIN):
	case b.err != nil:
	case res < 0:
		b.err = fmt.Errorf("move one of a batch: %w", unix.Errno(-res))
	default:
		b.err = fmt.Errorf("move one of a batch: want %d bytes, got %d", b.request.length, res)
	}
}

// finish waits for what is in flight and gives how many frames crossed.
func (b *batcher) finish() (moved int, err error) {
	for b.ring.inFlight > 0 && err == nil {
		var n int
		n, err = b.reap()
		moved += n
	}
	return moved, err
}

func (b *batcher) close() error {
	return errors.Join(b.ring.close(), unix.Munmap(b.mem))
}
