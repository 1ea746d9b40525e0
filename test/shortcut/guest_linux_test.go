package shortcut_test

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/microvm/stream"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The families, as indexes of addresses.
const (
	ipv4 = 0
	ipv6 = 1
)

var families = [2]string{"IPv4", "IPv6"}

// A machine is a pod with a guest: a netns with the kernel's own stack behind a TAP, whose other side a pump joins to the
// pod's TAP.
type machine struct {
	*pod
	inside string       // path of the guest's netns
	queue  *guest.Queue // of the pod's TAP
	port   *guest.Queue // of the guest's TAP
	pump   *guest.Pump
}

// boot attaches a pod and starts a guest on it.
func (n *node) boot(id string, c object) *machine {
	n.t.Helper()
	p := n.pod(id, c)
	m := &machine{pod: p, inside: testnode.NewNetns(n.t)}
	m.createStack(mtu)
	var err error
	m.queue, err = guest.Open(p.netns, p.result.tap, guest.OffloadNone)
	check(n.t, err)
	n.t.Cleanup(func() { check(n.t, m.queue.Close()) })
	m.port, err = guest.Open(m.inside, guest.StackTAP, guest.OffloadNone)
	check(n.t, err)
	n.t.Cleanup(func() { check(n.t, m.port.Close()) })
	m.plug()
	n.t.Cleanup(m.unplug)
	serve(n.t, m.inside)
	return m
}

// createStack makes the guest's interface with the pod's addresses of both families.
func (m *machine) createStack(mtu int) {
	t, r := m.n.t, m.result
	testnode.In(t, m.inside, func() {
		lo, err := netlink.LinkByName("lo")
		check(t, err)
		check(t, netlink.LinkSetUp(lo))
		check(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0))
	})
	check(t, guest.Stack{Netns: m.inside, MAC: r.mac, Address: r.address[ipv4], Gateway: r.gateway[ipv4], MTU: mtu}.Create())
	testnode.In(t, m.inside, func() {
		link, err := netlink.LinkByName(guest.StackTAP)
		check(t, err)
		// Without duplicate detection: it would begin when the queue opens, and keep sockets from the address until then.
		check(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(r.address[ipv6]), Flags: unix.IFA_F_NODAD}))
		check(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: r.gateway[ipv6].AsSlice()}))
	})
}

// plug starts the pump, unplug stops it: while it is out, the test reads and writes the queues.
func (m *machine) plug() { m.pump = guest.StartPump(m.port, m.queue) }

func (m *machine) unplug() {
	if m.pump != nil {
		if err := m.pump.Stop(); err != nil {
			m.n.t.Errorf("%s: %v", m.id, err)
		}
		m.pump = nil
	}
}

// offload sets what the guest's card does for it, in both directions.
func (m *machine) offload(mask int) {
	m.n.t.Helper()
	check(m.n.t, errors.Join(m.queue.SetOffload(mask), m.port.SetOffload(mask)))
}

// addr is the guest's address of that family.
func (m *machine) addr(family int) netip.Addr { return m.result.address[family].Addr() }

// serve answers transfers in a netns until the test ends, on stream.Port of all its addresses.
func serve(t testing.TB, netns string) {
	t.Helper()
	var l net.Listener
	testnode.In(t, netns, func() {
		var err error
		l, err = net.Listen("tcp", net.JoinHostPort("::", strconv.Itoa(stream.Port)))
		check(t, err)
	})
	done := make(chan error, 1)
	go func() { done <- stream.Serve(l) }()
	t.Cleanup(func() { check(t, errors.Join(l.Close(), <-done)) })
}

// connection says how a guest connects.
type connection struct {
	mss     int           // of what this end sends and asks for; 0: the stack's own
	port    int           // own; 0: any
	timeout time.Duration // 0: patience
}

// dial connects from the guest to an address.
func (m *machine) dial(to netip.AddrPort, c connection) (conn net.Conn, err error) {
	m.n.t.Helper()
	d := net.Dialer{Timeout: cmp.Or(c.timeout, patience), Control: func(_, _ string, raw syscall.RawConn) error {
		var set error
		failed := raw.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			if c.mss > 0 {
				set = errors.Join(set, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, c.mss))
			}
		})
		return errors.Join(failed, set)
	}}
	if c.port > 0 {
		d.LocalAddr = &net.TCPAddr{Port: c.port}
	}
	testnode.In(m.n.t, m.inside, func() { conn, err = d.DialContext(context.Background(), "tcp", to.String()) })
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(patience))
	}
	return conn, err
}

// move uploads n bytes to a server and downloads as many, on two connections, each compared byte by byte.
func (m *machine) move(to netip.AddrPort, n int64, c connection) error {
	m.n.t.Helper()
	for i, way := range []func(net.Conn, uint64, int64) (stream.Result, error){stream.Upload, stream.Download} {
		conn, err := m.dial(to, c)
		if err != nil {
			return err
		}
		r, err := way(conn, uint64(n)+uint64(i), n)
		conn.Close()
		if err != nil {
			return err
		}
		if err := r.Err(n); err != nil {
			return err
		}
	}
	return nil
}

// server is where a guest serves transfers.
func (m *machine) server(family int) netip.AddrPort {
	return netip.AddrPortFrom(m.addr(family), stream.Port)
}
