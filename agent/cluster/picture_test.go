package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// node is a Node with its ranges and InternalIPs.
func node(name string, ranges, addresses []string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: ranges}}
	if len(ranges) > 0 {
		n.Spec.PodCIDR = ranges[0]
	}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: name}, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.9"})
	return n
}

func TestRoutesLeadToEachFamilysInternalIP(t *testing.T) {
	peers := map[string]peer{}
	for _, n := range []*corev1.Node{
		node("own", []string{"10.244.0.0/24", "fd00:244::/64"}, []string{"10.200.0.11", "fd00:200::11"}),
		node("both", []string{"10.244.1.0/24", "fd00:244:0:1::/64"}, []string{"fd00:200::12", "10.200.0.12", "10.200.0.99"}),
		node("four", []string{"10.244.2.0/24", "fd00:244:0:2::/64"}, []string{"10.200.0.13"}),
		node("new", nil, []string{"10.200.0.14"}),
		node("odd", []string{"not a range", "10.244.3.7/24"}, []string{"nowhere", "10.200.0.15"}),
	} {
		peers[n.Name] = peerOf(n)
	}
	wanted, lacking := hops(peers, "own")
	var got []string
	for _, h := range wanted {
		got = append(got, fmt.Sprintf("%s via %s", h.to, h.via))
	}
	want := []string{"10.244.1.0/24 via 10.200.0.12", "10.244.2.0/24 via 10.200.0.13", "10.244.3.0/24 via 10.200.0.15", "fd00:244:0:1::/64 via fd00:200::12"}
	if !slices.Equal(got, want) {
		t.Errorf("want %q, got %q", want, got)
	}
	if len(lacking) != 1 || lacking[0].to != netip.MustParsePrefix("fd00:244:0:2::/64") || lacking[0].node != "four" {
		t.Errorf("want that four lacks an IPv6 address, got %v", lacking)
	}
	if all := allRanges(peers); len(all) != 7 {
		t.Errorf("want the seven ranges of all nodes, got %v", all)
	}
}

func TestSetsHaveNoOverlaps(t *testing.T) {
	parse := func(list ...string) (all []netip.Prefix) {
		for _, s := range list {
			all = append(all, netip.MustParsePrefix(s))
		}
		return all
	}
	for _, tt := range []struct {
		in   []netip.Prefix
		want []string
	}{
		{parse("10.0.0.0/8", "10.1.0.0/16", "10.0.0.0/8", "192.168.0.0/24"), []string{"10.0.0.0", "11.0.0.0 end", "192.168.0.0", "192.168.1.0 end"}},
		{parse("0.0.0.0/0"), []string{"0.0.0.0"}},
		{parse("255.255.255.0/24"), []string{"255.255.255.0"}},
		{parse("fd00::/8", "fd00:1::/64"), []string{"fd00::", "fe00:: end"}},
		{parse("10.0.0.7/32"), []string{"10.0.0.7", "10.0.0.8 end"}},
		{nil, nil},
	} {
		var got []string
		for _, e := range intervals(tt.in) {
			addr, _ := netip.AddrFromSlice(e.Key)
			text := addr.String()
			if e.IntervalEnd {
				text += " end"
			}
			got = append(got, text)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%v: want %q, got %q", tt.in, tt.want, got)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, tt := range []struct {
		o    Options
		want []string
	}{
		{Options{}, nil},
		{Options{Enabled: true}, []string{"cluster.node"}},
		{Options{Enabled: true, Node: "n", Policies: "sometimes", NonMasqueradeCIDRs: []string{"10.0.0.1/8"}}, []string{"cluster.nonMasqueradeCIDRs", "cluster.policies"}},
		{Options{Enabled: true, Node: "n", Policies: PoliciesOn, NonMasqueradeCIDRs: []string{"10.0.0.0/8", "fd00::/8"}}, nil},
	} {
		var got []string
		tt.o.Validate("cluster", func(path, _ string) { got = append(got, path) })
		if !slices.Equal(got, tt.want) {
			t.Errorf("%+v: want faults of %q, got %q", tt.o, tt.want, got)
		}
	}
}
