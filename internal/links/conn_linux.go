package links

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// batch is how many requests one message carries. Their answers wait in the socket's buffer, 2 to 4 KiB each as the kernel counts.
const batch = 64

// Conn is a socket for requests, in the network namespace of the thread that opened it. One goroutine may use it at a time.
type Conn struct {
	f     *os.File
	seq   uint32
	out   []byte // requests
	start int    // of the last one
	in    []byte
}

// skipProtocolStats is RTEXT_FILTER_SKIP_STATS of include/uapi/linux/rtnetlink.h: without the counters that IPv4 and IPv6 keep of each link, which
// cost more than all else that is said of it. Those of the link itself are there.
const skipProtocolStats = 1 << 3

// answerTimeout bounds the wait for an answer. The kernel gives it within the request, when it has its RTNL lock.
const answerTimeout = 30 * time.Second

// Open opens a connection. It needs CAP_NET_ADMIN where a [Ref] names another namespace: the kernel says EACCES without.
func Open() (*Conn, error) {
	f, err := openSocket(1 << 20)
	if err != nil {
		return nil, err
	}
	return &Conn{f: f, in: make([]byte, 64<<10)}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return c.f.Close() }

// openSocket opens rtnetlink, non-blocking, so that the runtime's poller waits and no thread.
func openSocket(buffer int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	f := os.NewFile(uintptr(fd), "rtnetlink")
	if err := setBuffer(fd, buffer); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind rtnetlink: %w", err), f.Close())
	}
	return f, nil
}

// setBuffer gives the socket a receive buffer of so many bytes; one without CAP_NET_ADMIN gets what the sysctl net.core.rmem_max allows.
func setBuffer(fd, size int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size)
	if errors.Is(err, unix.EPERM) {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size)
	}
	if err != nil {
		return fmt.Errorf("set the receive buffer of rtnetlink: %w", err)
	}
	return nil
}

// Read reads links, with their counters, and calls fn with the place of each in refs: with the link, which fn may keep, or with why it
// cannot be read, [unix.ENODEV] where it is not there and [unix.EINVAL] where the kernel knows no such nsid. Order is that of refs within what the
// kernel answers at once. The error is of the socket.
func (c *Conn) Read(refs []Ref, fn func(i int, l *Link, err error)) error {
	for first := 0; first < len(refs); first += batch {
		part := refs[first:min(first+batch, len(refs))]
		if err := c.readPart(part, func(i int, l *Link, err error) { fn(first+i, l, err) }); err != nil {
			return fmt.Errorf("read links: %w", err)
		}
	}
	return nil
}

func (c *Conn) readPart(refs []Ref, fn func(int, *Link, error)) error {
	c.out = c.out[:0]
	base := c.seq + 1
	for _, r := range refs {
		c.begin(unix.RTM_GETLINK, unix.NLM_F_REQUEST)
		body := [unix.SizeofIfInfomsg]byte{}
		binary.NativeEndian.PutUint32(body[4:], uint32(r.Index))
		c.out = append(c.out, body[:]...)
		c.attr(unix.IFLA_EXT_MASK, skipProtocolStats)
		if r.NSID != Here {
			c.attr(unix.IFLA_TARGET_NETNSID, uint32(r.NSID))
		}
		c.end()
	}
	return c.exchange(base, len(refs), func(i int, kind uint16, body []byte, err error) {
		if err != nil {
			fn(i, nil, err)
			return
		}
		l := &Link{Ref: refs[i]}
		if err := l.parse(body); err != nil {
			fn(i, nil, err)
			return
		}
		fn(i, l, nil)
	})
}

// NSID is the nsid by which the socket's namespace knows the one that nsFD refers to; it is given one where it has none. The
// socket's own namespace is not to be asked for: it would be given one too.
func (c *Conn) NSID(nsFD int) (int, error) {
	id, err := c.getNSID(nsFD)
	if err != nil || id != Here {
		return id, err
	}
	c.out = c.out[:0]
	c.begin(unix.RTM_NEWNSID, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	c.out = append(c.out, unix.AF_UNSPEC, 0, 0, 0) // struct rtgenmsg
	c.attr(unix.NETNSA_FD, uint32(nsFD))
	assign := int32(-1) // NETNSA_NSID_NOT_ASSIGNED: the kernel chooses
	c.attr(unix.NETNSA_NSID, uint32(assign))
	c.end()
	err = c.exchange(c.seq, 1, func(_ int, _ uint16, _ []byte, e error) { err = e })
	if err != nil && !errors.Is(err, unix.EEXIST) { // EEXIST: somebody else was faster
		return Here, fmt.Errorf("give a network namespace an nsid: %w", err)
	}
	return c.getNSID(nsFD)
}

func (c *Conn) getNSID(nsFD int) (int, error) {
	c.out = c.out[:0]
	c.begin(unix.RTM_GETNSID, unix.NLM_F_REQUEST)
	c.out = append(c.out, unix.AF_UNSPEC, 0, 0, 0)
	c.attr(unix.NETNSA_FD, uint32(nsFD))
	c.end()
	id := Here
	var answer error
	err := c.exchange(c.seq, 1, func(_ int, _ uint16, body []byte, err error) {
		if answer = err; err == nil && len(body) > 4 {
			answer = eachAttr(body[4:], func(kind uint16, v []byte) error {
				if kind == unix.NETNSA_NSID {
					id = int(int32(number(v)))
				}
				return nil
			})
		}
	})
	if err = errors.Join(err, answer); err != nil {
		return Here, fmt.Errorf("read the nsid of a network namespace: %w", err)
	}
	return id, nil
}

// begin starts a request; its length is set by end.
func (c *Conn) begin(kind uint16, flags uint16) {
	c.seq++
	h := [unix.SizeofNlMsghdr]byte{}
	binary.NativeEndian.PutUint16(h[4:], kind)
	binary.NativeEndian.PutUint16(h[6:], flags)
	binary.NativeEndian.PutUint32(h[8:], c.seq)
	c.start = len(c.out)
	c.out = append(c.out, h[:]...)
}

func (c *Conn) attr(kind uint16, value uint32) {
	c.out = binary.NativeEndian.AppendUint16(c.out, unix.SizeofRtAttr+4)
	c.out = binary.NativeEndian.AppendUint16(c.out, kind)
	c.out = binary.NativeEndian.AppendUint32(c.out, value)
}

func (c *Conn) end() { binary.NativeEndian.PutUint32(c.out[c.start:], uint32(len(c.out)-c.start)) }
