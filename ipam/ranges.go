package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tapir-cni/tapir/internal/jsonkeys"
)

// What of a subnet is given out, in one place:
//   - IPv4, shorter than /31: neither the network's nor the broadcast address. /31: both (RFC 3021). /32: the one.
//     An address that ends in .0 or .255 inside a shorter prefix is like any other.
//   - IPv6, shorter than /127: not the first, which is the subnet-router anycast address (RFC 4291, 2.6.1). /127: both
//     (RFC 6164). /128: the one.
//   - never the gateway of any range, nor what is excluded. Without a gateway in the configuration it is the first
//     usable address; a subnet of one address has none.
//   - rangeStart and rangeEnd must be usable themselves.

// RangeSet is ranges of which an attachment gets one address.
type RangeSet struct {
	ranges []addrRange
	path   string // in the configuration
}

// addrRange is one range, ready to give out of.
type addrRange struct {
	subnet      netip.Prefix
	first, last netip.Addr
	gateway     netip.Addr // invalid where there is none
	blocked     []interval // excluded or a gateway, between first and last, sorted, apart from each other
	whole       bool       // neither rangeStart nor rangeEnd was given
	path        string
}

// interval is the addresses from first to last, both included.
type interval struct{ first, last netip.Addr }

func (r addrRange) String() string {
	if r.whole {
		return r.subnet.String()
	}
	return fmt.Sprintf("%s-%s", r.first, r.last)
}

// String is the ranges as people write them.
func (s RangeSet) String() string {
	names := make([]string, len(s.ranges))
	for i, r := range s.ranges {
		names[i] = r.String()
	}
	return strings.Join(names, ", ")
}

// cursorKey names the set in the state, by what it gives out and not by whose it is, so that networks that share it do
// not follow each other's steps.
func (s RangeSet) cursorKey() string {
	var b strings.Builder
	for _, r := range s.ranges {
		fmt.Fprintf(&b, "%s-%s,", r.first, r.last)
	}
	return b.String()
}

// ParseRanges checks sets of ranges each by itself and gives every fault; path is where they stand in the configuration.
// Faults between sets, such as overlaps, are found by [Config.Validate].
func ParseRanges(list [][]Range, path string) (sets []RangeSet, faults jsonkeys.Faults) {
	for i, ranges := range list {
		set := RangeSet{path: jsonkeys.IndexPath(path, i)}
		if len(ranges) == 0 {
			faults.Add(set.path, "want at least one range, got none")
		}
		for j, config := range ranges {
			r, rangeFaults := parseRange(config)
			r.path = jsonkeys.IndexPath(set.path, j)
			faults = append(faults, rangeFaults.Under(r.path)...)
			if !r.subnet.IsValid() {
				continue
			}
			if len(set.ranges) > 0 && set.ranges[0].subnet.Addr().Is4() != r.subnet.Addr().Is4() {
				faults.Add(r.path+".subnet", fmt.Sprintf("want the IP version of the set's first range, %s, got %q; give the other version a set of its own",
					set.ranges[0].subnet, config.Subnet))
				continue
			}
			if r.first.IsValid() && r.last.IsValid() {
				set.ranges = append(set.ranges, r)
			}
		}
		sets = append(sets, set)
	}
	return sets, faults
}

// parseRange checks one range; the subnet is invalid where nothing could be made of it.
func parseRange(c Range) (r addrRange, faults jsonkeys.Faults) {
	subnet, problem := parseSubnet(c.Subnet)
	if problem != "" {
		faults.Add("subnet", problem)
		return r, faults
	}
	lowest, highest := usable(subnet)
	r = addrRange{subnet: subnet, first: lowest, last: highest, whole: c.RangeStart == "" && c.RangeEnd == ""}
	bound := func(key, value string, addr *netip.Addr) {
		if value == "" {
			return
		}
		parsed, fault := parseBound(value, subnet, interval{lowest, highest})
		if fault != "" {
			faults.Add(key, fault)
		}
		*addr = parsed
	}
	bound("rangeStart", c.RangeStart, &r.first)
	bound("rangeEnd", c.RangeEnd, &r.last)
	if r.first.IsValid() && r.last.IsValid() && r.last.Less(r.first) {
		key, value := "rangeEnd", c.RangeEnd
		if value == "" {
			key, value = "rangeStart", c.RangeStart
		}
		faults.Add(key, fmt.Sprintf("want rangeStart not above rangeEnd, got %q with %s to %s", value, r.first, r.last))
		r.last = netip.Addr{}
	}
	r.gateway, problem = parseGateway(c.Gateway, subnet, interval{lowest, highest})
	if problem != "" {
		faults.Add("gateway", problem)
	}
	for i, value := range c.Exclude {
		excluded, problem := parseExclude(value, subnet)
		if problem != "" {
			faults.Add(jsonkeys.IndexPath("exclude", i), problem)
			continue
		}
		r.block(excluded)
	}
	return r, faults
}

// unfit are the prefixes that no guest may have an address of.
var unfit = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("::/127"), netip.MustParsePrefix("::ffff:0:0/96"),
	netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
}

func parseSubnet(s string) (subnet netip.Prefix, problem string) {
	subnet, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Sprintf("want a subnet, as in 10.9.0.0/24, got %q", s)
	}
	if masked := subnet.Masked(); masked != subnet {
		return netip.Prefix{}, fmt.Sprintf("want no bits beyond the prefix length, as in %s, got %q", masked, s)
	}
	for _, p := range unfit {
		if p.Overlaps(subnet) {
			return netip.Prefix{}, fmt.Sprintf("want addresses that a guest can have, got %q, which overlaps %s", s, p)
		}
	}
	return subnet, ""
}

// usable is the first and the last address of a subnet that may be given out.
func usable(subnet netip.Prefix) (first, last netip.Addr) {
	first, last = subnet.Addr(), lastAddr(subnet)
	if subnet.Bits() < subnet.Addr().BitLen()-1 {
		first = first.Next()
		if first.Is4() {
			last = last.Prev()
		}
	}
	return first, last
}

// lastAddr is the highest address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// parseBound parses rangeStart and rangeEnd.
func parseBound(s string, subnet netip.Prefix, usable interval) (addr netip.Addr, problem string) {
	addr, err := parseAddr(s, subnet.Addr())
	if err != nil || !subnet.Contains(addr) {
		return netip.Addr{}, fmt.Sprintf("want an address inside %s, got %q", subnet, s)
	}
	if addr.Less(usable.first) || usable.last.Less(addr) {
		return netip.Addr{}, fmt.Sprintf("want an address from %s to %s, got %q, %s", usable.first, usable.last, s, special(addr, subnet))
	}
	return addr, ""
}

// special says what the address of a subnet is that is not usable.
func special(addr netip.Addr, subnet netip.Prefix) string {
	switch {
	case addr != subnet.Addr():
		return "which is the broadcast address"
	case addr.Is4():
		return "which is the network's address"
	default:
		return "which is the subnet-router anycast address"
	}
}

// parseGateway parses the gateway, or finds the default one.
func parseGateway(s string, subnet netip.Prefix, usable interval) (addr netip.Addr, problem string) {
	if s == "" {
		if usable.first == usable.last {
			return netip.Addr{}, ""
		}
		return usable.first, ""
	}
	addr, err := parseAddr(s, subnet.Addr())
	switch {
	case err != nil:
		return netip.Addr{}, err.Error()
	case addr.IsLinkLocalUnicast():
		return addr, ""
	case !subnet.Contains(addr):
		return netip.Addr{}, fmt.Sprintf("want an address inside %s or a link-local one, got %q", subnet, s)
	case addr.Less(usable.first) || usable.last.Less(addr):
		return netip.Addr{}, fmt.Sprintf("want an address from %s to %s, got %q, %s", usable.first, usable.last, s, special(addr, subnet))
	}
	return addr, ""
}

// parseExclude parses an address or a prefix that must meet the subnet.
func parseExclude(s string, subnet netip.Prefix) (interval, string) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		var addr netip.Addr
		if addr, err = netip.ParseAddr(s); err == nil {
			p = netip.PrefixFrom(addr.WithZone(""), addr.BitLen())
		}
	}
	if err != nil || strings.Contains(s, "%") || !p.Overlaps(subnet) {
		return interval{}, fmt.Sprintf("want an address or a prefix inside %s, got %q", subnet, s)
	}
	p = p.Masked()
	return interval{p.Addr(), lastAddr(p)}, ""
}

// block takes addresses out of what the range gives out. Intervals stay sorted, and those that touch are merged.
func (r *addrRange) block(added interval) {
	if !r.first.IsValid() || !r.last.IsValid() || added.last.Less(r.first) || r.last.Less(added.first) {
		return
	}
	added.first, added.last = maxAddr(added.first, r.first), minAddr(added.last, r.last)
	// The intervals that added meets or touches become one with it. What comes before the first or after the last
	// address that there is is the zero Addr, which is below all others.
	from, _ := slices.BinarySearchFunc(r.blocked, added.first, func(b interval, first netip.Addr) int {
		if after := b.last.Next(); after.IsValid() && after.Less(first) {
			return -1
		}
		return 1
	})
	to := from
	for ; to < len(r.blocked); to++ {
		if after := added.last.Next(); after.IsValid() && after.Less(r.blocked[to].first) {
			break
		}
		added.first = minAddr(added.first, r.blocked[to].first)
		added.last = maxAddr(added.last, r.blocked[to].last)
	}
	r.blocked = slices.Replace(r.blocked, from, to, added)
}

func minAddr(a, b netip.Addr) netip.Addr {
	if b.Less(a) {
		return b
	}
	return a
}

func maxAddr(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return b
	}
	return a
}
