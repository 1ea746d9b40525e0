package state

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// ErrExists is returned where the attachment has a lease already.
var ErrExists = errors.New("attachment already has a lease")

// Lease is the addresses of one attachment. An address is leased once on the whole node, whatever the network, since
// the node routes it.
type Lease struct {
	Key
	Addresses  []Address     `json:"addresses"`
	Acquired   time.Time     `json:"acquired"`
	ReuseDelay time.Duration `json:"reuseDelay"` // ns; how long the addresses rest after the release

	Pod       Pod           `json:"pod,omitzero"`        // whose addresses are remembered after the release; zero: nobody's
	RestUntil time.Duration `json:"restUntil,omitempty"` // ns since boot: the end of the rest that the lease cut short; 0: none
}

// AddressStatus is what is known of an address.
type AddressStatus int

// An address is free unless it is leased, or rests after its release.
const (
	AddressFree AddressStatus = iota + 1
	AddressLeased
	AddressResting
)

// AddressUser says who uses an address.
type AddressUser struct {
	Status AddressStatus
	Holder Key           // of a leased one
	Rest   time.Duration // of a resting one: how much longer
}

// AddressInUseError says that an address is another attachment's.
type AddressInUseError struct {
	Addr   netip.Addr
	Holder Key
}

func (e *AddressInUseError) Error() string {
	return fmt.Sprintf("address %s is leased to attachment %q", e.Addr, e.Holder)
}

// The first byte of an entry of bucketAddresses: leased by the key that follows, or resting until the time since boot
// (8 bytes, ns) for as long in all (8 bytes, ns) as what follows.
const (
	entryLeased  = 'L'
	entryResting = 'R'
)

func addrBytes(a netip.Addr) []byte {
	b := a.As16()
	return b[:]
}

func (tx *Tx) parseAddr(b []byte) (netip.Addr, error) {
	if len(b) != 16 {
		return netip.Addr{}, tx.corrupt(fmt.Errorf("address: want 16 bytes, got %x", b))
	}
	return netip.AddrFrom16([16]byte(b)).Unmap(), nil
}

// Lease is the lease of an attachment; ok tells whether it has one.
func (tx *Tx) Lease(key Key) (l Lease, ok bool, err error) {
	value, err := tx.get(bucketLeases, key.bytes())
	if err != nil || value == nil {
		return Lease{}, false, err
	}
	l, err = tx.parseLease(key.bytes(), value)
	return l, err == nil, err
}

// parseLease decodes a record, which must be that of its key.
func (tx *Tx) parseLease(key, value []byte) (l Lease, err error) {
	if err := json.Unmarshal(value, &l); err != nil {
		return Lease{}, tx.corrupt(fmt.Errorf("lease of %q: %w", key, err))
	}
	if !bytes.Equal(l.Key.bytes(), key) {
		return Lease{}, tx.corrupt(fmt.Errorf("lease of %q: got the record of %q", key, l.Key))
	}
	return l, nil
}

// ForEachLease calls fn with each lease of a network, of all networks where that is empty, in the order of their keys,
// until fn returns an error. fn may put and release leases.
func (tx *Tx) ForEachLease(network string, fn func(Lease) error) error {
	return tx.each(bucketLeases, networkPrefix(network), func(k, v []byte) error {
		l, err := tx.parseLease(k, v)
		if err != nil {
			return err
		}
		return fn(l)
	})
}

// AddressUser tells who uses an address.
func (tx *Tx) AddressUser(addr netip.Addr) (AddressUser, error) {
	value, err := tx.get(bucketAddresses, addrBytes(addr))
	if err != nil || value == nil {
		return AddressUser{Status: AddressFree}, err
	}
	return tx.parseUser(addr, value)
}

func (tx *Tx) parseUser(addr netip.Addr, value []byte) (AddressUser, error) {
	if len(value) > 1 && value[0] == entryLeased {
		if key, ok := parseKey(value[1:]); ok {
			return AddressUser{Status: AddressLeased, Holder: key}, nil
		}
	}
	if until, delay, ok := parseRest(value); ok {
		return AddressUser{Status: AddressResting, Rest: tx.restLeft(until, delay)}, nil
	}
	return AddressUser{}, tx.corrupt(fmt.Errorf("address %s: got entry %x", addr, value))
}

// PutLease records a lease whose addresses are free or resting: all of them, or none and an error that is
// [ErrExists] or a *[AddressInUseError].
func (tx *Tx) PutLease(l Lease) error {
	if tx.b == nil || !tx.writable {
		return ErrReadOnly
	}
	if _, exists, err := tx.Lease(l.Key); err != nil {
		return err
	} else if exists {
		return fmt.Errorf("lease addresses to %q: %w", l.Key, ErrExists)
	}
	for i, address := range l.Addresses {
		user, err := tx.AddressUser(address.Prefix.Addr())
		if err != nil {
			return err
		}
		if user.Status == AddressLeased {
			return &AddressInUseError{Addr: address.Prefix.Addr(), Holder: user.Holder}
		}
		for _, earlier := range l.Addresses[:i] {
			if earlier.Prefix.Addr() == address.Prefix.Addr() {
				return &AddressInUseError{Addr: address.Prefix.Addr(), Holder: l.Key}
			}
		}
	}
	l.RestUntil = 0
	for _, address := range l.Addresses {
		addr := address.Prefix.Addr()
		until, err := tx.restUntil(addr)
		if err != nil {
			return err
		}
		l.RestUntil = max(l.RestUntil, until)
		if err := tx.endRest(addr); err != nil {
			return err
		}
		if err := tx.markUsed(addr); err != nil {
			return err
		}
		if err := tx.put(bucketAddresses, addrBytes(addr), append([]byte{entryLeased}, l.Key.bytes()...)); err != nil {
			return err
		}
	}
	if key := stickyKey(l.Key, l.Pod); key != nil {
		if err := tx.forget(key); err != nil {
			return err
		}
	}
	return tx.putLease(l)
}

func (tx *Tx) putLease(l Lease) error {
	value, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("record lease of %q: %w", l.Key, err)
	}
	return tx.put(bucketLeases, l.Key.bytes(), value)
}

// ReleaseLease ends the lease of an attachment; its addresses rest for the lease's ReuseDelay. One that is not there
// is no error.
func (tx *Tx) ReleaseLease(key Key) (l Lease, ok bool, err error) {
	return tx.endLease(key, func(l Lease) time.Duration { return l.ReuseDelay })
}

// CancelLease ends a lease that nobody has used: its addresses need no rest but what is left of one that the lease cut short. One that
// is not there is no error.
func (tx *Tx) CancelLease(key Key) (l Lease, ok bool, err error) {
	return tx.endLease(key, func(l Lease) time.Duration { return max(0, l.RestUntil-tx.now()) })
}

// endLease ends a lease; its addresses rest for as long as rest says.
func (tx *Tx) endLease(key Key, rest func(Lease) time.Duration) (l Lease, ok bool, err error) {
	l, ok, err = tx.Lease(key)
	if err != nil || !ok {
		return Lease{}, false, err
	}
	for _, address := range l.Addresses {
		addr := address.Prefix.Addr()
		user, err := tx.AddressUser(addr)
		if err != nil {
			return Lease{}, false, err
		}
		if user.Status != AddressLeased || user.Holder != key {
			return Lease{}, false, tx.corrupt(fmt.Errorf("lease of %q: address %s is not leased to it", key, addr))
		}
		if err := tx.beginRest(addr, rest(l)); err != nil {
			return Lease{}, false, err
		}
	}
	if err := tx.remember(l); err != nil {
		return Lease{}, false, err
	}
	return l, true, tx.delete(bucketLeases, key.bytes())
}

// Cursor is the address that was given out last from a range set; invalid where none was.
func (tx *Tx) Cursor(set string) (netip.Addr, error) {
	value, err := tx.get(bucketCursors, []byte(set))
	if err != nil || value == nil {
		return netip.Addr{}, err
	}
	return tx.parseAddr(value)
}

// SetCursor remembers the address that was given out last from a range set.
func (tx *Tx) SetCursor(set string, addr netip.Addr) error {
	return tx.put(bucketCursors, []byte(set), addrBytes(addr))
}

// Usage is what the addresses of a range are used for.
type Usage struct {
	Leased, Resting int
	FirstRest       time.Duration // the shortest time that one has still to rest; 0 where none rests
}

// Usage counts the addresses that are used from first to last, both included. It reads each of them.
func (tx *Tx) Usage(first, last netip.Addr) (Usage, error) {
	var u Usage
	done := errors.New("done")
	err := tx.eachFrom(bucketAddresses, addrBytes(first), func(k, v []byte) error {
		addr, err := tx.parseAddr(k)
		if err != nil {
			return err
		}
		if addr.Compare(last) > 0 || addr.Is4() != last.Is4() {
			return done
		}
		user, err := tx.parseUser(addr, v)
		if err != nil {
			return err
		}
		switch user.Status {
		case AddressLeased:
			u.Leased++
		case AddressResting:
			u.Resting++
			if u.FirstRest == 0 || user.Rest < u.FirstRest {
				u.FirstRest = user.Rest
			}
		}
		return nil
	})
	if errors.Is(err, done) {
		err = nil
	}
	return u, err
}

func parseRest(value []byte) (until, delay time.Duration, ok bool) {
	if len(value) != 17 || value[0] != entryResting {
		return 0, 0, false
	}
	until = time.Duration(binary.BigEndian.Uint64(value[1:]))
	delay = time.Duration(binary.BigEndian.Uint64(value[9:]))
	return until, delay, true
}

// ForEachCursor calls fn with each range set that an address was given out of, by the name that [Tx.SetCursor] had for it, until fn
// returns an error.
func (tx *Tx) ForEachCursor(fn func(set string) error) error {
	return tx.each(bucketCursors, nil, func(k, _ []byte) error { return fn(string(k)) })
}
