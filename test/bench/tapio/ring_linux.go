package main

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What of io_uring is used here (include/uapi/linux/io_uring.h); x/sys/unix has the system calls' numbers alone.
const (
	opReadFixed  = 4
	opWriteFixed = 5
	opRead       = 22
	opWrite      = 23

	sqeFixedFile = 1 << 0

	rwfNowait = 8 // RWF_NOWAIT of include/uapi/linux/fs.h

	setupSQPoll       = 1 << 1
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13

	featSingleMmap = 1 << 0

	enterGetEvents = 1 << 0
	enterSQWakeup  = 1 << 1

	sqNeedWakeup = 1 << 0

	offSQRing = 0
	offSQEs   = 0x10000000

	registerBuffers = 0
	registerFiles   = 2
)

// sqe is struct io_uring_sqe.
type sqe struct {
	opcode, flags  uint8
	ioprio         uint16
	fd             int32
	off, addr      uint64
	length         uint32
	rwFlags        uint32
	userData       uint64
	bufIndex       uint16
	personality    uint16
	spliceFD       int32
	addr3, reserve uint64
}

// cqe is struct io_uring_cqe.
type cqe struct {
	userData uint64
	res      int32
	flags    uint32
}

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, sqCPU, sqIdle, features, wqFD uint32
	_                                                          [3]uint32
	sq                                                         struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

// ring is one io_uring. It belongs to the thread that made it.
type ring struct {
	fd       int
	mem      []byte // both rings
	sqeMem   []byte
	sqes     []sqe
	cqes     []cqe
	sqTail   *uint32
	sqFlags  *uint32
	cqHead   *uint32
	cqTail   *uint32
	sqMask   uint32
	cqMask   uint32
	tail     uint32 // of what was pushed
	sqpoll   bool
	inFlight int
}

// sqIdle is how many milliseconds the kernel's thread looks for work before it sleeps.
const sqIdle = 100

// newRing makes one with room for entries requests, which must be a power of two. With sqpoll a thread of the kernel's takes them.
func newRing(entries int, sqpoll bool) (*ring, error) {
	p := params{flags: setupSingleIssuer | setupDeferTaskrun}
	if sqpoll {
		p.flags, p.sqIdle = setupSQPoll|setupSingleIssuer, sqIdle
	}
	fd, err := setup(entries, &p)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.1
		p = params{flags: p.flags & setupSQPoll, sqIdle: p.sqIdle}
		fd, err = setup(entries, &p)
	}
	if err != nil {
		return nil, fmt.Errorf("make an io_uring: %w", err)
	}
	r := &ring{fd: fd, sqpoll: sqpoll, sqMask: p.sqEntries - 1, cqMask: p.cqEntries - 1}
	if err := r.mapRings(p); err != nil {
		return nil, errors.Join(fmt.Errorf("map an io_uring: %w", err), r.close())
	}
	return r, nil
}

// tryRing says why there is no io_uring on this machine: it can be switched off (kernel.io_uring_disabled).
func tryRing() error {
	r, err := newRing(8, false)
	if err != nil {
		return err
	}
	return r.close()
}

func setup(entries int, p *params) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

func (r *ring) mapRings(p params) (err error) {
	if p.features&featSingleMmap == 0 {
		return errors.New("want a kernel that maps both rings at once, Linux 5.4 or newer")
	}
	size := max(int(p.sq.array+p.sqEntries*4), int(p.cq.cqes)+int(p.cqEntries)*int(unsafe.Sizeof(cqe{})))
	if r.mem, err = unix.Mmap(r.fd, offSQRing, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return err
	}
	size = int(p.sqEntries) * int(unsafe.Sizeof(sqe{}))
	if r.sqeMem, err = unix.Mmap(r.fd, offSQEs, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return err
	}
	word := func(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.mem[offset])) }
	r.sqTail, r.sqFlags, r.cqHead, r.cqTail = word(p.sq.tail), word(p.sq.flags), word(p.cq.head), word(p.cq.tail)
	r.sqes = unsafe.Slice((*sqe)(unsafe.Pointer(&r.sqeMem[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*cqe)(unsafe.Pointer(&r.mem[p.cq.cqes])), p.cqEntries)
	for i, entry := range unsafe.Slice(word(p.sq.array), p.sqEntries) {
		if entry != uint32(i) {
			*word(p.sq.array + uint32(i)*4) = uint32(i) // request i is always in entry i
		}
	}
	return nil
}

func (r *ring) close() error {
	var errs []error
	for _, m := range [][]byte{r.mem, r.sqeMem} {
		if m != nil {
			errs = append(errs, unix.Munmap(m))
		}
	}
	return errors.Join(append(errs, unix.Close(r.fd))...)
}

// register gives the kernel a file and buffers for good, so that requests name them by number.
func (r *ring) register(fd int, buffers [][]byte) error {
	file := int32(fd)
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), registerFiles, uintptr(unsafe.Pointer(&file)), 1, 0, 0); errno != 0 {
		return fmt.Errorf("register a file: %w", errno)
	}
	iov := make([]unix.Iovec, len(buffers))
	for i, b := range buffers {
		iov[i].Base = &b[0]
		iov[i].SetLen(len(b))
	}
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), registerBuffers, uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)), 0, 0)
	runtime.KeepAlive(iov)
	if errno != 0 {
		return fmt.Errorf("register %d buffers: %w", len(buffers), errno)
	}
	return nil
}

// push adds a request. The caller sees to it that no more are in flight than there is room for.
func (r *ring) push(s sqe) {
	r.sqes[r.tail&r.sqMask] = s
	r.tail++
	r.inFlight++
}

// submit hands over what was pushed and waits for so many completions; with a kernel thread it wakes that where it sleeps.
func (r *ring) submit(count, wait int) error {
	atomic.StoreUint32(r.sqTail, r.tail)
	flags := uintptr(enterGetEvents)
	if r.sqpoll {
		if atomic.LoadUint32(r.sqFlags)&sqNeedWakeup == 0 {
			return nil
		}
		count, wait, flags = 0, 0, enterSQWakeup
	}
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(count), uintptr(wait), flags, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return fmt.Errorf("io_uring_enter: %w", errno)
		default:
			count -= int(n)
		}
		if count <= 0 && errno == 0 {
			return nil
		}
	}
}

// reap gives each completion's result to done, and how many there were.
func (r *ring) reap(done func(userData uint64, res int32)) int {
	head, tail := *r.cqHead, atomic.LoadUint32(r.cqTail)
	n := int(tail - head)
	for ; head != tail; head++ {
		c := r.cqes[head&r.cqMask]
		done(c.userData, c.res)
	}
	atomic.StoreUint32(r.cqHead, tail)
	r.inFlight -= n
	return n
}
