package cluster

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// peer is a Node, of which no more is kept than the network needs.
type peer struct {
	name      string
	ranges    []netip.Prefix // its pods'
	addresses []netip.Addr   // InternalIPs
}

// peerOf reads a Node. What is not an address or a range is passed over: the API server let it pass.
func peerOf(n *corev1.Node) peer {
	p := peer{name: n.Name}
	ranges := n.Spec.PodCIDRs
	if len(ranges) == 0 && n.Spec.PodCIDR != "" {
		ranges = []string{n.Spec.PodCIDR}
	}
	for _, text := range ranges {
		if r, err := netip.ParsePrefix(text); err == nil {
			p.ranges = append(p.ranges, r.Masked())
		}
	}
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			p.addresses = append(p.addresses, addr.Unmap())
		}
	}
	return p
}

// via is the peer's address of the family.
func (p peer) via(is4 bool) (netip.Addr, bool) {
	i := slices.IndexFunc(p.addresses, func(a netip.Addr) bool { return a.Is4() == is4 })
	if i < 0 {
		return netip.Addr{}, false
	}
	return p.addresses[i], true
}

// hop is a route that is wanted.
type hop struct {
	to   netip.Prefix
	via  netip.Addr
	node string
}

// hops are the routes to the pods of all nodes but own. Ranges without an address of their family are named in lacking.
func hops(peers map[string]peer, own string) (wanted []hop, lacking []hop) {
	for name, p := range peers {
		if name == own {
			continue
		}
		for _, r := range p.ranges {
			h := hop{to: r, node: name}
			via, ok := p.via(r.Addr().Is4())
			if h.via = via; ok {
				wanted = append(wanted, h)
			} else {
				lacking = append(lacking, h)
			}
		}
	}
	compare := func(a, b hop) int { return a.to.Compare(b.to) }
	slices.SortFunc(wanted, compare)
	slices.SortFunc(lacking, compare)
	return wanted, lacking
}

// allRanges are those of all nodes.
func allRanges(peers map[string]peer) (all []netip.Prefix) {
	for _, p := range peers {
		all = append(all, p.ranges...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}
