package rtnl

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Attributes of rtnetlink that golang.org/x/sys/unix does not name (include/uapi/linux/if_link.h).
const (
	iflaInet6AddrGenMode = 8 // IFLA_INET6_ADDR_GEN_MODE
	addrGenModeNone      = 1 // IN6_ADDR_GEN_MODE_NONE
)

// End is one end of a veth pair as [Conn.CreateVeth] makes it.
type End struct {
	Name  string
	Index int // 0: the kernel chooses
	MAC   net.HardwareAddr
	MTU   int
	Group uint32
}

func (e End) attrs() []*nl.RtAttr {
	as := []*nl.RtAttr{
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(e.Name)),
		nl.NewRtAttr(unix.IFLA_ADDRESS, e.MAC),
		nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(e.MTU))),
		// The veth carries one flow of skbs between two namespaces without a lock; queues for each CPU would only
		// cost memory (drivers/net/veth.c, veth_get_num_queues).
		nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(1)),
		nl.NewRtAttr(unix.IFLA_NUM_RX_QUEUES, nl.Uint32Attr(1)),
	}
	if e.Group != 0 {
		as = append(as, nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(e.Group)))
	}
	return as
}

// CreateVeth creates a veth pair: here in the namespace of the connection, there in the namespace that nsFD refers to.
// Neither end may exist (EEXIST) and no ifindex be taken (EBUSY, EEXIST).
func (c *Conn) CreateVeth(here, there End, nsFD int) error {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(here.Index)

	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC).Index = int32(there.Index)
	for _, a := range there.attrs() {
		peer.AddChild(a)
	}
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(nsFD)))

	data := []nl.NetlinkRequestData{msg}
	for _, a := range here.attrs() {
		data = append(data, a)
	}
	data = append(data, info)
	if err := c.do(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, data...); err != nil {
		return fmt.Errorf("create veth pair %q and %q: %w", here.Name, there.Name, err)
	}
	return nil
}

// Settings are what [Conn.Configure] sets on a link; the zero value of a field leaves it alone.
type Settings struct {
	MAC        net.HardwareAddr
	MTU        int
	TxQueueLen int
	Group      uint32
	Alias      string
	NoIPv6Addr bool // IPv6 makes no address of its own here (addr_gen_mode none)
	Up         bool
	Name       string // of the link, for the error text
}

// Configure sets all of s on the link with that ifindex in one request. A kernel without IPv6 has no address
// generation to turn off, and the rest is set without it.
func (c *Conn) Configure(index int, s Settings) error {
	err := c.configure(index, s)
	if s.NoIPv6Addr && errors.Is(err, unix.EAFNOSUPPORT) {
		s.NoIPv6Addr = false
		err = c.configure(index, s)
	}
	if err != nil {
		return fmt.Errorf("configure %q: %w", s.Name, err)
	}
	return nil
}

func (c *Conn) configure(index int, s Settings) error {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	if s.Up {
		msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	}
	data := []nl.NetlinkRequestData{msg}
	add := func(a *nl.RtAttr) { data = append(data, a) }
	if s.MAC != nil {
		add(nl.NewRtAttr(unix.IFLA_ADDRESS, s.MAC))
	}
	if s.MTU != 0 {
		add(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(s.MTU))))
	}
	if s.TxQueueLen != 0 {
		add(nl.NewRtAttr(unix.IFLA_TXQLEN, nl.Uint32Attr(uint32(s.TxQueueLen))))
	}
	if s.Group != 0 {
		add(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(s.Group)))
	}
	if s.Alias != "" {
		add(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(s.Alias)))
	}
	if s.NoIPv6Addr {
		spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
		spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(iflaInet6AddrGenMode, []byte{addrGenModeNone})
		add(spec)
	}
	return c.do(unix.RTM_SETLINK, 0, data...)
}

// DeleteGroup deletes every link of the namespace that is in the group, in one go, so that they share the
// kernel's RCU waits. An empty group is success.
func (c *Conn) DeleteGroup(group uint32) error {
	err := c.do(unix.RTM_DELLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)))
	if err != nil && !Gone(err) {
		return fmt.Errorf("delete link group %d: %w", group, err)
	}
	return nil
}

// DeleteLink deletes the link with that ifindex. One that is not there is success.
func (c *Conn) DeleteLink(index int) error {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	if err := c.do(unix.RTM_DELLINK, 0, msg); err != nil && !Gone(err) {
		return fmt.Errorf("delete link %d: %w", index, err)
	}
	return nil
}

// SetNoqueue makes noqueue the root qdisc of the link, before it is up: a multi-queue TAP with the default qdisc
// costs 6 MB of kernel memory.
func (c *Conn) SetNoqueue(index int) error {
	q := &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT},
		QdiscType:  "noqueue",
	}
	if err := c.QdiscReplace(q); err != nil {
		return fmt.Errorf("set qdisc noqueue: %w", err)
	}
	return nil
}

// RootQdisc is the kind of the link's root qdisc, such as "noqueue"; empty where the kernel shows none.
func (c *Conn) RootQdisc(index int) (string, error) {
	qdiscs, err := dump(func() ([]netlink.Qdisc, error) {
		return c.QdiscList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}})
	})
	if err != nil {
		return "", fmt.Errorf("list qdiscs: %w", err)
	}
	for _, q := range qdiscs {
		if q.Attrs().Parent == netlink.HANDLE_ROOT {
			return q.Type(), nil
		}
	}
	return "", nil
}

// linkAttrs are the attributes of a link as the kernel gives them.
func (c *Conn) linkAttrs(index int) ([]syscall.NetlinkRouteAttr, error) {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	req.Sockets = c.sockets
	req.AddData(msg)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err == nil && len(msgs) == 0 {
		err = unix.ENODEV
	}
	if err != nil {
		return nil, fmt.Errorf("read link %d: %w", index, err)
	}
	attrs, err := nl.ParseRouteAttr(msgs[0][unix.SizeofIfInfomsg:])
	if err != nil {
		return nil, fmt.Errorf("read link %d: %w", index, err)
	}
	return attrs, nil
}

// LinkInfo is the kind of a link and the attributes that its driver adds (IFLA_LINKINFO).
func (c *Conn) LinkInfo(index int) (kind string, data []syscall.NetlinkRouteAttr, err error) {
	attrs, err := c.linkAttrs(index)
	if err != nil {
		return "", nil, err
	}
	for _, a := range attrs {
		if a.Attr.Type&nl.NLA_TYPE_MASK != unix.IFLA_LINKINFO {
			continue
		}
		nested, err := nl.ParseRouteAttr(a.Value)
		if err != nil {
			return "", nil, fmt.Errorf("read link %d: %w", index, err)
		}
		for _, n := range nested {
			switch n.Attr.Type & nl.NLA_TYPE_MASK {
			case nl.IFLA_INFO_KIND:
				kind = unix.ByteSliceToString(n.Value)
			case nl.IFLA_INFO_DATA:
				if data, err = nl.ParseRouteAttr(n.Value); err != nil {
					return "", nil, fmt.Errorf("read link %d: %w", index, err)
				}
			}
		}
	}
	return kind, data, nil
}
