package state

import (
	"fmt"
	"net/netip"
)

// The used addresses, leased or resting, are kept as runs, first → last address: runs that touch are merged, so what
// follows a run is free, and the next free address is one lookup away whatever is used. IPv4 addresses stand in their
// IPv4-mapped form, which no range of IPv6 addresses may contain.

// run is one run of used addresses.
type run struct{ first, last netip.Addr }

// runAtMost finds the last run that begins at addr or below; ok tells whether there is one in addr's family.
func (tx *Tx) runAtMost(addr netip.Addr) (r run, ok bool, err error) {
	k, v, err := tx.atMost(bucketRuns, addrBytes(addr))
	if err != nil || k == nil {
		return run{}, false, err
	}
	if r.first, err = tx.parseAddr(k); err != nil {
		return run{}, false, err
	}
	if r.last, err = tx.parseAddr(v); err != nil {
		return run{}, false, err
	}
	if r.first.Is4() != r.last.Is4() || r.last.Less(r.first) {
		return run{}, false, tx.corrupt(fmt.Errorf("run of used addresses: got %s to %s", r.first, r.last))
	}
	return r, r.first.Is4() == addr.Is4(), nil
}

// NextFree finds the first address from first to last, both included, that is neither leased nor resting.
func (tx *Tx) NextFree(first, last netip.Addr) (addr netip.Addr, ok bool, err error) {
	r, found, err := tx.runAtMost(first)
	if err != nil {
		return netip.Addr{}, false, err
	}
	if found && !r.last.Less(first) {
		first = r.last.Next() // the zero Addr after the last address of the family
	}
	if !first.IsValid() || last.Less(first) {
		return netip.Addr{}, false, nil
	}
	return first, true, nil
}

// markUsed adds a free address to the runs.
func (tx *Tx) markUsed(addr netip.Addr) error {
	added := run{addr, addr}
	before, found, err := tx.runAtMost(addr)
	if err != nil {
		return err
	}
	if found && !before.last.Less(addr) {
		return tx.corrupt(fmt.Errorf("address %s is free and in the run %s to %s", addr, before.first, before.last))
	}
	if found && before.last.Next() == addr {
		added.first = before.first
	}
	if next := addr.Next(); next.IsValid() {
		after, found, err := tx.runAtMost(next)
		if err != nil {
			return err
		}
		if found && after.first == next {
			added.last = after.last
			if err := tx.delete(bucketRuns, addrBytes(next)); err != nil {
				return err
			}
		}
	}
	return tx.put(bucketRuns, addrBytes(added.first), addrBytes(added.last))
}

// markFree takes a used address out of the runs.
func (tx *Tx) markFree(addr netip.Addr) error {
	r, found, err := tx.runAtMost(addr)
	if err != nil {
		return err
	}
	if !found || r.last.Less(addr) {
		return tx.corrupt(fmt.Errorf("address %s is used and in no run", addr))
	}
	if r.first == addr {
		if err := tx.delete(bucketRuns, addrBytes(addr)); err != nil {
			return err
		}
	} else if err := tx.put(bucketRuns, addrBytes(r.first), addrBytes(addr.Prev())); err != nil {
		return err
	}
	if r.last == addr {
		return nil
	}
	return tx.put(bucketRuns, addrBytes(addr.Next()), addrBytes(r.last))
}
