package cni_test

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// listing is what "tapirctl list -o json" says of an attachment, as far as the tests look.
type listing struct {
	Network, ContainerID, IfName, Status string
	Placement, GuestMAC, DAN             string
	Queues                               int
	TAP, Pod, Host                       struct {
		Name  string
		Index int
	}
	Addresses []struct{ Prefix netip.Prefix }
	Counters  map[string]struct{ Frames, Bytes uint64 }
	Dropped   uint64
}

// list is the listing of one attachment.
func (n *node) list(id string) (l listing) {
	n.t.Helper()
	var all []listing
	n.ctlJSON(&all, "list", id)
	if len(all) != 1 {
		n.t.Fatalf("tapirctl list %s: want one attachment, got %v", id, all)
	}
	return all[0]
}

// sender is the guest, or plain pod, whose frames a spoofing test writes.
type sender struct {
	mac      net.HardwareAddr
	ip4, ip6 netip.Addr
}

// The other attachment's addresses, which the sender has no right to.
var victim4, victim6 = netip.MustParseAddr("10.9.0.99"), netip.MustParseAddr("fd00:9::99")

// forgery is a frame in somebody else's name, and its twin that is legal in just that field.
type forgery struct {
	name      string
	reason    string // under which the forgery is counted
	bad, good []byte
	answered  string // the reason of a twin that is answered at the TAP and goes no further
	always    bool   // dropped without spoofCheck too: no guest is a router
}

// forgeries are those of a sender whose gateway has that MAC.
func forgeries(s sender, gw net.HardwareAddr) []forgery {
	gw4, gw6 := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd00:9::1")
	any4, allNodes := netip.IPv4Unspecified(), netip.MustParseAddr("ff02::1")
	allNodesMAC := net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	local := netip.MustParseAddr("fe80::1234")
	group, groupMAC := solicitedNode(gw6)
	v4 := func(src net.HardwareAddr, from, to netip.Addr, fromPort, toPort int) []byte {
		return eth(gw, src, unix.ETH_P_IP, udp(from, to, fromPort, toPort, []byte("marked")))
	}
	v6 := func(src net.HardwareAddr, from netip.Addr) []byte {
		return eth(gw, src, unix.ETH_P_IPV6, udp(from, worldIP6, 9, 9, []byte("marked")))
	}
	arpReply := func(mac net.HardwareAddr, from netip.Addr) []byte {
		return eth(broadcast, s.mac, unix.ETH_P_ARP, arp(2, mac, from, broadcast, gw4))
	}
	arpRequest := func(mac net.HardwareAddr, from netip.Addr) []byte {
		return eth(broadcast, s.mac, unix.ETH_P_ARP, arp(1, mac, from, make([]byte, 6), gw4))
	}
	na := func(target netip.Addr, mac net.HardwareAddr) []byte {
		return eth(allNodesMAC, s.mac, unix.ETH_P_IPV6, advertise(s.ip6, allNodes, target, mac))
	}
	ns := func(from netip.Addr, mac net.HardwareAddr) []byte {
		return eth(groupMAC, s.mac, unix.ETH_P_IPV6, solicit(from, group, gw6, mac))
	}
	return []forgery{
		{"source MAC, IPv4", "spoof_mac", v4(strangeMAC, s.ip4, worldIP4, 9, 9), v4(s.mac, s.ip4, worldIP4, 9, 9), "", false},
		{"source MAC, IPv6", "spoof_mac", v6(strangeMAC, s.ip6), v6(s.mac, s.ip6), "", false},
		{"IPv4 of another pod", "spoof_ipv4", v4(s.mac, victim4, worldIP4, 9, 9), v4(s.mac, s.ip4, worldIP4, 9, 9), "", false},
		{"IPv4 of the node", "spoof_ipv4", v4(s.mac, nodeIP4, worldIP4, 9, 9), v4(s.mac, s.ip4, worldIP4, 9, 9), "", false},
		{"no IPv4, not DHCP", "spoof_ipv4", v4(s.mac, any4, netip.MustParseAddr("255.255.255.255"), 68, 68), v4(s.mac, any4, netip.MustParseAddr("255.255.255.255"), 68, 67), "", false},
		{"IPv6 of another pod", "spoof_ipv6", v6(s.mac, victim6), v6(s.mac, s.ip6), "", false},
		{"IPv6 of the node", "spoof_ipv6", v6(s.mac, nodeIP6), v6(s.mac, s.ip6), "", false},
		{"site-local is not link-local", "spoof_ipv6", v6(s.mac, netip.MustParseAddr("fec0::1234")), v6(s.mac, local), "", false},
		{"ARP answer, MAC", "spoof_arp", arpReply(strangeMAC, s.ip4), arpReply(s.mac, s.ip4), "", false},
		{"ARP answer, IPv4 of another pod", "spoof_arp", arpReply(s.mac, victim4), arpReply(s.mac, s.ip4), "", false},
		{"ARP answer, IPv4 of the gateway", "spoof_arp", arpReply(s.mac, gw4), arpReply(s.mac, s.ip4), "", false},
		{"ARP question, IPv4", "spoof_arp", arpRequest(s.mac, victim4), arpRequest(s.mac, s.ip4), "arp_answered", false},
		{"ARP question, MAC", "spoof_arp", arpRequest(strangeMAC, s.ip4), arpRequest(s.mac, s.ip4), "arp_answered", false},
		{"ND advertisement for another pod", "spoof_nd", na(victim6, s.mac), na(s.ip6, s.mac), "", false},
		{"ND advertisement for the gateway", "spoof_nd", na(gw6, s.mac), na(s.ip6, s.mac), "", false},
		{"ND advertisement, MAC", "spoof_nd", na(s.ip6, strangeMAC), na(s.ip6, s.mac), "", false},
		{"ND question, MAC", "spoof_nd", ns(s.ip6, strangeMAC), ns(s.ip6, s.mac), "nd_answered", false},
		{"ND question, IPv6", "spoof_ipv6", ns(victim6, s.mac), ns(s.ip6, s.mac), "nd_answered", false},
		{"router advertisement", "rogue_ra", eth(allNodesMAC, s.mac, unix.ETH_P_IPV6, icmp(local, allNodes, 134, make([]byte, 12))),
			eth(allNodesMAC, s.mac, unix.ETH_P_IPV6, icmp(s.ip6, allNodes, 133, make([]byte, 4))), "", true},
	}
}

// tryForgeries sends each forgery and then its twin, which comes the same way: when the twin is here, the forgery would be.
func tryForgeries(t *testing.T, n *node, id string, host *wire, list []forgery, send func([]byte), check bool) {
	t.Helper()
	for _, f := range list {
		before := n.list(id)
		send(f.bad)
		send(f.good)
		dropped := check || f.always
		arrived := func(frame []byte) bool { return bytes.Equal(frame, f.good) }
		if f.answered != "" {
			// The twin ends at the TAP: what follows it is seen.
			tail := eth(gatewayMAC, f.good[6:12], unix.ETH_P_LOOPBACK, []byte("the tail of "+f.name))
			send(tail)
			arrived = func(frame []byte) bool { return bytes.Equal(frame, tail) }
		}
		seen, ok := host.frames(patience, arrived)
		if !ok {
			t.Errorf("%s: the legal twin did not arrive", f.name)
		}
		// A question that nobody checks is answered like any other, and does not get to the host either.
		if got := contains(seen, f.bad); got == dropped && f.answered == "" {
			t.Errorf("%s: arrived %t, want %t", f.name, got, !dropped)
		}
		after := n.list(id)
		counted := after.Counters[f.reason].Frames - before.Counters[f.reason].Frames
		if want := map[bool]uint64{true: 1}[dropped]; counted != want || after.Dropped-before.Dropped != want {
			t.Errorf("%s: %d counted under %s and %d dropped, want %d; counters %v", f.name, counted, f.reason, after.Dropped-before.Dropped, want, after.Counters)
		}
		if f.answered != "" && check && after.Counters[f.answered].Frames-before.Counters[f.answered].Frames != 1 {
			t.Errorf("%s: the legal twin was not counted under %s", f.name, f.answered)
		}
	}
}

func TestForgedFramesOfGuest(t *testing.T) {
	for _, tt := range []struct {
		name     string
		redirect string
		check    bool
	}{{"checked, clsact", "clsact", true}, {"checked, tcx", "tcx", true}, {"not checked", "auto", false}} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			p := n.pod("attacker", conf(object{"redirect": tt.redirect, "spoofCheck": tt.check}))
			r := p.add()
			g := boot(p, r)
			host := tapWire(t, n.netns, hostEnd(t, r))
			s := sender{g.mac, g.ip[true], g.ip[false]}
			tryForgeries(t, n, "attacker", host, forgeries(s, g.gwMAC), g.write, tt.check)
		})
	}
}
