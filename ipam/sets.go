package ipam

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/tapir-cni/tapir/internal/jsonkeys"
)

// overlapFaults finds ranges that would give out the same address, within a set and between sets.
func overlapFaults(sets []RangeSet) (faults jsonkeys.Faults) {
	var all []addrRange
	for _, set := range sets {
		all = append(all, set.ranges...)
	}
	order := slices.Clone(all)
	slices.SortStableFunc(order, func(a, b addrRange) int { return a.first.Compare(b.first) })
	for i := 1; i < len(order); i++ {
		a, b := order[i-1], order[i]
		if b.last.Less(a.last) {
			order[i].last = a.last // so that what follows b is compared with what reaches farthest
			order[i].path = a.path
		}
		if !a.last.Less(b.first) {
			faults.Add(b.path, fmt.Sprintf("want ranges that do not overlap, got %s, which overlaps %s of %s", b, a, a.path))
		}
	}
	return faults
}

// reserveGateways takes the gateways of all ranges out of what each of them gives out.
func reserveGateways(sets []RangeSet) {
	for _, from := range sets {
		for _, r := range from.ranges {
			if !r.gateway.IsValid() {
				continue
			}
			for _, set := range sets {
				for i := range set.ranges {
					if set.ranges[i].first.Is4() == r.gateway.Is4() {
						set.ranges[i].block(interval{r.gateway, r.gateway})
					}
				}
			}
		}
	}
}

// emptyFaults finds ranges that have nothing to give out.
func emptyFaults(sets []RangeSet) (faults jsonkeys.Faults) {
	for _, set := range sets {
		for _, r := range set.ranges {
			if len(r.pieces()) == 0 {
				faults.Add(r.path, fmt.Sprintf("want an address to give out, got %s with none but gateways and excluded ones", r))
			}
		}
	}
	return faults
}

// pieces is what the range gives out, in order.
func (r addrRange) pieces() []interval {
	var pieces []interval
	first := r.first
	for _, b := range r.blocked {
		if first.Less(b.first) {
			pieces = append(pieces, interval{first, b.first.Prev()})
		}
		first = b.last.Next()
	}
	if first.IsValid() && !r.last.Less(first) {
		pieces = append(pieces, interval{first, r.last})
	}
	return pieces
}

// piece is an interval that a set gives out, with the range that it belongs to.
type piece struct {
	interval
	of *addrRange
}

// pieces is what the set gives out, in the order of its ranges.
func (s RangeSet) pieces() []piece {
	var all []piece
	for i := range s.ranges {
		for _, p := range s.ranges[i].pieces() {
			all = append(all, piece{p, &s.ranges[i]})
		}
	}
	return all
}

// find is the piece that has the address.
func (s RangeSet) find(addr netip.Addr) (p piece, ok bool) {
	for _, p := range s.pieces() {
		if addr.Is4() == p.first.Is4() && !addr.Less(p.first) && !p.last.Less(addr) {
			return p, true
		}
	}
	return piece{}, false
}

// reserved counts what is never given out: of the whole subnet, or of rangeStart to rangeEnd where they are given.
func (r addrRange) reserved() uint64 {
	all := interval{r.first, r.last}
	if r.whole {
		all = interval{r.subnet.Addr(), lastAddr(r.subnet)}
	}
	count := all.size()
	for _, p := range r.pieces() {
		count -= p.size()
	}
	return count
}

// size counts the addresses, at most 1<<64 - 1.
func (i interval) size() uint64 {
	a, b := i.first.As16(), i.last.As16()
	var high, low uint64
	borrow := 0
	for k := 15; k >= 0; k-- {
		d := int(b[k]) - int(a[k]) - borrow
		borrow = 0
		if d < 0 {
			d, borrow = d+256, 1
		}
		if k >= 8 {
			low |= uint64(d) << (8 * (15 - k))
		} else {
			high |= uint64(d) << (8 * (7 - k))
		}
	}
	if high > 0 || low == math.MaxUint64 {
		return math.MaxUint64
	}
	return low + 1
}
