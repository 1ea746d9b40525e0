package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/test/bench/node"
)

// floorGroup is the IFLA_GROUP of the devices that groupDelete makes.
const floorGroup = 4711

// groupDelete makes, in the netns at path, a TAP and one end of a veth whose other end is on the node, all up, and times
// the one request that deletes what is in the netns. No DEL of such an attachment can be faster than the kernel here.
func groupDelete(path string) (took time.Duration, err error) {
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(home)
	err = node.In(path, func() (failed error) {
		if failed = createPair(home); failed != nil {
			return failed
		}
		time.Sleep(pause)
		took, failed = timeGroupDelete()
		return failed
	})
	return took, err
}

func timeGroupDelete() (time.Duration, error) {
	// RTM_DELLINK of a group is ifindex 0 and IFLA_GROUP alone (rtnl_group_dellink in net/core/rtnetlink.c).
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(floorGroup)))
	begin := time.Now()
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	took := time.Since(begin)
	if err != nil {
		return 0, fmt.Errorf("delete group %d: %w", floorGroup, err)
	}
	for _, name := range []string{"floor-tap", "floor-pod"} {
		_, err := netlink.LinkByName(name)
		if _, gone := errors.AsType[netlink.LinkNotFoundError](err); !gone {
			return 0, fmt.Errorf("look for %s after its group was deleted: want none, got error %v", name, err)
		}
	}
	return took, nil
}

// createPair makes the devices in the calling thread's netns, the veth's other end in the netns behind home.
func createPair(home int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "floor-tap"
	tun := &netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR}
	if err := netlink.LinkAdd(tun); err != nil {
		return fmt.Errorf("create the TAP: %w", err)
	}
	attrs.Name = "floor-pod"
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "floor-host", PeerNamespace: netlink.NsFd(home)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("create the veth: %w", err)
	}
	for _, name := range []string{"floor-tap", "floor-pod"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		noqueue := &netlink.GenericQdisc{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT},
			QdiscType:  "noqueue",
		}
		if err := netlink.QdiscReplace(noqueue); err != nil {
			return fmt.Errorf("set noqueue on %s: %w", name, err)
		}
		if err := netlink.LinkSetGroup(link, floorGroup); err != nil {
			return fmt.Errorf("set the group of %s: %w", name, err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	host, err := netlink.NewHandleAt(netns.NsHandle(home))
	if err != nil {
		return err
	}
	defer host.Close()
	end, err := host.LinkByName("floor-host")
	if err != nil {
		return err
	}
	return host.LinkSetUp(end)
}
