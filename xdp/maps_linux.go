package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
)

// ErrInUse is the error of [Programs.Reserve] for an ifindex that has an endpoint.
var ErrInUse = errors.New("in use by another attachment")

// errClosed is the error of methods that are called after Close.
var errClosed = errors.New("programs are closed")

// endpointMap is the map for reading and writing whole endpoints.
func (p *Programs) endpointMap() (*ebpf.Map, error) {
	m, err := p.anyEndpointMap()
	if err != nil {
		return nil, err
	}
	if want := uint32(unsafe.Sizeof(redirectEndpoint{})); m.ValueSize() != want {
		return nil, fmt.Errorf("programs %s are of another version: their endpoints have %d bytes, want %d", p.digest, m.ValueSize(), want)
	}
	return m, nil
}

// anyEndpointMap is the map whatever its layout: for deleting.
func (p *Programs) anyEndpointMap() (*ebpf.Map, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.endpoints == nil {
		return nil, errClosed
	}
	return p.endpoints, nil
}

// Reserve inserts the endpoints of one attachment, by ifindex, and their counters at zero: all of them, or none with an
// error. An ifindex that has an endpoint already gives [ErrInUse], so of two processes that chose the same one wins.
// Each endpoint's Counters must be one of the ifindexes.
func (p *Programs) Reserve(entries map[uint32]Endpoint) (err error) {
	m, err := p.endpointMap()
	if err != nil {
		return err
	}
	counters, err := p.counterMap()
	if err != nil {
		return err
	}
	values, err := encodeAll(entries)
	if err != nil {
		return err
	}
	var done []uint32
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Delete(done...))
		}
	}()
	for _, ifindex := range slices.Sorted(maps.Keys(values)) {
		err = m.Update(ifindex, values[ifindex], ebpf.UpdateNoExist)
		if errors.Is(err, ebpf.ErrKeyExist) {
			return fmt.Errorf("reserve ifindex %d: %w", ifindex, ErrInUse)
		}
		if err != nil {
			return fmt.Errorf("reserve ifindex %d: %w", ifindex, err)
		}
		done = append(done, ifindex)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("reserve counters: %w", err)
	}
	zero := make([]redirectCounts, cpus)
	for key := range counterKeys(values) {
		// The endpoint under this key is ours, so what is here is left of a dead attachment.
		if err = counters.Update(key, zero, ebpf.UpdateAny); err != nil {
			return fmt.Errorf("reserve counters of ifindex %d: %w", key, err)
		}
	}
	return nil
}

func encodeAll(entries map[uint32]Endpoint) (map[uint32]redirectEndpoint, error) {
	values := make(map[uint32]redirectEndpoint, len(entries))
	for ifindex, e := range entries {
		v, err := e.encode()
		if err != nil {
			return nil, fmt.Errorf("endpoint of ifindex %d: %w", ifindex, err)
		}
		if _, ok := entries[e.Counters]; !ok {
			return nil, fmt.Errorf("endpoint of ifindex %d: counters %d are of no device of the attachment", ifindex, e.Counters)
		}
		values[ifindex] = v
	}
	return values, nil
}

func counterKeys(values map[uint32]redirectEndpoint) map[uint32]bool {
	keys := make(map[uint32]bool)
	for _, v := range values {
		keys[v.Counters] = true
	}
	return keys
}

// Update replaces the endpoint of an ifindex, which must have one; else the error is [fs.ErrNotExist]. Frames see the old
// one or the new one.
func (p *Programs) Update(ifindex uint32, e Endpoint) error {
	m, err := p.endpointMap()
	if err != nil {
		return err
	}
	v, err := e.encode()
	if err != nil {
		return fmt.Errorf("endpoint of ifindex %d: %w", ifindex, err)
	}
	if err := m.Update(ifindex, v, ebpf.UpdateExist); err != nil {
		return fmt.Errorf("update endpoint of ifindex %d: %w", ifindex, notExist(err))
	}
	return nil
}

// Lookup gives the endpoint of an ifindex. Where it has none the error is [fs.ErrNotExist].
func (p *Programs) Lookup(ifindex uint32) (Endpoint, error) {
	m, err := p.endpointMap()
	if err != nil {
		return Endpoint{}, err
	}
	var v redirectEndpoint
	if err := m.Lookup(ifindex, &v); err != nil {
		return Endpoint{}, fmt.Errorf("look up endpoint of ifindex %d: %w", ifindex, notExist(err))
	}
	return v.decode(), nil
}

// Delete removes the endpoints and the counters of the ifindexes. What is not there counts as removed; it goes on after
// an error and joins them. A map of counters that is pinned no more has none.
func (p *Programs) Delete(ifindexes ...uint32) error {
	if len(ifindexes) == 0 {
		return nil
	}
	endpoints, err := p.anyEndpointMap()
	if err != nil {
		return err
	}
	all := []*ebpf.Map{endpoints}
	counters, err := p.counterMap()
	if err == nil {
		// Counters first: a reservation of the same ifindex resets them once it has the endpoint.
		all = []*ebpf.Map{counters, endpoints}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, ifindex := range ifindexes {
		for _, m := range all {
			if err := m.Delete(ifindex); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				errs = append(errs, fmt.Errorf("delete endpoint of ifindex %d: %w", ifindex, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Endpoints gives all endpoints by ifindex. Those that are inserted or deleted meanwhile may be there or not.
func (p *Programs) Endpoints() (map[uint32]Endpoint, error) {
	m, err := p.endpointMap()
	if err != nil {
		return nil, err
	}
	out := make(map[uint32]Endpoint)
	var (
		ifindex uint32
		v       redirectEndpoint
	)
	// A walk over a hash map starts again where its key was deleted; seen entries are only overwritten.
	iter := m.Iterate()
	for iter.Next(&ifindex, &v) {
		out[ifindex] = v.decode()
	}
	if err := iter.Err(); err != nil {
		return nil, fmt.Errorf("list endpoints: %w", err)
	}
	return out, nil
}

// Indexes gives the ifindexes that have an endpoint, sorted, whatever the version. Those that are inserted or deleted meanwhile
// may be there or not.
func (p *Programs) Indexes() ([]uint32, error) {
	m, err := p.anyEndpointMap()
	if err != nil {
		return nil, err
	}
	seen := make(map[uint32]bool)
	var ifindex uint32
	value := make([]byte, m.ValueSize())
	iter := m.Iterate()
	for iter.Next(&ifindex, &value) {
		seen[ifindex] = true
	}
	if err := iter.Err(); err != nil {
		return nil, fmt.Errorf("list endpoints: %w", err)
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

// Counters gives the counters under a key, which is the TAP's ifindex or the host end's of a plain pod, summed over the
// CPUs: reasons that were counted at all, of whatever version the programs are. What the shortcut refused in XDP, before
// these programs saw it, is among them. Where there are none the error is [fs.ErrNotExist].
func (p *Programs) Counters(key uint32) (map[Reason]Counter, error) {
	m, err := p.counterMap()
	if err != nil {
		return nil, err
	}
	raw, err := m.LookupBytes(key)
	if err == nil && raw == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("look up counters of ifindex %d: %w", key, err)
	}
	// Versions differ in how many reasons they know, and so in the size of a CPU's part; a reason keeps its place.
	const size = int(unsafe.Sizeof(Counter{})) // as struct counter of bpf/tapir.h
	out := make(map[Reason]Counter)
	for cpu := range slices.Chunk(raw, int(m.ValueSize())) {
		for i := range len(cpu) / size {
			frames, bytes := binary.NativeEndian.Uint64(cpu[i*size:]), binary.NativeEndian.Uint64(cpu[i*size+8:])
			if frames == 0 {
				continue
			}
			sum := out[Reason(i)]
			out[Reason(i)] = Counter{Frames: sum.Frames + frames, Bytes: sum.Bytes + bytes}
		}
	}
	refused, err := newShortcut(filepath.Dir(p.dir), ShortcutDigest(), ShortcutLayout()).refusedOnce(key)
	if err != nil {
		return nil, err
	}
	for r, c := range refused {
		sum := out[r]
		out[r] = Counter{Frames: sum.Frames + c.Frames, Bytes: sum.Bytes + c.Bytes}
	}
	return out, nil
}

// notExist makes the map's error for a missing key the standard library's.
func notExist(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return fs.ErrNotExist
	}
	return err
}
