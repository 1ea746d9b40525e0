package state

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Pod names a pod that may come back: a pod of a StatefulSet has its name again.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// What is remembered of pods that are gone: the addresses of the last MaxRemembered that were released, for RememberFor.
const (
	MaxRemembered = 4096
	RememberFor   = 24 * time.Hour
)

// maxPodName bounds a namespace and a pod's name, in bytes (a DNS subdomain, RFC 1123). What is longer names no pod.
const maxPodName = 253

// Buckets of what is remembered. A file of an earlier tapir has them not; they are made when they are first written to.
var (
	bucketSticky      = []byte("sticky")      // network NUL ifname NUL namespace NUL name → memory in JSON
	bucketStickyOrder = []byte("stickyOrder") // time since boot, key in bucketSticky → nothing

	metaRemembered = []byte("remembered") // how many there are, 8 bytes
)

// pruneAtOnce is how many memories a release drops at most: more than the one it adds.
const pruneAtOnce = 16

// memory is the addresses that a pod had.
type memory struct {
	Addresses []rememberedAddress `json:"addresses"`
	Released  time.Duration       `json:"released"` // ns since boot
}

type rememberedAddress struct {
	Addr  netip.Addr    `json:"addr"`
	Until time.Duration `json:"until,omitempty"` // ns since boot: the end of its rest, by which this is told from another pod's; 0: no rest
}

// stickyKey is nil for what names no pod.
func stickyKey(key Key, pod Pod) []byte {
	if pod.Namespace == "" || pod.Name == "" || len(pod.Namespace) > maxPodName || len(pod.Name) > maxPodName {
		return nil
	}
	return []byte(strings.Join([]string{key.Network, key.IfName, pod.Namespace, pod.Name}, "\x00"))
}

// memoryOf reads what is remembered under a key.
func (tx *Tx) memoryOf(key []byte) (m memory, ok bool, err error) {
	value, err := tx.get(bucketSticky, key)
	if errors.Is(err, errNoBucket) {
		return memory{}, false, nil
	}
	if err != nil || value == nil {
		return memory{}, false, err
	}
	if err := json.Unmarshal(value, &m); err != nil {
		return memory{}, false, tx.corrupt(fmt.Errorf("addresses that %q had: %w", key, err))
	}
	return m, true, nil
}

// Remembered are the addresses that a pod had at this interface of its network, as far as it can have them again: they are free, or
// rest since it had them.
func (tx *Tx) Remembered(key Key, pod Pod) ([]netip.Addr, error) {
	k := stickyKey(key, pod)
	if k == nil {
		return nil, nil
	}
	m, ok, err := tx.memoryOf(k)
	if err != nil || !ok || tx.outdated(m.Released) {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range m.Addresses {
		mine, err := tx.restsSince(a)
		if err != nil {
			return nil, err
		}
		if mine {
			out = append(out, a.Addr)
		}
	}
	return out, nil
}

// outdated tells of a time of release whether it is too long ago. One in the future is of a clock that went back.
func (tx *Tx) outdated(released time.Duration) bool {
	age := tx.now() - released
	return age < 0 || age > RememberFor
}

// restsSince tells whether an address is free, or rests with no other user since it was remembered.
func (tx *Tx) restsSince(a rememberedAddress) (bool, error) {
	value, err := tx.get(bucketAddresses, addrBytes(a.Addr))
	if err != nil || value == nil {
		return err == nil, err
	}
	if until, delay, ok := parseRest(value); ok {
		return until == a.Until || tx.restLeft(until, delay) == 0, nil
	}
	return false, nil
}

// remember keeps the addresses of a lease that ends, for its pod.
func (tx *Tx) remember(l Lease) error {
	key := stickyKey(l.Key, l.Pod)
	if key == nil {
		return nil
	}
	if err := tx.makeSticky(); err != nil {
		return err
	}
	if err := tx.forget(key); err != nil {
		return err
	}
	m := memory{Released: tx.now()}
	for _, a := range l.Addresses {
		value, err := tx.get(bucketAddresses, addrBytes(a.Prefix.Addr()))
		if err != nil {
			return err
		}
		until, _, _ := parseRest(value)
		m.Addresses = append(m.Addresses, rememberedAddress{a.Prefix.Addr(), until})
	}
	value, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("remember addresses of %q: %w", key, err)
	}
	if err := tx.put(bucketSticky, key, value); err != nil {
		return err
	}
	if err := tx.put(bucketStickyOrder, orderKey(m.Released, key), []byte{}); err != nil {
		return err
	}
	if err := tx.countRemembered(1); err != nil {
		return err
	}
	return tx.pruneRemembered()
}

func orderKey(released time.Duration, key []byte) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(released)), key...)
}

// forget drops what is remembered under a key. Nothing is no error.
func (tx *Tx) forget(key []byte) error {
	m, ok, err := tx.memoryOf(key)
	if err != nil || !ok {
		return err
	}
	if err := tx.delete(bucketStickyOrder, orderKey(m.Released, key)); err != nil {
		return err
	}
	if err := tx.delete(bucketSticky, key); err != nil {
		return err
	}
	return tx.countRemembered(-1)
}

// pruneRemembered drops the oldest memories where there are too many, and those that are too old.
func (tx *Tx) pruneRemembered() error {
	for range pruneAtOnce {
		n, err := tx.remembered()
		if err != nil {
			return err
		}
		oldest, _, err := tx.atLeast(bucketStickyOrder, nil)
		if err != nil || oldest == nil {
			return err
		}
		if len(oldest) <= 8 || bytes.Count(oldest[8:], []byte{0}) != 3 {
			return tx.corrupt(fmt.Errorf("order of what is remembered: got entry %x", oldest))
		}
		if n <= MaxRemembered && !tx.outdated(time.Duration(binary.BigEndian.Uint64(oldest))) {
			return nil
		}
		if err := tx.forget(oldest[8:]); err != nil {
			return err
		}
		// Where the two buckets disagree, nothing was forgotten.
		if err := tx.delete(bucketStickyOrder, oldest); err != nil {
			return err
		}
	}
	return nil
}

func (tx *Tx) remembered() (uint64, error) {
	value, err := tx.get(bucketMeta, metaRemembered)
	switch {
	case err != nil || value == nil:
		return 0, err
	case len(value) != 8:
		return 0, tx.corrupt(fmt.Errorf("number of what is remembered: got bytes %x", value))
	}
	return binary.BigEndian.Uint64(value), nil
}

func (tx *Tx) countRemembered(change int) error {
	n, err := tx.remembered()
	if err != nil {
		return err
	}
	if change < 0 && n == 0 {
		return tx.corrupt(errors.New("number of what is remembered: want at least 1, got 0"))
	}
	return tx.put(bucketMeta, metaRemembered, binary.BigEndian.AppendUint64(nil, n+uint64(change)))
}

// makeSticky makes the buckets where an earlier tapir made the file.
func (tx *Tx) makeSticky() error {
	if tx.b == nil || !tx.writable {
		return ErrReadOnly
	}
	return guard(tx.path, "create buckets", func() error {
		for _, name := range [][]byte{bucketSticky, bucketStickyOrder} {
			if _, err := tx.b.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
}

// NamePod says whose pod a lease is of, where its record does not know: the kernel, from which it was rebuilt, does not. A lease that is
// not there is no error.
func (tx *Tx) NamePod(key Key, pod Pod) error {
	l, ok, err := tx.Lease(key)
	if err != nil || !ok || stickyKey(key, pod) == nil || l.Pod != (Pod{}) {
		return err
	}
	l.Pod = pod
	return tx.putLease(l)
}
