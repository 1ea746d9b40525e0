package tap

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Info is what the kernel says of a tun device.
type Info struct {
	Flags      uint16 // IFF_TAP or IFF_TUN, IFF_NO_PI, IFF_VNET_HDR, IFF_MULTI_QUEUE; no NAPI: that belongs to each open file
	Persistent bool
	Owner      *int // uid; nil: not restricted
	Group      *int // gid; nil: not restricted
	Queues     int  // attached and enabled
	Disabled   int  // attached and disabled
}

// Read asks the kernel for the tun device with that ifindex in the namespace of conn. It opens no queue. A device that
// is none of the tun driver is an error.
func Read(conn *rtnl.Conn, index int) (Info, error) {
	kind, attrs, err := conn.LinkInfo(index)
	if err != nil {
		return Info{}, err
	}
	if kind != "tun" {
		return Info{}, fmt.Errorf("link %d: want a tap, got a %q", index, kind)
	}
	info := Info{Flags: unix.IFF_NO_PI} // IFLA_TUN_PI says when there is a header
	for _, a := range attrs {
		info.set(int(a.Attr.Type&nl.NLA_TYPE_MASK), a.Value)
	}
	return info, nil
}

// set takes one attribute of include/uapi/linux/if_link.h, IFLA_TUN_*.
func (i *Info) set(attr int, v []byte) {
	on := len(v) > 0 && v[0] != 0
	number := func() *int {
		if len(v) < 4 {
			return nil
		}
		n := int(binary.NativeEndian.Uint32(v))
		return &n
	}
	flag := func(bit uint16) {
		if on {
			i.Flags |= bit
		}
	}
	switch attr {
	case nl.IFLA_TUN_OWNER:
		i.Owner = number()
	case nl.IFLA_TUN_GROUP:
		i.Group = number()
	case nl.IFLA_TUN_TYPE:
		if len(v) > 0 {
			i.Flags |= uint16(v[0])
		}
	case nl.IFLA_TUN_PI:
		if on {
			i.Flags &^= unix.IFF_NO_PI
		}
	case nl.IFLA_TUN_VNET_HDR:
		flag(unix.IFF_VNET_HDR)
	case nl.IFLA_TUN_MULTI_QUEUE:
		flag(unix.IFF_MULTI_QUEUE)
	case nl.IFLA_TUN_PERSIST:
		i.Persistent = on
	case nl.IFLA_TUN_NUM_QUEUES:
		if n := number(); n != nil {
			i.Queues = *n
		}
	case nl.IFLA_TUN_NUM_DISABLED_QUEUES:
		if n := number(); n != nil {
			i.Disabled = *n
		}
	}
}

// ErrUnsupported says that the kernel's tun driver lacks what tapir needs.
var ErrUnsupported = errors.New("tun driver")

// Usable reports why no TAP could be made in this namespace, or nil.
func Usable() error {
	fd, err := unix.Open(Device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w%s", Device, err, deviceHint(err))
	}
	defer unix.Close(fd)
	features, err := unix.IoctlGetInt(fd, unix.TUNGETFEATURES)
	if err != nil {
		return fmt.Errorf("read the features of %s: %w", Device, err)
	}
	const need = baseFlags | unix.IFF_MULTI_QUEUE
	if missing := need &^ features; missing != 0 {
		return fmt.Errorf("%w: %s are missing; want Linux 3.8 or newer", ErrUnsupported, FlagNames(uint16(missing)))
	}
	return nil
}
