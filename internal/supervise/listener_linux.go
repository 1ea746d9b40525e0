package supervise

import (
	"errors"
	"fmt"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is struct seccomp_notif with its struct seccomp_data, include/uapi/linux/seccomp.h.
type notification struct {
	id    uint64
	tid   uint32 // in the pid namespace of the thread that installed the filter; 0: not visible there
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	val   int64
	errno int32 // negative
	flags uint32
}

// The kernel takes no other sizes: they are part of the ioctls' numbers.
var (
	_ [80]byte = [unsafe.Sizeof(notification{})]byte{}
	_ [24]byte = [unsafe.Sizeof(response{})]byte{}
)

// untouched lets the kernel carry the call out as the task made it.
func (n notification) untouched() response {
	return response{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
}

// result is what the task's ioctl returns: 0, or -1 with errno.
func (n notification) result(errno unix.Errno) response {
	return response{id: n.id, errno: -int32(errno)}
}

// listener is the fd at which the calls of filtered tasks arrive.
type listener int

func (l listener) ioctl(command uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l), command, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// receive waits for the next call. It gives io.EOF when no task has the filter any more.
func (l listener) receive() (notification, error) {
	for {
		fds := []unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return notification{}, fmt.Errorf("wait for a TUNSETIFF: %w", err)
		}
		switch {
		case fds[0].Revents&unix.POLLIN != 0:
		case fds[0].Revents&unix.POLLHUP != 0:
			return notification{}, io.EOF
		default:
			return notification{}, fmt.Errorf("wait for a TUNSETIFF: poll gives %#x", fds[0].Revents)
		}
		var n notification // the kernel wants it zeroed
		err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n))
		// ENOENT: the task was killed since.
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return notification{}, fmt.Errorf("receive a TUNSETIFF: %w", err)
		}
		return n, nil
	}
}

// valid says that the task still waits in this call: what was looked up by its number before was its own.
func (l listener) valid(n notification) bool {
	return l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&n.id)) == nil
}

// send ends the task's call. A task that was killed meanwhile needs no answer.
func (l listener) send(r response) error {
	err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("answer a TUNSETIFF: %w", err)
	}
	return nil
}
