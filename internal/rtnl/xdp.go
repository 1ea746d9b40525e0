package rtnl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of include/uapi/linux/if_link.h.
const (
	iflaTargetNetnsID = 46 // IFLA_TARGET_NETNSID
	iflaXDPAttached   = 2  // IFLA_XDP_ATTACHED
	xdpAttachedDriver = 1  // XDP_ATTACHED_DRV
	xdpAttachedSKB    = 2  // XDP_ATTACHED_SKB
)

// XDPMode is how a program is on the XDP hook of a link in the network namespace that the calling thread's knows by that id: "native",
// "generic", or empty for none or no such link.
func XDPMode(nsid, index int) (string, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(iflaTargetNetnsID, nl.Uint32Attr(uint32(nsid))))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if Gone(err) || errors.Is(err, unix.EINVAL) { // no such link, or no such namespace any more
		return "", nil
	}
	if err != nil || len(msgs) == 0 {
		return "", fmt.Errorf("read link %d in netns id %d: %w", index, nsid, err)
	}
	attrs, err := nl.ParseRouteAttr(msgs[0][unix.SizeofIfInfomsg:])
	if err != nil {
		return "", fmt.Errorf("read link %d in netns id %d: %w", index, nsid, err)
	}
	for _, a := range attrs {
		if a.Attr.Type&nl.NLA_TYPE_MASK != unix.IFLA_XDP {
			continue
		}
		nested, err := nl.ParseRouteAttr(a.Value)
		if err != nil {
			return "", fmt.Errorf("read link %d in netns id %d: %w", index, nsid, err)
		}
		for _, n := range nested {
			if n.Attr.Type == iflaXDPAttached && len(n.Value) > 0 {
				return map[byte]string{xdpAttachedDriver: "native", xdpAttachedSKB: "generic"}[n.Value[0]], nil
			}
		}
	}
	return "", nil
}
