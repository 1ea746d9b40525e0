package state

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"
)

// Resting addresses wait in one queue for the whole state, ordered by the time since boot at which they are free
// again. They still count as used (see runs.go) until they are taken off it.

func restKey(until time.Duration, addr netip.Addr) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(until)), addrBytes(addr)...)
}

// restLeft is how much longer an address rests that does so until a time, for as long in all as delay. Where that is
// more than delay it was put to rest in the future: the clock went back, and nothing is known, so it is free.
func (tx *Tx) restLeft(until, delay time.Duration) time.Duration {
	left := until - tx.now()
	if left < 0 || left > delay {
		return 0
	}
	return left
}

// beginRest makes a leased address rest, or frees it where the delay is 0.
func (tx *Tx) beginRest(addr netip.Addr, delay time.Duration) error {
	if delay <= 0 {
		return tx.freeAddress(addr)
	}
	until := tx.now() + delay
	entry := binary.BigEndian.AppendUint64([]byte{entryResting}, uint64(until))
	entry = binary.BigEndian.AppendUint64(entry, uint64(delay))
	if err := tx.put(bucketAddresses, addrBytes(addr), entry); err != nil {
		return err
	}
	return tx.put(bucketResting, restKey(until, addr), binary.BigEndian.AppendUint64(nil, uint64(delay)))
}

// restUntil is the time since boot until which an address still rests; 0 where it does not.
func (tx *Tx) restUntil(addr netip.Addr) (time.Duration, error) {
	value, err := tx.get(bucketAddresses, addrBytes(addr))
	if err != nil {
		return 0, err
	}
	if until, delay, ok := parseRest(value); ok && tx.restLeft(until, delay) > 0 {
		return until, nil
	}
	return 0, nil
}

// endRest frees an address if it rests.
func (tx *Tx) endRest(addr netip.Addr) error {
	value, err := tx.get(bucketAddresses, addrBytes(addr))
	if err != nil {
		return err
	}
	until, _, ok := parseRest(value)
	if !ok {
		return nil
	}
	if err := tx.delete(bucketResting, restKey(until, addr)); err != nil {
		return err
	}
	return tx.freeAddress(addr)
}

func (tx *Tx) freeAddress(addr netip.Addr) error {
	if err := tx.delete(bucketAddresses, addrBytes(addr)); err != nil {
		return err
	}
	return tx.markFree(addr)
}

// EndRests frees at most limit of the addresses that have rested long enough, and tells how many it freed.
func (tx *Tx) EndRests(limit int) (int, error) {
	for freed := 0; freed < limit; freed++ {
		k, v, err := tx.atLeast(bucketResting, nil)
		if err != nil || k == nil {
			return freed, err
		}
		if len(k) != 24 || len(v) != 8 {
			return freed, tx.corrupt(fmt.Errorf("resting address: got entry %x: %x", k, v))
		}
		until := time.Duration(binary.BigEndian.Uint64(k))
		if tx.restLeft(until, time.Duration(binary.BigEndian.Uint64(v))) > 0 {
			return freed, nil
		}
		addr, err := tx.parseAddr(k[8:])
		if err != nil {
			return freed, err
		}
		if err := tx.endRest(addr); err != nil {
			return freed, err
		}
	}
	return limit, nil
}
