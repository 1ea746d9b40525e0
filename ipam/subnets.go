package ipam

import "net/netip"

// Subnets are the subnets of the set's ranges, in their order.
func (s RangeSet) Subnets() []netip.Prefix {
	out := make([]netip.Prefix, len(s.ranges))
	for i, r := range s.ranges {
		out[i] = r.subnet
	}
	return out
}
