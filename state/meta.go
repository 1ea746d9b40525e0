package state

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	berrors "go.etcd.io/bbolt/errors"
)

// schema is the version of the layout below. A file of a higher one is refused, never guessed at.
const schema = 1

// The buckets of the file.
var (
	bucketMeta        = []byte("meta")        // schema, bootID, nextIndex
	bucketAttachments = []byte("attachments") // key → Attachment in JSON
	bucketMACs        = []byte("macs")        // network NUL MAC → key
	bucketSysctls     = []byte("sysctls")     // name → value that it had before tapir
	bucketMisc        = []byte("misc")        // network NUL name → bytes
	bucketLeases      = []byte("leases")      // key → Lease in JSON
	bucketAddresses   = []byte("addresses")   // address → who has it
	bucketRuns        = []byte("runs")        // first → last address of a run of used ones
	bucketResting     = []byte("resting")     // time, address → how long it rests
	bucketCursors     = []byte("cursors")     // range set → the address given out last

	buckets = [][]byte{
		bucketMeta, bucketAttachments, bucketMACs, bucketSysctls, bucketMisc,
		bucketLeases, bucketAddresses, bucketRuns, bucketResting, bucketCursors,
	} // and those of sticky.go

	metaSchema    = []byte("schema")
	metaBootID    = []byte("bootID")
	metaNextIndex = []byte("nextIndex")
)

// staleError says that the file is of another boot, or (no id) that nobody filled it yet.
type staleError struct{ bootID string }

func (e *staleError) Error() string { return fmt.Sprintf("state is of boot %q", e.bootID) }

// checkMeta tells whether the file was filled; it is an error if that was by a newer tapir or in another boot.
func (s *Store) checkMeta(tx *Tx) (known bool, err error) {
	value, err := tx.get(bucketMeta, metaSchema)
	if errors.Is(err, errNoBucket) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	version, err := strconv.ParseUint(string(value), 10, 32)
	if err != nil || version == 0 {
		return false, tx.corrupt(fmt.Errorf("schema: want a number, got %q", value))
	}
	if version > schema {
		return false, fmt.Errorf("open state %q: %w: it has %d, this tapir knows %d; install the newer tapir again, or drain the node and remove the file",
			tx.path, ErrSchema, version, schema)
	}
	was, err := tx.get(bucketMeta, metaBootID)
	if err != nil {
		return false, err
	}
	is, err := s.bootID()
	if err != nil {
		return false, err
	}
	if string(was) != is {
		return false, &staleError{bootID: string(was)}
	}
	return true, nil
}

// fill begins a new file with what the kernel knows of attachments.
func (s *Store) fill(ctx context.Context, tx *Tx, found *[]Attachment) error {
	if found == nil {
		list, err := s.rebuild(ctx)
		if err != nil {
			return &corruptError{path: tx.path, cause: err, final: true}
		}
		if len(list) > 0 {
			s.log.Warn("state was missing; rebuilt it from the kernel", "file", tx.path, "attachments", len(list))
		}
		found = &list
	}
	boot, err := s.bootID()
	if err != nil {
		return err
	}
	err = guard(tx.path, "create buckets", func() error {
		for _, name := range buckets {
			if _, err := tx.b.CreateBucket(name); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, berrors.ErrBucketExists) {
		return tx.corrupt(errors.New("the schema is lost and the rest is not"))
	}
	if err != nil {
		return fmt.Errorf("fill state %q: %w", tx.path, err)
	}
	if err := tx.put(bucketMeta, metaSchema, strconv.AppendInt(nil, schema, 10)); err != nil {
		return err
	}
	if err := tx.put(bucketMeta, metaBootID, []byte(boot)); err != nil {
		return err
	}
	for _, a := range *found {
		if err := tx.restore(a); err != nil {
			return fmt.Errorf("rebuild attachment %q: %w", a.Key, err)
		}
	}
	return nil
}

// restore records what the kernel knows of an attachment. An address that two devices claim goes to the first. A MAC that two have is that of
// clones: no other ADD gives it twice.
func (tx *Tx) restore(a Attachment) error {
	a.Rebuilt = true
	if a.GuestMAC != "" {
		if _, taken, err := tx.ByGuestMAC(a.Network, a.GuestMAC); err != nil {
			return err
		} else if taken {
			a.FixedMAC = true
		}
	}
	if err := tx.Put(a); err != nil {
		return err
	}
	var free []Address
	for _, address := range a.Addresses {
		user, err := tx.AddressUser(address.Prefix.Addr())
		if err != nil {
			return err
		}
		if user.Status == AddressFree {
			free = append(free, address)
		}
	}
	if len(free) == 0 {
		return nil
	}
	return tx.PutLease(Lease{Key: a.Key, Addresses: free, Acquired: a.Created})
}

// The ifindexes that tapir chooses: far above those that kernels count up to, below what fits a C int.
const (
	firstIndex = 1 << 20
	endIndex   = 1 << 30
	blockSize  = 4
)

// OwnIndex reports whether an ifindex is of those that [Tx.NextIndexBlock] gives out, which the kernel does not choose by
// itself before it has made a million links.
func OwnIndex(index int) bool { return index >= firstIndex && index < endIndex }

// NextIndexBlock gives the first of [4] ifindexes that no other attachment of this state was given since the counter,
// which starts at random where the state is new, went round. All are at least 1<<20 and below 1<<30.
func (tx *Tx) NextIndexBlock() (uint32, error) {
	value, err := tx.get(bucketMeta, metaNextIndex)
	if err != nil {
		return 0, err
	}
	var block uint32
	switch len(value) {
	case 0:
		block = firstIndex + blockSize*rand.Uint32N((endIndex-firstIndex)/blockSize)
	case 4:
		block = binary.BigEndian.Uint32(value)
	}
	if block < firstIndex || block >= endIndex || block%blockSize != 0 {
		return 0, tx.corrupt(fmt.Errorf("next ifindex block: got bytes %x", value))
	}
	next := block + blockSize
	if next >= endIndex {
		next = firstIndex
	}
	return block, tx.put(bucketMeta, metaNextIndex, binary.BigEndian.AppendUint32(nil, next))
}
