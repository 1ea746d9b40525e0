package cni_test

import (
	"net/netip"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// A range that overlaps a network of the node would make the node answer for that network's gateway, or for itself.
func TestRangesOfTheNodesOwnNetworksAreRefused(t *testing.T) {
	testnode.Require(t, "root", "bpf", "tun", "ipv6")
	for _, tt := range []struct {
		name    string
		subnet  object
		refused []string // nil: such a range may be used
	}{
		{"the node's network", object{"subnet": "172.18.0.0/24"}, []string{"172.18.0.1", "172.18.0.0/24", "up0"}},
		{"the same over IPv6", object{"subnet": "fd00:18::/64"}, []string{"fd00:18::1", "fd00:18::/64", "up0"}},
		{"the node's own address", object{"subnet": "172.18.0.0/24", "gateway": nodeIP4.String()}, []string{nodeIP4.String(), "the node's own", "up0"}},
		{"a part of it, with a gateway of its own", object{"subnet": "172.18.0.64/26", "gateway": "169.254.1.1"}, []string{"address 172.18.0.", "172.18.0.0/24"}},
		{"control: covered by a route through a gateway", object{"subnet": "10.9.0.0/24"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			n.in(func() { addRoute(t, "10.0.0.0/8", netip.MustParseAddr("172.18.0.1")) })
			netns := testnode.NewNetns(t)
			before := n.snapshot(netns)
			p := n.pod("c1", conf(object{"ipam": object{"type": "tapir-ipam", "ranges": [][]object{{tt.subnet}}}}))
			p.netns = netns
			if tt.refused == nil {
				p.add()
				return
			}
			wantText(t, p.fails("ADD", codeBusy, nil), tt.refused...)
			wantSame(t, "the node and its sandbox", before, n.snapshot(netns))
		})
	}
}
