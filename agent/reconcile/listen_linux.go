package reconcile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// notice is something that the kernel told of.
type notice struct {
	index int        // a device's, of any namespace: those of tapir's own are unique on the node
	addr  netip.Addr // the destination of a host route
	node  bool       // sysctls of all devices, or tapir's nftables table
	rules bool       // rules of routing
	lost  bool       // there was more to tell than there was room for
}

// ear hears of links, addresses, routes, neighbours, rules, sysctls, qdiscs and filters in all namespaces that this one knows, and of
// nftables in this one.
type ear struct{ route, nft *os.File }

// Groups of nftables' messages and types in them (include/uapi/linux/netfilter/nfnetlink.h, nf_tables.h).
const (
	nftGroup    = 7 // NFNLGRP_NFTABLES
	nftDelTable = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELTABLE
	nftDelChain = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELCHAIN
	nftDelRule  = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELRULE
	nftDelSet   = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELSET
	nftDelElem  = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELSETELEM
	nftTable    = 1 // NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_TABLE, NFTA_SET_ELEM_LIST_TABLE
)

// tapirTable is the table of package plugin.
const tapirTable = "tapir"

// buffer is what waits to be read, in bytes.
const buffer = 4 << 20

var routeGroups = []int{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_TC, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
	unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
}

// listen opens an ear. It needs CAP_NET_BROADCAST, as package watch does.
func listen() (_ *ear, err error) {
	e := &ear{}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.route, err = openSocket(unix.NETLINK_ROUTE, true, routeGroups...); err != nil {
		return nil, fmt.Errorf("listen to rtnetlink: %w", err)
	}
	if e.nft, err = openSocket(unix.NETLINK_NETFILTER, false, nftGroup); errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOENT) {
		err = nil // a kernel without nftables masquerades nothing
	}
	if err != nil {
		return nil, fmt.Errorf("listen to nftables: %w", err)
	}
	return e, nil
}

func openSocket(family int, everywhere bool, groups ...int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, family)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "netlink")
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer); errors.Is(err, unix.EPERM) {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
	}
	if err == nil && everywhere {
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	for _, g := range groups {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// close ends run.
func (e *ear) close() (err error) {
	for _, f := range []*os.File{e.route, e.nft} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// run calls each until the ear is closed.
func (e *ear) run(each func(notice)) error {
	var both sync.WaitGroup
	var nftErr error
	if e.nft != nil {
		both.Go(func() { nftErr = receive(e.nft, parseNFT, each) })
	}
	err := receive(e.route, parseRoute, each)
	if err != nil {
		err = errors.Join(err, e.close())
	}
	both.Wait()
	return errors.Join(err, nftErr)
}

func receive(f *os.File, parse func(kind uint16, body []byte) (notice, bool), each func(notice)) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil //nolint:nilerr // it was closed
	}
	in := make([]byte, 64<<10)
	for {
		var n int
		var recvErr error
		err := raw.Read(func(fd uintptr) bool {
			n, _, recvErr = unix.Recvfrom(int(fd), in, unix.MSG_TRUNC)
			return !errors.Is(recvErr, unix.EAGAIN)
		})
		switch {
		case err != nil:
			return nil // closed: there is no deadline
		case errors.Is(recvErr, unix.EINTR):
		case errors.Is(recvErr, unix.ENOBUFS), recvErr == nil && n > len(in):
			each(notice{lost: true})
		case recvErr != nil:
			return os.NewSyscallError("receive from netlink", recvErr)
		default:
			eachMessage(in[:n], func(kind uint16, body []byte) {
				if got, ok := parse(kind, body); ok {
					each(got)
				}
			})
		}
	}
}

func eachMessage(b []byte, fn func(kind uint16, body []byte)) {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return
		}
		fn(binary.NativeEndian.Uint16(b[4:]), b[unix.SizeofNlMsghdr:size])
		b = b[min(len(b), (size+3)&^3):]
	}
}

func eachAttr(b []byte, fn func(kind uint16, v []byte)) {
	for len(b) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return
		}
		fn(binary.NativeEndian.Uint16(b[2:])&syscallAttrMask, b[unix.SizeofRtAttr:size])
		b = b[min(len(b), (size+3)&^3):]
	}
}

// syscallAttrMask leaves out NLA_F_NESTED and NLA_F_NET_BYTEORDER.
const syscallAttrMask = 0x3fff

func parseRoute(kind uint16, b []byte) (n notice, ok bool) {
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR, unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH,
		unix.RTM_NEWQDISC, unix.RTM_DELQDISC, unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER:
		if len(b) >= 8 { // in each of the structs the ifindex stands after four bytes
			return notice{index: int(int32(binary.NativeEndian.Uint32(b[4:])))}, true
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(b) < unix.SizeofRtMsg {
			return n, false
		}
		bits := int(b[1])
		eachAttr(b[unix.SizeofRtMsg:], func(kind uint16, v []byte) {
			switch {
			case kind == syscall.RTA_OIF && len(v) == 4:
				n.index = int(int32(binary.NativeEndian.Uint32(v)))
			case kind == syscall.RTA_DST && bits == 8*len(v):
				n.addr, _ = netip.AddrFromSlice(v)
			}
		})
		return n, true
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return notice{rules: true}, true
	case unix.RTM_NEWNETCONF, unix.RTM_DELNETCONF:
		const ofIndex = 1 // NETCONFA_IFINDEX; below 0 it is of all devices, or the default
		if len(b) < 4 {
			return n, false
		}
		eachAttr(b[4:], func(kind uint16, v []byte) {
			if kind == ofIndex && len(v) == 4 {
				n.index = int(int32(binary.NativeEndian.Uint32(v)))
			}
		})
		n.node = n.index < 0
		return n, true
	}
	return n, false
}

// parseNFT hears of what is taken out of tapir's table.
func parseNFT(kind uint16, b []byte) (n notice, ok bool) {
	switch kind {
	case nftDelTable, nftDelChain, nftDelRule, nftDelSet, nftDelElem:
	default:
		return n, false
	}
	if len(b) < 4 { // struct nfgenmsg
		return n, false
	}
	eachAttr(b[4:], func(kind uint16, v []byte) {
		ok = ok || kind == nftTable && unix.ByteSliceToString(v) == tapirTable
	})
	return notice{node: true}, ok
}
