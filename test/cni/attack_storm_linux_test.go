package cni_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The neighbour table is one for the whole machine, and a guest has any number of link-local addresses: 1,024 of them once kept
// the node from finding its own next hop ("neighbor table overflow").
func TestGuestCannotFillTheNodesNeighbourTable(t *testing.T) {
	n := newNode(t)
	n.routePodsInWorld()
	p := n.pod("c1", conf(nil))
	r := p.add()
	g := boot(p, r)
	gw := g.gw[false]
	group, groupMAC := solicitedNode(gw)
	allRouters, allRoutersMAC := netip.MustParseAddr("ff02::2"), net.HardwareAddr{0x33, 0x33, 0, 0, 0, 2}
	long := join([]byte{14, 9}, make([]byte, 70)) // more options than are answered at the TAP
	const sources = 300
	for i := range sources {
		from := netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64([]byte{0xfe, 0x80, 7: 0}, uint64(i+1))))
		g.send(allRoutersMAC, unix.ETH_P_IPV6, icmp(from, allRouters, 133, join(make([]byte, 4), []byte{1, 1}, g.mac)))
		g.send(groupMAC, unix.ETH_P_IPV6, icmp(from, group, 135, join(make([]byte, 4), gw.AsSlice(), []byte{1, 1}, g.mac, long)))
		g.send(g.gwMAC, unix.ETH_P_IPV6, echo(from, gw, []byte("0000 anybody there?")))
	}
	g.wantPing(nodeIP4, nodeIP6, worldIP6) // behind all of them
	entries := 0
	n.in(func() {
		list, err := netlink.NeighList(link(t, hostEnd(t, r)).Attrs().Index, unix.AF_INET6)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.State&unix.NUD_NOARP == 0 { // multicast
				entries++
			}
		}
	})
	if entries > 3 {
		t.Errorf("%d neighbours on the host end after %d link-local addresses asked, want the guest's alone", entries, sources)
	}
	if got := n.list("c1").Counters["nd_link_local"].Frames; got < 2*sources {
		t.Errorf("%d counted under nd_link_local, want at least %d", got, 2*sources)
	}
}
