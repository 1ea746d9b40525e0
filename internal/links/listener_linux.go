package links

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrOverrun says that the kernel had more to tell than the socket's buffer holds, and dropped it: what is known is to be read anew.
var ErrOverrun = errors.New("messages of the kernel were lost")

// Change is one thing that happened.
type Change struct {
	Link    *Link // of a link that was made, changed or deleted
	Deleted bool  // the link was

	// Gone is the nsid of a namespace that the kernel began to take down, where Link is nil. Its links are not told of any more.
	Gone int
}

// Listener hears of links in all namespaces that have an nsid in its own.
type Listener struct {
	f  *os.File
	in []byte
}

// Listen opens a listener in the network namespace of the calling thread, with a receive buffer of so many bytes. It needs
// CAP_NET_BROADCAST, which the kernel holds it to as it was when the socket was opened (netlink_broadcast, file_ns_capable).
func Listen(buffer int) (_ *Listener, err error) {
	f, err := openSocket(buffer)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		if optErr = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1); optErr != nil {
			optErr = fmt.Errorf("listen to all network namespaces: %w", optErr)
			return
		}
		for _, group := range []int{unix.RTNLGRP_LINK, unix.RTNLGRP_NSID} {
			if optErr = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); optErr != nil {
				optErr = fmt.Errorf("join rtnetlink group %d: %w", group, optErr)
				return
			}
		}
	})
	if err = errors.Join(err, optErr); err != nil {
		return nil, err
	}
	return &Listener{f: f, in: make([]byte, 64<<10)}, nil
}

// Close ends a [Listener.Receive] that waits, with [os.ErrClosed].
func (l *Listener) Close() error { return l.f.Close() }

// Receive waits for changes. [ErrOverrun] is no end: receive on.
func (l *Listener) Receive() ([]Change, error) {
	raw, err := l.f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var n, ctl int
	var recvErr error
	control := make([]byte, unix.CmsgSpace(4))
	err = raw.Read(func(fd uintptr) bool {
		n, ctl, _, _, recvErr = unix.Recvmsg(int(fd), l.in, control, unix.MSG_TRUNC)
		return !errors.Is(recvErr, unix.EAGAIN)
	})
	switch {
	case errors.Is(recvErr, unix.ENOBUFS):
		return nil, l.drain(raw)
	case err != nil:
		return nil, fmt.Errorf("receive from rtnetlink: %w", os.ErrClosed) // the one reason: there is no deadline
	case recvErr != nil:
		return nil, os.NewSyscallError("receive from rtnetlink", recvErr)
	case n > len(l.in):
		return nil, l.drain(raw)
	}
	return changes(l.in[:n], nsidOf(control[:ctl]))
}

// drain empties the socket and gives [ErrOverrun]. Until it is empty the kernel drops what else there is to tell, and does not say so again
// (netlink_overrun, netlink_rcv_wake in net/netlink/af_netlink.c): who read everything anew before that would miss it.
func (l *Listener) drain(raw syscall.RawConn) error {
	const most = 1 << 16 // under a stream that does not end
	err := raw.Control(func(fd uintptr) {
		for range most {
			if _, _, err := unix.Recvfrom(int(fd), l.in, unix.MSG_DONTWAIT); errors.Is(err, unix.EAGAIN) {
				return
			}
		}
	})
	if err != nil {
		return fmt.Errorf("receive from rtnetlink: %w", os.ErrClosed)
	}
	return ErrOverrun
}

// nsidOf reads the control message that says where the datagram comes from; there is none for the socket's own namespace.
func nsidOf(control []byte) int {
	list, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return Here
	}
	for _, m := range list {
		if m.Header.Level == unix.SOL_NETLINK && m.Header.Type == unix.NETLINK_LISTEN_ALL_NSID && len(m.Data) >= 4 {
			return int(int32(binary.NativeEndian.Uint32(m.Data)))
		}
	}
	return Here
}

func changes(b []byte, nsid int) ([]Change, error) {
	var list []Change
	err := eachMessage(b, func(kind uint16, _ uint32, body []byte) error {
		switch kind {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			l := &Link{Ref: Ref{NSID: nsid}}
			if err := l.parse(body); err != nil {
				return err
			}
			// A bridge tells of its ports by the same messages (AF_BRIDGE), and a DELLINK of that family deletes no link.
			// A message of a wireless driver's event has no name in it.
			if body[0] == unix.AF_UNSPEC && l.Name != "" {
				list = append(list, Change{Link: l, Deleted: kind == unix.RTM_DELLINK})
			}
		case unix.RTM_DELNSID:
			if nsid != Here || len(body) < 4 {
				return nil // a namespace in another one's numbering
			}
			return eachAttr(body[4:], func(kind uint16, v []byte) error {
				if kind == unix.NETNSA_NSID {
					list = append(list, Change{Gone: int(int32(number(v)))})
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("receive from rtnetlink: %w", err)
	}
	return list, nil
}
