package rtnl

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Neighbour is the entry of one address on one link; nil where there is none. It needs Linux 5.0.
func (c *Conn) Neighbour(index int, addr netip.Addr) (*netlink.Neigh, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.Sockets = c.sockets
	req.AddData(&netlink.Ndmsg{Family: uint8(familyOf(addr)), Index: uint32(index)})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, addr.AsSlice()))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if Gone(err) {
		return nil, nil
	}
	if err != nil || len(msgs) == 0 {
		return nil, fmt.Errorf("look up neighbour %s on link %d: %w", addr, index, err)
	}
	n, err := netlink.NeighDeserialize(msgs[0])
	if err != nil {
		return nil, fmt.Errorf("look up neighbour %s on link %d: %w", addr, index, err)
	}
	return n, nil
}

// UseNeighbour tells the kernel that the address is about to be sent to: it resolves what it does not know, and confirms what is
// stale (NTF_USE, include/uapi/linux/neighbour.h).
func (c *Conn) UseNeighbour(index int, addr netip.Addr) error {
	err := c.NeighSet(&netlink.Neigh{LinkIndex: index, Family: familyOf(addr), IP: addr.AsSlice(), Flags: netlink.NTF_USE})
	if err != nil {
		return fmt.Errorf("ask for neighbour %s on link %d: %w", addr, index, err)
	}
	return nil
}

func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
