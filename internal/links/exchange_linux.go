package links

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// exchange sends what is in c.out, count requests numbered from base, and calls fn with the answer of each: the body of a message, or the kernel's
// error; an acknowledgement has neither. It returns when each has its answer.
func (c *Conn) exchange(base uint32, count int, fn func(i int, kind uint16, body []byte, err error)) error {
	if err := c.f.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	raw, err := c.f.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	if err := raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendto(int(fd), c.out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return !errors.Is(sendErr, unix.EAGAIN)
	}); err != nil || sendErr != nil {
		return errors.Join(err, os.NewSyscallError("send to rtnetlink", sendErr))
	}
	for left := count; left > 0; {
		n := 0
		var recvErr error
		if err := raw.Read(func(fd uintptr) bool {
			n, _, recvErr = unix.Recvfrom(int(fd), c.in, unix.MSG_TRUNC)
			return !errors.Is(recvErr, unix.EAGAIN)
		}); err != nil || recvErr != nil {
			return errors.Join(err, os.NewSyscallError("receive from rtnetlink", recvErr))
		}
		if n > len(c.in) {
			return fmt.Errorf("answer of rtnetlink: want at most %d bytes, got %d", len(c.in), n)
		}
		err := eachMessage(c.in[:n], func(kind uint16, seq uint32, body []byte) error {
			i := int(seq - base)
			if i < 0 || i >= count {
				return nil // of a request that was given up
			}
			left--
			if kind != unix.NLMSG_ERROR {
				fn(i, kind, body, nil)
				return nil
			}
			fn(i, kind, nil, answerError(body))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// answerError is the errno of an NLMSG_ERROR; nil for an acknowledgement.
func answerError(body []byte) error {
	if len(body) < 4 {
		return fmt.Errorf("error message: want 4 bytes, got %d", len(body))
	}
	if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// eachMessage calls fn with each message of a datagram.
func eachMessage(b []byte, fn func(kind uint16, seq uint32, body []byte) error) error {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return fmt.Errorf("message: want %d to %d bytes, got %d", unix.SizeofNlMsghdr, len(b), size)
		}
		err := fn(binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:]), b[unix.SizeofNlMsghdr:size])
		if err != nil {
			return err
		}
		b = b[min(align(size), len(b)):]
	}
	return nil
}
