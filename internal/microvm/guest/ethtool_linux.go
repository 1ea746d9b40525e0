package main

import (
	"encoding/binary"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/microvm/agentapi"
)

// The string sets of statistics and of feature names (include/uapi/linux/ethtool.h).
const (
	ethSSStats      = 1
	ethSSFeatures   = 4
	ethGStringLen   = 32
	featureBlockLen = 32 // bits in each block of ETHTOOL_GFEATURES
)

// ethtool does SIOCETHTOOL with data, whose first word is the command. The kernel writes its answer into data.
func ethtool(card string, data []byte) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// struct ifreq: the name, then a pointer to data. An unsafe.Pointer, so that the collector sees it.
	var req struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(req.name[:unix.IFNAMSIZ-1], card)
	req.data = unsafe.Pointer(&data[0])
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	runtime.KeepAlive(data)
	if errno != 0 {
		return errno
	}
	return nil
}

// channels is how many queue pairs the driver uses: combined_count of struct ethtool_channels.
func channels(card string) (int, error) {
	data := make([]byte, 9*4)
	binary.NativeEndian.PutUint32(data, unix.ETHTOOL_GCHANNELS)
	if err := ethtool(card, data); err != nil {
		return 0, fmt.Errorf("ask %s for its channels: %w", card, err)
	}
	return int(binary.NativeEndian.Uint32(data[8*4:])), nil
}

// featureNames are the kernel's names of features, by bit.
func featureNames(card string) ([]string, error) { return stringSet(card, ethSSFeatures) }

// stringSet gives the names of a string set, by their number.
func stringSet(card string, set uint32) ([]string, error) {
	info := make([]byte, 4+4+8+4) // struct ethtool_sset_info with one count
	binary.NativeEndian.PutUint32(info, unix.ETHTOOL_GSSET_INFO)
	binary.NativeEndian.PutUint64(info[8:], 1<<set)
	if err := ethtool(card, info); err != nil {
		return nil, fmt.Errorf("ask %s for the length of string set %d: %w", card, set, err)
	}
	n := int(binary.NativeEndian.Uint32(info[16:]))
	data := make([]byte, 12+n*ethGStringLen) // struct ethtool_gstrings
	binary.NativeEndian.PutUint32(data, unix.ETHTOOL_GSTRINGS)
	binary.NativeEndian.PutUint32(data[4:], set)
	binary.NativeEndian.PutUint32(data[8:], uint32(n))
	if err := ethtool(card, data); err != nil {
		return nil, fmt.Errorf("ask %s for string set %d: %w", card, set, err)
	}
	names := make([]string, n)
	for i := range names {
		names[i] = unix.ByteSliceToString(data[12+i*ethGStringLen:][:ethGStringLen])
	}
	return names, nil
}

// statistics are the driver's own counters, which for virtio_net are those of each queue.
func statistics(card string) (map[string]uint64, error) {
	names, err := stringSet(card, ethSSStats)
	if err != nil {
		return nil, err
	}
	data := make([]byte, 8+8*len(names)) // struct ethtool_stats
	binary.NativeEndian.PutUint32(data, unix.ETHTOOL_GSTATS)
	binary.NativeEndian.PutUint32(data[4:], uint32(len(names)))
	if err := ethtool(card, data); err != nil {
		return nil, fmt.Errorf("ask %s for its statistics: %w", card, err)
	}
	all := make(map[string]uint64, len(names))
	for i, name := range names {
		all[name] = binary.NativeEndian.Uint64(data[8+8*i:])
	}
	return all, nil
}

// offloads sets features by name and gives those that are active then. A wish that the card does not follow is an error:
// a test that believes an offload to be off must be able to rely on it.
func offloads(card string, set map[string]bool) (agentapi.Offloads, error) {
	names, err := featureNames(card)
	if err != nil {
		return agentapi.Offloads{}, err
	}
	blocks := (len(names) + featureBlockLen - 1) / featureBlockLen
	if len(set) > 0 {
		if err := setFeatures(card, names, blocks, set); err != nil {
			return agentapi.Offloads{}, err
		}
	}
	data := make([]byte, 8+blocks*16) // struct ethtool_gfeatures: available, requested, active, never_changed
	binary.NativeEndian.PutUint32(data, unix.ETHTOOL_GFEATURES)
	binary.NativeEndian.PutUint32(data[4:], uint32(blocks))
	if err := ethtool(card, data); err != nil {
		return agentapi.Offloads{}, fmt.Errorf("ask %s for its features: %w", card, err)
	}
	o := agentapi.Offloads{Active: map[string]bool{}}
	for i, name := range names {
		active := binary.NativeEndian.Uint32(data[8+i/featureBlockLen*16+8:])
		if active>>(i%featureBlockLen)&1 == 1 {
			o.Active[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if o.Active[name] != set[name] {
			return o, fmt.Errorf("feature %s of %s: want %v, and the card stays at %v", name, card, set[name], o.Active[name])
		}
	}
	return o, nil
}

func setFeatures(card string, names []string, blocks int, set map[string]bool) error {
	data := make([]byte, 8+blocks*8) // struct ethtool_sfeatures: valid, requested
	binary.NativeEndian.PutUint32(data, unix.ETHTOOL_SFEATURES)
	binary.NativeEndian.PutUint32(data[4:], uint32(blocks))
	for name, on := range set {
		i := slices.Index(names, name)
		if i < 0 {
			return fmt.Errorf("unknown feature %q", name)
		}
		block, bit := data[8+i/featureBlockLen*8:], uint32(1)<<(i%featureBlockLen)
		binary.NativeEndian.PutUint32(block, binary.NativeEndian.Uint32(block)|bit)
		if on {
			binary.NativeEndian.PutUint32(block[4:], binary.NativeEndian.Uint32(block[4:])|bit)
		}
	}
	if err := ethtool(card, data); err != nil {
		return fmt.Errorf("set features of %s: %w", card, err)
	}
	return nil
}
