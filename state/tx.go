package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"go.etcd.io/bbolt"
)

// Tx is one transaction. It must not be used after the function that it was given to has returned.
type Tx struct {
	b        *bbolt.Tx // nil: there is no state, and everything is empty
	path     string
	now      func() time.Duration
	writable bool
}

// errNoBucket is met in a file that was never filled.
var errNoBucket = errors.New("bucket is missing")

func (tx *Tx) corrupt(cause error) error { return &corruptError{path: tx.path, cause: cause} }

// bucket runs fn on a bucket. It does not where there is no state.
func (tx *Tx) bucket(name []byte, fn func(*bbolt.Bucket) error) error {
	if tx.b == nil {
		return nil
	}
	return guard(tx.path, string(name), func() error {
		b := tx.b.Bucket(name)
		if b == nil {
			return &corruptError{path: tx.path, cause: fmt.Errorf("bucket %q: %w", name, errNoBucket)}
		}
		return fn(b)
	})
}

// get copies a value; nil where there is none.
func (tx *Tx) get(bucket, key []byte) (value []byte, err error) {
	err = tx.bucket(bucket, func(b *bbolt.Bucket) error {
		value = bytes.Clone(b.Get(key))
		return nil
	})
	return value, err
}

func (tx *Tx) put(bucket, key, value []byte) error {
	if tx.b == nil || !tx.writable {
		return ErrReadOnly
	}
	return tx.bucket(bucket, func(b *bbolt.Bucket) error { return b.Put(key, value) })
}

func (tx *Tx) delete(bucket, key []byte) error {
	if tx.b != nil && !tx.writable {
		return ErrReadOnly
	}
	return tx.bucket(bucket, func(b *bbolt.Bucket) error { return b.Delete(key) })
}

// disorder is the error for a key that stands where a search should not have ended.
func (tx *Tx) disorder(bucket, key []byte) error {
	return tx.corrupt(fmt.Errorf("bucket %q: key %q is out of order", bucket, key))
}

// atLeast finds the first entry whose key is not below key; nil where there is none.
func (tx *Tx) atLeast(bucket, key []byte) (k, v []byte, err error) {
	err = tx.bucket(bucket, func(b *bbolt.Bucket) error {
		foundKey, value := b.Cursor().Seek(key)
		if foundKey != nil && bytes.Compare(foundKey, key) < 0 {
			return tx.disorder(bucket, foundKey)
		}
		k, v = bytes.Clone(foundKey), bytes.Clone(value)
		return nil
	})
	return k, v, err
}

// atMost finds the last entry whose key is not above key; nil where there is none.
func (tx *Tx) atMost(bucket, key []byte) (k, v []byte, err error) {
	err = tx.bucket(bucket, func(b *bbolt.Bucket) error {
		c := b.Cursor()
		foundKey, value := c.Seek(key)
		switch {
		case foundKey == nil:
			foundKey, value = c.Last()
		case !bytes.Equal(foundKey, key):
			foundKey, value = c.Prev()
		}
		if foundKey != nil && bytes.Compare(foundKey, key) > 0 {
			return tx.disorder(bucket, foundKey)
		}
		k, v = bytes.Clone(foundKey), bytes.Clone(value)
		return nil
	})
	return k, v, err
}

// each calls fn with every entry whose key has the prefix, in order. fn may change the bucket.
func (tx *Tx) each(bucket, prefix []byte, fn func(k, v []byte) error) error {
	done := errors.New("past the prefix")
	err := tx.eachFrom(bucket, prefix, func(k, v []byte) error {
		if !bytes.HasPrefix(k, prefix) {
			return done
		}
		return fn(k, v)
	})
	if err == done { //nolint:errorlint // this very value, not one that wraps it
		return nil
	}
	return err
}

// eachFrom calls fn with every entry from the key start on, in order, until fn returns an error. fn may change the
// bucket.
func (tx *Tx) eachFrom(bucket, start []byte, fn func(k, v []byte) error) error {
	for seek := start; ; {
		k, v, err := tx.atLeast(bucket, seek)
		if err != nil || k == nil {
			return err
		}
		if err := fn(k, v); err != nil {
			return err
		}
		seek = append(k, 0)
	}
}

// CNI allows no NUL in any of the parts.
func (k Key) bytes() []byte { return []byte(k.Network + "\x00" + k.ContainerID + "\x00" + k.IfName) }

func parseKey(b []byte) (Key, bool) {
	parts := strings.Split(string(b), "\x00")
	if len(parts) != 3 {
		return Key{}, false
	}
	return Key{Network: parts[0], ContainerID: parts[1], IfName: parts[2]}, true
}

func networkPrefix(network string) []byte {
	if network == "" {
		return nil
	}
	return []byte(network + "\x00")
}

// Attachment is the record of an attachment; ok tells whether there is one.
func (tx *Tx) Attachment(key Key) (a Attachment, ok bool, err error) {
	value, err := tx.get(bucketAttachments, key.bytes())
	if err != nil || value == nil {
		return Attachment{}, false, err
	}
	a, err = tx.parseAttachment(key.bytes(), value)
	return a, err == nil, err
}

// parseAttachment decodes a record, which must be that of its key.
func (tx *Tx) parseAttachment(key, value []byte) (a Attachment, err error) {
	if err := json.Unmarshal(value, &a); err != nil {
		return Attachment{}, tx.corrupt(fmt.Errorf("attachment %q: %w", key, err))
	}
	if !bytes.Equal(a.Key.bytes(), key) {
		return Attachment{}, tx.corrupt(fmt.Errorf("attachment %q: got the record of %q", key, a.Key))
	}
	return a, nil
}

// Put records an attachment, in place of an earlier record with its key. A guest MAC that another attachment of the
// network has is a *[MACInUseError].
func (tx *Tx) Put(a Attachment) error {
	if a.Network == "" || a.ContainerID == "" || a.IfName == "" || strings.Contains(a.Key.String(), "\x00") {
		return fmt.Errorf("record attachment %q: want network, container id and ifname, none with a NUL", a.Key)
	}
	value, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("record attachment %q: %w", a.Key, err)
	}
	old, found, err := tx.Attachment(a.Key)
	if err != nil {
		return err
	}
	indexed := found && old.GuestMAC != "" && !old.FixedMAC
	if indexed && (old.GuestMAC != a.GuestMAC || a.FixedMAC) {
		if err := tx.delete(bucketMACs, macKey(a.Network, old.GuestMAC)); err != nil {
			return err
		}
	}
	if a.GuestMAC != "" && !a.FixedMAC && (!indexed || old.GuestMAC != a.GuestMAC) {
		holder, taken, err := tx.ByGuestMAC(a.Network, a.GuestMAC)
		if err != nil {
			return err
		}
		if taken && holder != a.Key {
			return &MACInUseError{MAC: a.GuestMAC, Holder: holder}
		}
		if err := tx.put(bucketMACs, macKey(a.Network, a.GuestMAC), a.Key.bytes()); err != nil {
			return err
		}
	}
	return tx.put(bucketAttachments, a.Key.bytes(), value)
}

// Delete forgets an attachment. One that is not there is no error. Its leases are not touched.
func (tx *Tx) Delete(key Key) error {
	a, found, err := tx.Attachment(key)
	if err != nil || !found {
		return err
	}
	if a.GuestMAC != "" && !a.FixedMAC {
		if err := tx.delete(bucketMACs, macKey(key.Network, a.GuestMAC)); err != nil {
			return err
		}
	}
	return tx.delete(bucketAttachments, key.bytes())
}

// ForEach calls fn with each attachment of a network, of all networks where that is empty, in the order of their
// keys, until fn returns an error. fn may put and delete attachments.
func (tx *Tx) ForEach(network string, fn func(Attachment) error) error {
	return tx.each(bucketAttachments, networkPrefix(network), func(k, v []byte) error {
		a, err := tx.parseAttachment(k, v)
		if err != nil {
			return err
		}
		return fn(a)
	})
}

// ByGuestMAC finds the attachment of the network whose guest has the MAC, and alone: not one of clones ([Attachment.FixedMAC]).
func (tx *Tx) ByGuestMAC(network, mac string) (key Key, ok bool, err error) {
	value, err := tx.get(bucketMACs, macKey(network, mac))
	if err != nil || value == nil {
		return Key{}, false, err
	}
	key, ok = parseKey(value)
	if !ok {
		return Key{}, false, tx.corrupt(fmt.Errorf("guest MAC %s: got key %q", mac, value))
	}
	return key, true, nil
}

func macKey(network, mac string) []byte {
	if hw, err := net.ParseMAC(mac); err == nil {
		mac = hw.String()
	}
	return []byte(network + "\x00" + mac)
}

// Empty tells whether the state describes nothing: no attachment, no lease and no saved sysctl.
func (tx *Tx) Empty() (bool, error) {
	for _, bucket := range [][]byte{bucketAttachments, bucketLeases, bucketSysctls} {
		k, _, err := tx.atLeast(bucket, nil)
		if err != nil || k != nil {
			return false, err
		}
	}
	return true, nil
}
