// Package rtnl speaks rtnetlink for what github.com/vishvananda/netlink has no call for: links whose
// ifindex, group and peer are chosen in the creating request, group deletes, and attributes set together in one
// message. A [Conn] stays bound to the network namespace of the thread that opened it.
package rtnl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func init() {
	// The kernel's own words, where it has any, belong in the error.
	nl.EnableErrorMessageReporting = true
}

// Conn is a pair of rtnetlink sockets in one network namespace: the library's handle for the ordinary
// requests and a socket of our own for the rest.
type Conn struct {
	*netlink.Handle
	sockets map[int]*nl.SocketHandle
}

// Open opens a connection in the network namespace of the calling thread. The connection keeps that namespace
// whatever thread uses it later.
func Open() (*Conn, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	if err := errors.Join(s.SetExtAck(true), s.SetSendTimeout(&nl.SocketTimeoutTv), s.SetReceiveTimeout(&nl.SocketTimeoutTv)); err != nil {
		h.Close()
		s.Close()
		return nil, fmt.Errorf("set up rtnetlink: %w", err)
	}
	return &Conn{Handle: h, sockets: map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}}, nil
}

// Close closes both sockets.
func (c *Conn) Close() {
	c.Handle.Close()
	c.sockets[unix.NETLINK_ROUTE].Close()
}

// do sends one request and waits for the kernel's acknowledgement.
func (c *Conn) do(proto, flags int, data ...nl.NetlinkRequestData) error {
	req := nl.NewNetlinkRequest(proto, flags|unix.NLM_F_ACK)
	req.Sockets = c.sockets
	for _, d := range data {
		req.AddData(d)
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// Gone reports whether err says that the object of a delete was not there, which for a delete is success.
func Gone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) ||
		errors.Is(err, unix.EADDRNOTAVAIL) || errors.As(err, &notFound)
}

// maxDumps bounds the repeats of a dump that the kernel marks as interrupted by a concurrent change.
const maxDumps = 50

// Links dumps the links of the namespace; a dump that changes interrupted is repeated.
func (c *Conn) Links() ([]netlink.Link, error) {
	return dump(c.LinkList)
}

// Addresses dumps the addresses of one link, or of all where link is nil.
func (c *Conn) Addresses(link netlink.Link, family int) ([]netlink.Addr, error) {
	return dump(func() ([]netlink.Addr, error) { return c.AddrList(link, family) })
}

// Routes dumps the routes that match filter in the fields of mask, as netlink's RouteListFiltered does.
func (c *Conn) Routes(family int, filter *netlink.Route, mask uint64) ([]netlink.Route, error) {
	return dump(func() ([]netlink.Route, error) { return c.RouteListFiltered(family, filter, mask) })
}

// Neighbours dumps the neighbour entries of one link.
func (c *Conn) Neighbours(index, family int) ([]netlink.Neigh, error) {
	return dump(func() ([]netlink.Neigh, error) { return c.NeighList(index, family) })
}

func dump[T any](list func() ([]T, error)) ([]T, error) {
	var err error
	for range maxDumps {
		var got []T
		if got, err = list(); err == nil {
			return got, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, err
		}
	}
	return nil, err
}
