package rtnl

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of include/uapi/linux/ethtool.h.
const (
	ethtoolGStrings  = 0x1b // ETHTOOL_GSTRINGS
	ethtoolGSSetInfo = 0x37 // ETHTOOL_GSSET_INFO
	ethtoolGFeatures = 0x3a // ETHTOOL_GFEATURES
	ethSSFeatures    = 4    // ETH_SS_FEATURES
	ethGStringLen    = 32   // ETH_GSTRING_LEN
	iflaMaxMTU       = 51   // IFLA_MAX_MTU
)

// Offloads are the active features of a link in the calling thread's netns, by ethtool's names ("rx-gro", "tx-tcp-segmentation").
func Offloads(name string) (map[string]bool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("offloads of %q: %w", name, err)
	}
	defer unix.Close(fd)
	set := struct {
		cmd, reserved uint32
		mask          uint64
		count         [1]uint32
	}{cmd: ethtoolGSSetInfo, mask: 1 << ethSSFeatures}
	if err := ethtool(fd, name, unsafe.Pointer(&set)); err != nil {
		return nil, fmt.Errorf("offloads of %q: %w", name, err)
	}
	n := int(set.count[0])
	names := make([]byte, 12+n*ethGStringLen) // struct ethtool_gstrings
	binary.NativeEndian.PutUint32(names, ethtoolGStrings)
	binary.NativeEndian.PutUint32(names[4:], ethSSFeatures)
	binary.NativeEndian.PutUint32(names[8:], uint32(n))
	const block = 16 // struct ethtool_get_features_block: available, requested, active, never_changed
	blocks := (n + 31) / 32
	features := make([]byte, 8+blocks*block)
	binary.NativeEndian.PutUint32(features, ethtoolGFeatures)
	binary.NativeEndian.PutUint32(features[4:], uint32(blocks))
	for _, buf := range [][]byte{names, features} {
		if err := ethtool(fd, name, unsafe.Pointer(&buf[0])); err != nil {
			return nil, fmt.Errorf("offloads of %q: %w", name, err)
		}
	}
	out := map[string]bool{}
	for i := range n {
		active := binary.NativeEndian.Uint32(features[8+i/32*block+8:])
		if feature := unix.ByteSliceToString(names[12+i*ethGStringLen:][:ethGStringLen]); active&(1<<(i%32)) != 0 {
			out[strings.TrimSpace(feature)] = true
		}
	}
	return out, nil
}

// ethtool makes one request, whose struct data points to.
func ethtool(fd int, name string, data unsafe.Pointer) error {
	var req struct { // struct ifreq, include/uapi/linux/if.h
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [24 - unsafe.Sizeof(uintptr(0))]byte
	}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	req.data = data
	var pin runtime.Pinner // the kernel goes from one to the other by its address
	pin.Pin(data)
	defer pin.Unpin()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return errno
	}
	return nil
}

// MaxMTU is the largest MTU that the link's driver takes now, in bytes; 0 where it does not tell. XDP programs lower it.
func (c *Conn) MaxMTU(index int) (int, error) {
	attrs, err := c.linkAttrs(index)
	if err != nil {
		return 0, err
	}
	for _, a := range attrs {
		if a.Attr.Type == iflaMaxMTU && len(a.Value) >= 4 {
			return int(binary.NativeEndian.Uint32(a.Value)), nil
		}
	}
	return 0, nil
}
