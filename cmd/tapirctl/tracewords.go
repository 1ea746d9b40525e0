package main

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// meanings are the reasons of the shortcut's programs in words, without the hook. docs/xdp.md has the same.
var meanings = map[string]string{
	"to_guest":           "into the TAP of a guest of this node",
	"to_uplink":          "out of the uplink to the next hop",
	"checksum_completed": "a partial checksum was completed",
	"conntrack_lookup":   "conntrack was asked for the flow",
	"pass_generic":       "no native run: GSO, larger than a page, or a blocking writer",
	"pass_not_ip":        "neither IPv4 nor IPv6, or tagged",
	"pass_not_gateway":   "not to the gateway's MAC",
	"pass_source":        "not from an address of the guest's own; on an uplink, not from behind it",
	"pass_options":       "IPv4 options",
	"pass_ext_headers":   "IPv6 extension headers",
	"pass_fragment":      "a fragment",
	"pass_protocol":      "neither TCP, UDP nor ICMP echo",
	"pass_tunnel":        "a tunnel's UDP port",
	"pass_ttl":           "its TTL or hop limit ends here: the node answers",
	"pass_length":        "its lengths contradict each other",
	"pass_checksum":      "a partial checksum that this run cannot complete",
	"pass_translated":    "an ICMP error of or to a guest with a fixed identity, whose quote tc translates",
	"pass_no_target":     "neither a guest that takes part nor a route",
	"pass_no_device":     "the target's device is gone",
	"pass_no_next_hop":   "the route's next hop is not usable now",
	"pass_mtu":           "longer than the target takes: the node fragments or answers",
	"pass_flagged":       "one end is flagged \"no shortcut\", or has bandwidth limits",
	"pass_conntrack":     "conntrack knows the flow: a Service, a policy or NAT may hold for it",
	"pass_no_request":    "an echo reply whose request did not come this way",
	"pass_lookup_failed": "conntrack could not be asked",
	"drop_spoof_mac":     "from a MAC that is not the guest's",
	"drop_spoof_ipv4":    "from an IPv4 address that is not the guest's",
	"drop_spoof_ipv6":    "from an IPv6 address that is not the guest's",
	"drop_aborted":       "a fault of tapir's after the frame was changed",
}

// linkName is the name of a device of this netns, or its ifindex.
func linkName(index int) string {
	if link, err := netlink.LinkByIndex(index); err == nil {
		return link.Attrs().Name
	}
	return fmt.Sprintf("ifindex %d", index)
}
