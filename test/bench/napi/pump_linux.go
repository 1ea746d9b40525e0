package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pumpCommand is the first argument of this program as a pump.
const pumpCommand = "pump"

// The descriptors that a pump starts with: the guest's TAP and the pod's. Standard input ends when it shall end.
const (
	pumpGuestFD = 3
	pumpPodFD   = 4
)

// maxFrame bounds a frame with its vnet header: a GSO frame has up to 64 kB behind its Ethernet header.
const maxFrame = 1 << 17

// pumpMain stands in for a VMM's virtio-net back end: what the guest's kernel sends to its TAP is written to the pod's, and
// the other way round, vnet headers included, one read and one write a frame. A thread a direction.
func pumpMain() error {
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(4) // a direction keeps its P while it moves frames: nobody may wait for one
	ended := make(chan error, 3)
	go func() { ended <- move(pumpGuestFD, pumpPodFD) }()
	go func() { ended <- move(pumpPodFD, pumpGuestFD) }()
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- err
	}()
	return <-ended
}

// move carries frames from one TAP's queue to another's until reading fails. A frame that the other refuses is lost, as on a wire.
func move(from, to int) error {
	runtime.LockOSThread()
	buf := make([]byte, maxFrame)
	at := uintptr(unsafe.Pointer(&buf[0]))
	ready := []unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}}
	for {
		// Raw: the descriptors are non-blocking, and telling Go's scheduler of each call would cost as much as a small frame.
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(from), at, maxFrame)
		switch errno {
		case 0:
		case unix.EAGAIN:
			if _, err := unix.Poll(ready, -1); err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("poll descriptor %d: %w", from, err)
			}
			continue
		case unix.EINTR:
			continue
		default:
			return fmt.Errorf("read a frame from descriptor %d: %w", from, errno)
		}
		for {
			_, _, errno = unix.RawSyscall(unix.SYS_WRITE, uintptr(to), at, n)
			if errno != unix.EAGAIN && errno != unix.EINTR {
				break
			}
		}
		if errno == unix.EBADFD {
			return fmt.Errorf("write a frame to descriptor %d: %w", to, errno)
		}
	}
}

// A pump is a running one.
type pump struct {
	cmd   *exec.Cmd
	stop  io.Closer
	ended chan error
}

// startPump gives the queues to a new process; the caller's descriptors stay its own. command replaces this program's own pump
// where it is not empty.
func startPump(command string, guest, pod int) (*pump, error) {
	cmd := exec.Command("/proc/self/exe", pumpCommand)
	if command != "" {
		cmd = exec.Command(command)
	}
	cmd.Stderr = os.Stderr
	defer func() {
		for _, f := range cmd.ExtraFiles {
			f.Close()
		}
	}()
	for _, fd := range []int{guest, pod} {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("duplicate a queue: %w", err)
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(own), "tap"))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	stop, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p := &pump{cmd: cmd, stop: stop, ended: make(chan error, 1)}
	started := make(chan error)
	go func() {
		// The signal comes when the thread that forked ends, and one that was lent to another netns does: this one stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start the pump: %w", err), stop.Close())
	}
	return p, nil
}

func (p *pump) pid() int { return p.cmd.Process.Pid }

// close ends the pump and waits: the queues that it held are gone then.
func (p *pump) close() error {
	err := p.stop.Close()
	if errors.Is(err, os.ErrClosed) {
		err = nil // it has ended by itself, which is told below
	}
	if failed := <-p.ended; failed != nil {
		err = errors.Join(err, fmt.Errorf("pump: %w", failed))
	}
	return err
}
