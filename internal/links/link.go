// Package links reads and watches the links of all network namespaces from one: rtnetlink requests that name their
// namespace by nsid (IFLA_TARGET_NETNSID), many in one message, and one socket that hears of the changes in every namespace that
// has an nsid here (NETLINK_LISTEN_ALL_NSID). No thread enters a namespace.
package links

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Here is the nsid that stands for the namespace of the socket itself.
const Here = -1

// Ref names a link: the nsid that its namespace has in the socket's, or [Here], and its ifindex.
type Ref struct {
	NSID  int
	Index int
}

func (r Ref) String() string {
	if r.NSID == Here {
		return fmt.Sprintf("link %d", r.Index)
	}
	return fmt.Sprintf("link %d of nsid %d", r.Index, r.NSID)
}

// Link is what one RTM_NEWLINK message says.
type Link struct {
	Ref        `json:"-"`
	Name       string `json:"name"`
	Alias      string `json:"-"`          // ifalias
	Kind       string `json:"kind"`       // "tun", "veth"; empty for hardware
	Up         bool   `json:"up"`         // IFF_UP
	Carrier    bool   `json:"carrier"`    // IFF_LOWER_UP: of a TAP, a queue is attached while it is up
	MTU        int    `json:"mtu"`        // bytes
	TxQueueLen int    `json:"txQueueLen"` // frames
	CarrierUps uint32 `json:"carrierUps"` // times that the carrier came, since the link was made; 0 before Linux 4.16
	PeerNSID   int    `json:"-"`          // of a veth: the nsid of its peer's namespace; [Here] where it is the same, or none has been given
	PeerIndex  int    `json:"-"`          // of a veth: the ifindex of its peer

	Multi    bool `json:"multi,omitempty"`    // of a TAP: IFF_MULTI_QUEUE
	Queues   int  `json:"queues"`             // of a TAP: attached and enabled. Without IFF_MULTI_QUEUE the driver does not count, and it is the carrier
	Disabled int  `json:"disabled,omitempty"` // of a TAP: attached and disabled by TUNSETQUEUE

	Stats Stats `json:"stats"`
}

// Stats are the counters of a link as its own namespace sees them: received is what came out of the driver, of a TAP what the guest sent
// (struct rtnl_link_stats64 of include/uapi/linux/if_link.h).
type Stats struct {
	RxFrames  uint64 `json:"rxFrames"`
	TxFrames  uint64 `json:"txFrames"`
	RxBytes   uint64 `json:"rxBytes"`
	TxBytes   uint64 `json:"txBytes"`
	RxErrors  uint64 `json:"rxErrors"`
	TxErrors  uint64 `json:"txErrors"`
	RxDropped uint64 `json:"rxDropped"`
	TxDropped uint64 `json:"txDropped"` // of a TAP: frames to the guest that found no room in the ring, or no queue
}

// parse reads the body of an RTM_NEWLINK or RTM_DELLINK message.
func (l *Link) parse(b []byte) error {
	if len(b) < unix.SizeofIfInfomsg {
		return fmt.Errorf("link message: want at least %d bytes, got %d", unix.SizeofIfInfomsg, len(b))
	}
	order := binary.NativeEndian
	flags := order.Uint32(b[8:])
	l.Index = int(order.Uint32(b[4:]))
	l.Up, l.Carrier, l.PeerNSID = flags&unix.IFF_UP != 0, flags&unix.IFF_LOWER_UP != 0, Here
	err := eachAttr(b[unix.SizeofIfInfomsg:], func(kind uint16, v []byte) error {
		switch kind {
		case unix.IFLA_IFNAME:
			l.Name = unix.ByteSliceToString(v)
		case unix.IFLA_IFALIAS:
			l.Alias = unix.ByteSliceToString(v)
		case unix.IFLA_MTU:
			l.MTU = int(number(v))
		case unix.IFLA_TXQLEN:
			l.TxQueueLen = int(number(v))
		case unix.IFLA_LINK:
			l.PeerIndex = int(number(v))
		case unix.IFLA_LINK_NETNSID:
			l.PeerNSID = int(int32(number(v)))
		case unix.IFLA_CARRIER_UP_COUNT:
			l.CarrierUps = number(v)
		case unix.IFLA_LINKINFO:
			return l.parseInfo(v)
		case unix.IFLA_STATS64:
			l.Stats.parse(v)
		}
		return nil
	})
	if l.Kind == "tun" && !l.Multi && l.Carrier {
		l.Queues = 1
	}
	return err
}

func (l *Link) parseInfo(b []byte) error {
	return eachAttr(b, func(kind uint16, v []byte) error {
		switch kind {
		case nl.IFLA_INFO_KIND:
			l.Kind = unix.ByteSliceToString(v)
		case nl.IFLA_INFO_DATA:
			if l.Kind != "tun" {
				return nil
			}
			return eachAttr(v, func(kind uint16, v []byte) error {
				switch kind {
				case nl.IFLA_TUN_MULTI_QUEUE:
					l.Multi = len(v) > 0 && v[0] != 0
				case nl.IFLA_TUN_NUM_QUEUES:
					l.Queues = int(number(v))
				case nl.IFLA_TUN_NUM_DISABLED_QUEUES:
					l.Disabled = int(number(v))
				}
				return nil
			})
		}
		return nil
	})
}

func (s *Stats) parse(b []byte) {
	for i, to := range []*uint64{&s.RxFrames, &s.TxFrames, &s.RxBytes, &s.TxBytes, &s.RxErrors, &s.TxErrors, &s.RxDropped, &s.TxDropped} {
		if len(b) < 8*(i+1) {
			return
		}
		*to = binary.NativeEndian.Uint64(b[8*i:])
	}
}

// eachAttr calls fn with each attribute of a message.
func eachAttr(b []byte, fn func(kind uint16, v []byte) error) error {
	for len(b) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return fmt.Errorf("attribute: want %d to %d bytes, got %d", unix.SizeofRtAttr, len(b), size)
		}
		if err := fn(binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK, b[unix.SizeofRtAttr:size]); err != nil {
			return err
		}
		b = b[min(align(size), len(b)):]
	}
	return nil
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// number is an attribute of four bytes; 0 where it is shorter.
func number(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(v)
}
