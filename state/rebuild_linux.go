package state

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostEndPrefix starts the names that tapir gives to devices in the host's network namespace. Only a TAP there may have one of its
// user's.
const hostEndPrefix = "tpr"

// OwnDevice tells whether a device of the host's network namespace is one that tapir made, and whose. An alias alone anybody may set:
// name or ifindex must fit as well.
func OwnDevice(a *netlink.LinkAttrs) (Key, bool) {
	if !strings.HasPrefix(a.Name, hostEndPrefix) && !OwnIndex(a.Index) {
		return Key{}, false
	}
	return ParseAlias(a.Alias)
}

// ScanKernel finds the attachments whose devices are in the network namespace of the calling thread, which is the
// host's: those that are an [OwnDevice]. Addresses are those of the host routes and of the permanent neighbours on the device; their
// on-link prefix length, gateway, the netns and what only the configuration knows stay unset. The order is that of
// the kernel's ifindexes.
func ScanKernel(ctx context.Context) ([]Attachment, error) {
	links, err := dump(ctx, "links", netlink.LinkList)
	if err != nil {
		return nil, err
	}
	byIndex := map[int]*Attachment{}
	var order []int
	for _, link := range links {
		attrs := link.Attrs()
		key, ok := OwnDevice(attrs)
		if !ok {
			continue
		}
		a := &Attachment{Key: key, Status: Ready, Created: time.Now().UTC(), MTU: attrs.MTU, Rebuilt: true}
		device := Device{Name: attrs.Name, Index: attrs.Index, MAC: attrs.HardwareAddr.String()}
		if link.Type() == "veth" {
			a.Placement = PlacementPod
			a.Host = device
			// The peer's name is CNI_IFNAME, which an operator may have changed since; its index is the kernel's.
			a.Pod = Device{Name: key.IfName, Index: attrs.ParentIndex}
			if a.XDP, err = scanXDP(attrs); err != nil {
				return nil, err
			}
		} else {
			a.Placement = PlacementHost
			a.TAP, a.TxQueue = device, attrs.TxQLen
			// How many queues a multi-queue TAP was made for the kernel does not know.
			if tun, ok := link.(*netlink.Tuntap); ok && tun.Flags&netlink.TUNTAP_MULTI_QUEUE == 0 {
				a.Queues = 1
			}
		}
		byIndex[attrs.Index] = a
		order = append(order, attrs.Index)
	}
	if len(byIndex) == 0 {
		return nil, nil
	}
	if err := scanRoutes(ctx, byIndex); err != nil {
		return nil, err
	}
	if err := scanNeighbours(ctx, byIndex); err != nil {
		return nil, err
	}
	found := make([]Attachment, 0, len(order))
	for _, index := range order {
		a := byIndex[index]
		slices.SortStableFunc(a.Addresses, func(x, y Address) int { return x.Prefix.Addr().Compare(y.Prefix.Addr()) })
		found = append(found, *a)
	}
	return found, nil
}

// scanXDP tells what is on the XDP hook of the TAP, which is the first of its attachment's block of ifindexes, by the id that the
// sandbox has here: where the sandbox is nobody knows any more.
func scanXDP(hostEnd *netlink.LinkAttrs) (XDP, error) {
	if hostEnd.NetNsID < 0 || !OwnIndex(hostEnd.Index) {
		return XDP{}, nil
	}
	mode, err := rtnl.XDPMode(hostEnd.NetNsID, hostEnd.Index/blockSize*blockSize)
	return XDP{Wanted: mode, Mode: mode}, err
}

// scanRoutes takes host routes to pods as their addresses.
func scanRoutes(ctx context.Context, byIndex map[int]*Attachment) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := dump(ctx, "routes", func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			return err
		}
		for _, route := range routes {
			a := byIndex[route.LinkIndex]
			if a == nil || route.Dst == nil || route.Gw != nil {
				continue
			}
			if ones, bits := route.Dst.Mask.Size(); ones == bits {
				a.addAddress(route.Dst.IP)
			}
		}
	}
	return nil
}

// scanNeighbours takes permanent neighbours as addresses of the guest, and their MAC as the guest's.
func scanNeighbours(ctx context.Context, byIndex map[int]*Attachment) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		neighbours, err := dump(ctx, "neighbours", func() ([]netlink.Neigh, error) { return netlink.NeighList(0, family) })
		if err != nil {
			return err
		}
		for _, n := range neighbours {
			a := byIndex[n.LinkIndex]
			if a == nil || n.State&netlink.NUD_PERMANENT == 0 || len(n.HardwareAddr) != 6 {
				continue
			}
			if a.addAddress(n.IP) {
				a.GuestMAC = n.HardwareAddr.String()
			}
		}
	}
	return nil
}

// addAddress adds an address once; ok is false for one that no guest is given: link-local, multicast.
func (a *Attachment) addAddress(ip net.IP) (ok bool) {
	addr, valid := netip.AddrFromSlice(ip)
	addr = addr.Unmap()
	if !valid || !addr.IsGlobalUnicast() {
		return false
	}
	known := slices.ContainsFunc(a.Addresses, func(x Address) bool { return x.Prefix.Addr() == addr })
	if !known {
		a.Addresses = append(a.Addresses, Address{Prefix: netip.PrefixFrom(addr, addr.BitLen())})
	}
	return true
}

// dumpTries bounds how often a dump is made again that the kernel says was changed meanwhile (NLM_F_DUMP_INTR).
const dumpTries = 20

func dump[T any](ctx context.Context, what string, list func() ([]T, error)) ([]T, error) {
	for try := 1; ; try++ {
		found, err := list()
		if err == nil {
			return found, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == dumpTries {
			return nil, fmt.Errorf("list %s of the host: %w", what, err)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("list %s of the host: %w", what, context.Cause(ctx))
		}
	}
}
