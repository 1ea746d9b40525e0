package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/state"
)

// Request is what an attachment asks for.
type Request struct {
	Key        state.Key
	Sets       []RangeSet    // of [Settings]
	Addresses  []string      // asked for by name: of CNI_ARGS IP or runtimeConfig.ips, with or without prefix length
	ReuseDelay time.Duration // how long the addresses rest after their release
	Pod        state.Pod     // gets the addresses that it had; zero: none are remembered
}

// Lease is one address that was given out: with the subnet's prefix length, and its gateway, invalid where it has none.
type Lease = state.Address

// endRests is how many rested addresses a call frees even where it needs none of them: more than it can add, so that the queue
// shrinks.
const endRests = 16

// Acquire leases one address of each range set to the attachment: all of them or, with an error, none. IPv4 addresses
// come first, else the order is that of the sets. Requested addresses fill the sets that they are in, then those that the
// pod had and nobody has used since. The others are taken round robin.
//
// Errors are [ErrExists], *[ExhaustedError], *[RequestError], *[state.AddressInUseError] for a requested address that
// another attachment has, or the store's.
func Acquire(tx *state.Tx, req Request) ([]Lease, error) {
	if l, exists, err := tx.Lease(req.Key); err != nil {
		return nil, err
	} else if exists {
		return nil, fmt.Errorf("lease addresses to %q: %w: %s", req.Key, ErrExists, addressList(l.Addresses))
	}
	if _, err := tx.EndRests(endRests); err != nil {
		return nil, err
	}
	requested, err := matchRequested(req)
	if err != nil {
		return nil, err
	}
	had, err := tx.Remembered(req.Key, req.Pod)
	if err != nil {
		return nil, err
	}
	var leases []Lease
	cursors := map[string]netip.Addr{}
	for i, set := range req.Sets {
		p, ok := requested[i]
		if !ok {
			p, ok = set.findAny(had)
		}
		if !ok {
			if p, err = next(tx, set); err != nil {
				return nil, err
			}
			cursors[set.cursorKey()] = p.first
		}
		leases = append(leases, Lease{Prefix: netip.PrefixFrom(p.first, p.of.subnet.Bits()), Gateway: p.of.gateway})
	}
	slices.SortStableFunc(leases, func(a, b Lease) int { return a.Prefix.Addr().BitLen() - b.Prefix.Addr().BitLen() })
	err = tx.PutLease(state.Lease{Key: req.Key, Addresses: leases, Acquired: time.Now().UTC(), ReuseDelay: req.ReuseDelay, Pod: req.Pod})
	if err != nil {
		return nil, fmt.Errorf("lease addresses to %q: %w", req.Key, err)
	}
	for set, addr := range cursors {
		if err := tx.SetCursor(set, addr); err != nil {
			return nil, err
		}
	}
	return leases, nil
}

// findAny is the first of the addresses that the set gives out.
func (s RangeSet) findAny(addrs []netip.Addr) (piece, bool) {
	for _, a := range addrs {
		if p, ok := s.find(a); ok {
			return piece{interval{a, a}, p.of}, true
		}
	}
	return piece{}, false
}

// Release ends the lease of an attachment. One that has none is no error.
func Release(tx *state.Tx, key state.Key) error {
	_, _, err := tx.ReleaseLease(key)
	return err
}

// Cancel ends a lease that nobody has used, as after a failed ADD: its addresses need no rest but what is left of the last one. Where there is none it is
// no error.
func Cancel(tx *state.Tx, key state.Key) error {
	_, _, err := tx.CancelLease(key)
	return err
}

// next finds the free address of the set that follows the one given out last, as a piece of one address.
func next(tx *state.Tx, set RangeSet) (piece, error) {
	order, err := rotate(tx, set)
	if err != nil {
		return piece{}, err
	}
	for {
		for _, p := range order {
			addr, ok, err := tx.NextFree(p.first, p.last)
			if err != nil {
				return piece{}, err
			}
			if ok {
				return piece{interval{addr, addr}, p.of}, nil
			}
		}
		// What has rested may still be on the queue, behind that of other sets.
		freed, err := tx.EndRests(100 * endRests)
		if err != nil {
			return piece{}, err
		}
		if freed == 0 {
			return piece{}, exhausted(tx, set)
		}
	}
}

// rotate is the pieces of the set from the address after the cursor on, round to the cursor itself.
func rotate(tx *state.Tx, set RangeSet) ([]piece, error) {
	pieces := set.pieces()
	cursor, err := tx.Cursor(set.cursorKey())
	if err != nil || !cursor.IsValid() {
		return pieces, err
	}
	for i, p := range pieces {
		if cursor.Less(p.first) || p.last.Less(cursor) {
			continue
		}
		order := make([]piece, 0, len(pieces)+1)
		if after := cursor.Next(); after.IsValid() && !p.last.Less(after) {
			order = append(order, piece{interval{after, p.last}, p.of})
		}
		order = append(append(order, pieces[i+1:]...), pieces[:i]...)
		return append(order, piece{interval{p.first, cursor}, p.of}), nil
	}
	return pieces, nil // the configuration no longer has it
}

// exhausted counts what a set's addresses are used for.
func exhausted(tx *state.Tx, set RangeSet) error {
	e := &ExhaustedError{Ranges: set.String()}
	for _, r := range set.ranges {
		e.Reserved += r.reserved()
		for _, p := range r.pieces() {
			u, err := tx.Usage(p.first, p.last)
			if err != nil {
				return err
			}
			e.Leased += u.Leased
			e.Resting += u.Resting
			if u.Resting > 0 && (e.FirstFree == 0 || u.FirstRest < e.FirstFree) {
				e.FirstFree = u.FirstRest
			}
		}
	}
	return e
}

// CheckRequested tells whether these addresses could be asked for, each with or without a prefix length: one of each set at most. The
// error is a *[RequestError]. Whether they are free nobody knows before [Acquire].
func CheckRequested(sets []RangeSet, addresses []string) error {
	_, err := matchRequested(Request{Sets: sets, Addresses: addresses})
	return err
}

// matchRequested finds the set of each requested address; the result is by the set's place.
func matchRequested(req Request) (map[int]piece, error) {
	matched := map[int]piece{}
	for _, text := range req.Addresses {
		want, err := parseRequested(text)
		if err != nil {
			return nil, err
		}
		i, p, err := matchSet(req.Sets, text, want)
		if err != nil {
			return nil, err
		}
		if earlier, filled := matched[i]; filled {
			if earlier.first == want.Addr() {
				continue // CNI_ARGS and runtimeConfig may say the same
			}
			return nil, &RequestError{text, fmt.Sprintf("want one address of %s, got %s too", req.Sets[i], earlier.first)}
		}
		matched[i] = p
	}
	return matched, nil
}

// parseRequested parses an address with or without a prefix length; without, it is that of the address itself.
func parseRequested(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		var addr netip.Addr
		if addr, err = netip.ParseAddr(text); err == nil {
			p = netip.PrefixFrom(addr, addr.BitLen()) // loses a zone
		}
	}
	if err != nil || strings.Contains(text, "%") || p.Addr().Is4In6() {
		return netip.Prefix{}, &RequestError{text, "want an IPv4 or IPv6 address"}
	}
	return p, nil
}

// matchSet finds the set that gives out an address.
func matchSet(sets []RangeSet, text string, want netip.Prefix) (int, piece, error) {
	var names []string
	for i, set := range sets {
		names = append(names, set.String())
		if p, ok := set.find(want.Addr()); ok {
			if bits := p.of.subnet.Bits(); want.Bits() != bits && want.Bits() != want.Addr().BitLen() {
				return 0, piece{}, &RequestError{text, fmt.Sprintf("want prefix length %d or none", bits)}
			}
			return i, piece{interval{want.Addr(), want.Addr()}, p.of}, nil
		}
		for _, r := range set.ranges {
			if r.gateway == want.Addr() {
				return 0, piece{}, &RequestError{text, fmt.Sprintf("it is the gateway of %s", r)}
			}
			for _, b := range r.blocked {
				if !want.Addr().Less(b.first) && !b.last.Less(want.Addr()) {
					return 0, piece{}, &RequestError{text, fmt.Sprintf("it is reserved or excluded in %s", r)}
				}
			}
		}
	}
	return 0, piece{}, &RequestError{text, fmt.Sprintf("want an address that can be given out of %s", strings.Join(names, "; "))}
}

func addressList(list []Lease) string {
	names := make([]string, len(list))
	for i, l := range list {
		names[i] = l.Prefix.String()
	}
	return strings.Join(names, ", ")
}
