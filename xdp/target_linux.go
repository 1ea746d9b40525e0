package xdp

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf"
)

// AddDevice puts a TAP of the calling thread's netns into map devices.
func (s *Shortcut) AddDevice(tap uint32) error { return s.addDevice(shortcutMapDevices, tap) }

func (s *Shortcut) addDevice(name string, ifindex uint32) error {
	devices, err := s.ownMap(name)
	if err != nil {
		return err
	}
	if err := s.freshEpoch(); err != nil {
		return err
	}
	if err := devices.Put(ifindex, shortcutBpfDevmapVal{Ifindex: ifindex}); err != nil {
		return fmt.Errorf("add ifindex %d to map %s: %w", ifindex, name, err)
	}
	return nil
}

// HasDevice says whether a TAP is in map devices; the kernel takes it out when the device goes.
func (s *Shortcut) HasDevice(tap uint32) (bool, error) {
	devices, err := s.ownMap(shortcutMapDevices)
	if err != nil {
		return false, err
	}
	var v shortcutBpfDevmapVal
	err = devices.Lookup(tap, &v)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Publish makes the addresses of a participant known as targets: the last step of an ADD.
func (s *Shortcut) Publish(tap uint32) error {
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	v, err := s.attachment(tap)
	if err != nil {
		return fmt.Errorf("publish addresses of TAP %d: %w", tap, err)
	}
	return s.putPods(v)
}

func (s *Shortcut) putPods(v shortcutAttachment) error {
	pods, err := s.ownMap(shortcutMapPods)
	if err != nil {
		return err
	}
	for _, a := range v.addresses() {
		if err := pods.Put(mapped(a), v.pod(a)); err != nil {
			return fmt.Errorf("publish address %s: %w", a, err)
		}
	}
	return nil
}

// Published gives each address that is a target, with the ifindex of its TAP.
func (s *Shortcut) Published() (map[netip.Addr]uint32, error) {
	pods, err := s.ownMap(shortcutMapPods)
	if err != nil {
		return nil, err
	}
	out := map[netip.Addr]uint32{}
	var (
		key shortcutIpv6Addr
		v   shortcutPod
	)
	iter := pods.Iterate()
	for iter.Next(&key, &v) {
		out[netip.AddrFrom16(bytes16(key.Word)).Unmap()] = v.Tap
	}
	if err := iter.Err(); err != nil {
		return nil, fmt.Errorf("list targets: %w", err)
	}
	return out, nil
}

// Withdraw takes addresses out of map pods that lead to this TAP: the first step of a DEL. Those of the TAP's entry are
// withdrawn too; an address that by now leads elsewhere stays.
func (s *Shortcut) Withdraw(tap uint32, addresses ...netip.Addr) error {
	lock, err := s.lock()
	if err != nil {
		return notPinned(err)
	}
	defer lock.Close()
	if v, err := s.attachment(tap); err == nil {
		addresses = append(addresses, v.addresses()...)
	}
	pods, err := s.anyMap(shortcutMapPods)
	if err != nil {
		return notPinned(err)
	}
	var errs []error
	for _, a := range addresses {
		if err := withdraw(pods, tap, a); err != nil {
			errs = append(errs, fmt.Errorf("withdraw address %s: %w", a, err))
		}
	}
	return errors.Join(errs...)
}

// withdraw deletes the entry of a where it leads to the TAP, which stands first in the value in all layouts.
func withdraw(pods *ebpf.Map, tap uint32, a netip.Addr) error {
	value, err := pods.LookupBytes(mapped(a))
	if err != nil || value == nil || len(value) < 4 || *(*uint32)(unsafe.Pointer(&value[0])) != tap {
		return err
	}
	err = pods.Delete(mapped(a))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// Leave removes the entries of ifindexes, their devices and their counters; addresses that lead to them are withdrawn first.
// What is not there counts as removed.
func (s *Shortcut) Leave(ifindexes ...uint32) error {
	var errs []error
	for _, ifindex := range ifindexes {
		errs = append(errs, s.Withdraw(ifindex))
		for _, name := range []string{shortcutMapAttachments, shortcutMapDevices, shortcutMapPaths} {
			m, err := s.anyMap(name)
			if err == nil {
				err = m.Delete(ifindex)
			}
			if err = notPinned(err); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				errs = append(errs, fmt.Errorf("remove ifindex %d from map %s: %w", ifindex, name, err))
			}
		}
	}
	return errors.Join(errs...)
}
