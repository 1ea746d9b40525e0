package uplink

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// change is what may have changed since somebody looked.
type change struct {
	all        bool // read everything anew
	entries    bool // the map's routes
	neighbours map[netip.Addr]bool
	prefixes   map[netip.Prefix]bool // routes to them
	devices    map[int]bool
}

func (c change) empty() bool {
	return !c.all && !c.entries && len(c.neighbours)+len(c.prefixes)+len(c.devices) == 0
}

// touches reports whether a route's hop, which is h now, may be another.
func (c change) touches(rt Route, h Hop) bool {
	if c.all || c.neighbours[rt.Via] || c.devices[h.Dev] && h.Dev != 0 {
		return true
	}
	for p := range c.prefixes {
		if p.Overlaps(rt.Prefix) || p.Contains(rt.Via) {
			return true
		}
	}
	return false
}

// changes collects changes until they are taken.
type changes struct {
	C chan struct{} // has something to take

	mu  sync.Mutex
	now change
}

func newChanges() *changes { return &changes{C: make(chan struct{}, 1)} }

func (c *changes) add(fn func(*change)) {
	c.mu.Lock()
	if c.now.neighbours == nil {
		c.now.neighbours, c.now.prefixes, c.now.devices = map[netip.Addr]bool{}, map[netip.Prefix]bool{}, map[int]bool{}
	}
	fn(&c.now)
	some := !c.now.empty()
	c.mu.Unlock()
	if some {
		select {
		case c.C <- struct{}{}:
		default:
		}
	}
}

func (c *changes) take() change {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.now
	c.now = change{}
	return out
}

// note adds what one event of rtnetlink says. What it does not understand changes everything.
func (c *change) note(m syscall.NetlinkMessage) {
	switch m.Header.Type {
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		n, err := netlink.NeighDeserialize(m.Data)
		if err != nil {
			c.all = true
			return
		}
		if a, ok := netip.AddrFromSlice(n.IP); ok {
			c.neighbours[a.Unmap()] = true
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		p, ok := routePrefix(m.Data)
		if !ok {
			c.all = true
			return
		}
		c.prefixes[p] = true
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(m.Data) < unix.SizeofIfInfomsg {
			c.all = true
			return
		}
		c.devices[int(int32(binary.NativeEndian.Uint32(m.Data[4:])))] = true
	default: // rules, next-hop objects
		c.all = true
	}
}

// routePrefix is the destination of a route message (struct rtmsg, include/uapi/linux/rtnetlink.h).
func routePrefix(data []byte) (netip.Prefix, bool) {
	if len(data) < unix.SizeofRtMsg {
		return netip.Prefix{}, false
	}
	attrs, err := nl.ParseRouteAttr(data[unix.SizeofRtMsg:])
	if err != nil {
		return netip.Prefix{}, false
	}
	addr := netip.IPv4Unspecified()
	if data[0] == unix.AF_INET6 {
		addr = netip.IPv6Unspecified()
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.RTA_DST {
			if got, ok := netip.AddrFromSlice(a.Value); ok {
				addr = got
			}
		}
	}
	p := netip.PrefixFrom(addr, int(data[1]))
	return p, p.IsValid()
}
