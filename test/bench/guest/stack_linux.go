package guest

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/test/bench/node"
	"github.com/vishvananda/netlink"
)

// StackTAP is the name of the TAP in a guest's netns.
const StackTAP = "guest0"

// stackRing is the ring of that TAP in frames: longer than a receiver's window, because the tun driver drops what does not
// fit where a virtio-net driver would stop its queue.
const stackRing = 1 << 14

// Stack is what a guest with the kernel's own network stack is told.
type Stack struct {
	Netns   string // path; the guest
	MAC     net.HardwareAddr
	Address netip.Prefix
	Gateway netip.Addr
	MTU     int
}

// Create makes the guest's one interface, a TAP in its netns, with MAC, address and default route. [Open] opens its other
// side.
func (s Stack) Create() error {
	if err := node.In(s.Netns, s.create); err != nil {
		return fmt.Errorf("make a guest of netns %s: %w", s.Netns, err)
	}
	return nil
}

func (s Stack) create() error {
	if err := tap.Create(tap.Spec{Name: StackTAP, Queues: 1}); err != nil {
		return err
	}
	link, err := netlink.LinkByName(StackTAP)
	if err != nil {
		return err
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: s.Address.Addr().AsSlice(), Mask: net.CIDRMask(s.Address.Bits(), s.Address.Addr().BitLen())}}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"set the MAC", func() error { return netlink.LinkSetHardwareAddr(link, s.MAC) }},
		{"set the MTU", func() error { return netlink.LinkSetMTU(link, s.MTU) }},
		{"set the ring's length", func() error { return netlink.LinkSetTxQLen(link, stackRing) }},
		{"set it up", func() error { return netlink.LinkSetUp(link) }},
		{"add the address", func() error { return netlink.AddrAdd(link, address) }},
		{"add the default route", func() error {
			return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: s.Gateway.AsSlice()})
		}},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}
