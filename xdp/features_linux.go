package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of include/uapi/linux/netdev.h.
const (
	netdevFamily     = "netdev"
	netdevCmdDevGet  = 1 // NETDEV_CMD_DEV_GET
	netdevIfindex    = 1 // NETDEV_A_DEV_IFINDEX
	netdevFeatures   = 3 // NETDEV_A_DEV_XDP_FEATURES
	featureBasic     = 1 << 0
	featureRedirect  = 1 << 1
	featureTransmit  = 1 << 2
	featureBuffers   = 1 << 5
	genlHeaderLength = 4
)

// XDPFeatures are what a driver can do in native mode (netdev-genl, Documentation/netlink/specs/netdev.yaml).
type XDPFeatures struct { //nolint:revive // what netdev-genl calls them: a driver has other features too
	Native   bool // NETDEV_XDP_ACT_BASIC: runs XDP programs
	Redirect bool // NETDEV_XDP_ACT_REDIRECT: they may redirect
	Transmit bool // NETDEV_XDP_ACT_NDO_XMIT: takes frames that native programs of other devices redirect to it
	Buffers  bool // NETDEV_XDP_ACT_RX_SG: frames may have several buffers, so that its MTU may be above a page
}

// FeaturesOf asks what the driver of a device in the calling thread's netns can do. What a veth can do depends on its peer.
// Kernels before 6.3 do not tell, an [UnsupportedError].
func FeaturesOf(ifindex int) (XDPFeatures, error) {
	bits, err := featureBits(ifindex)
	if err != nil {
		return XDPFeatures{}, fmt.Errorf("XDP features of ifindex %d: %w", ifindex, err)
	}
	return XDPFeatures{
		Native: bits&featureBasic != 0, Redirect: bits&featureRedirect != 0,
		Transmit: bits&featureTransmit != 0, Buffers: bits&featureBuffers != 0,
	}, nil
}

func featureBits(ifindex int) (uint64, error) {
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if errors.Is(err, unix.ENOENT) {
		return 0, &UnsupportedError{Feature: "netdev netlink", Needs: "kernel 6.3", Err: err}
	}
	if err != nil {
		return 0, err
	}
	req := nl.NewNetlinkRequest(int(family.ID), 0)
	// Not by nl.Genlmsg, which sends what lies behind its two bytes as the reserved ones.
	header := []byte{netdevCmdDevGet, 1, 0, 0}
	req.AddRawData(append(header, nl.NewRtAttr(netdevIfindex, nl.Uint32Attr(uint32(ifindex))).Serialize()...))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return 0, err
	}
	for _, m := range msgs {
		if len(m) < genlHeaderLength {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[genlHeaderLength:])
		if err != nil {
			return 0, err
		}
		for _, a := range attrs {
			if a.Attr.Type == netdevFeatures && len(a.Value) >= 8 {
				return binary.NativeEndian.Uint64(a.Value), nil
			}
		}
	}
	return 0, errors.New("the answer has no features")
}

// UplinkState is what is on an uplink's XDP hook, and what its driver can do.
type UplinkState struct {
	DeviceState
	Features XDPFeatures
	Known    bool // Features were told: kernels before 6.3 do not
}

// UplinkState tells what is on a device of the calling thread's netns.
func (s *Shortcut) UplinkState(ifindex int) (UplinkState, error) {
	d, err := s.TAPState(ifindex)
	if err != nil {
		return UplinkState{}, err
	}
	features, err := FeaturesOf(ifindex)
	var unsupported *UnsupportedError
	if errors.As(err, &unsupported) {
		return UplinkState{DeviceState: d}, nil
	}
	return UplinkState{DeviceState: d, Features: features, Known: err == nil}, err
}
