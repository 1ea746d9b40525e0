package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	_ "github.com/tapir-cni/tapir/internal/rtnl" // has the library report the kernel's extended acks
)

// Attributes, flags and attach modes of include/uapi/linux/if_link.h.
const (
	iflaXDPFD         = 1
	iflaXDPAttached   = 2
	iflaXDPFlags      = 3
	iflaXDPDrvProgID  = 5
	iflaXDPSkbProgID  = 6
	iflaXDPHwProgID   = 7
	iflaXDPExpectedFD = 8

	xdpUpdateIfNoexist = 1 << 0
	xdpSkbMode         = 1 << 1
	xdpDrvMode         = 1 << 2
	xdpReplace         = 1 << 4
)

// hookPrograms are the ids of the programs on a device's XDP hook, 0 for none.
type hookPrograms struct{ native, generic, offloaded uint32 }

// readHook asks for the programs on the XDP hook of a device in the calling thread's netns.
func readHook(ifindex int) (hookPrograms, error) {
	var on hookPrograms
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(ifindex)
	req.AddData(msg)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return on, err
	}
	if len(msgs) != 1 || len(msgs[0]) < unix.SizeofIfInfomsg {
		return on, fmt.Errorf("want one answer, got %d", len(msgs))
	}
	attrs, err := nl.ParseRouteAttr(msgs[0][unix.SizeofIfInfomsg:])
	if err != nil {
		return on, err
	}
	for _, a := range attrs {
		if a.Attr.Type&^unix.NLA_F_NESTED != unix.IFLA_XDP {
			continue
		}
		nested, err := nl.ParseRouteAttr(a.Value)
		if err != nil {
			return on, err
		}
		for _, n := range nested {
			if len(n.Value) < 4 {
				continue
			}
			id := binary.NativeEndian.Uint32(n.Value)
			switch n.Attr.Type {
			case iflaXDPDrvProgID:
				on.native = id
			case iflaXDPSkbProgID:
				on.generic = id
			case iflaXDPHwProgID:
				on.offloaded = id
			}
		}
	}
	return on, nil
}

// writeHook puts a program on the XDP hook, or takes it off where fd is -1. With expected not nil it happens only where
// that program is there now.
func writeHook(ifindex, fd int, flags uint32, expected *ebpf.Program) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(ifindex)
	req.AddData(msg)
	attr := nl.NewRtAttr(unix.IFLA_XDP|unix.NLA_F_NESTED, nil)
	attr.AddRtAttr(iflaXDPFD, nl.Uint32Attr(uint32(int32(fd))))
	if expected != nil {
		flags |= xdpReplace
		attr.AddRtAttr(iflaXDPExpectedFD, nl.Uint32Attr(uint32(expected.FD())))
	}
	attr.AddRtAttr(iflaXDPFlags, nl.Uint32Attr(flags))
	req.AddData(attr)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// DeviceState is what is on the XDP hook of a device.
type DeviceState struct {
	Mode    Mode   // ModeOff, ModeNative or ModeGeneric
	Foreign bool   // the program is not tapir's
	ID      uint32 // of the program
	Name    string
	Tag     string

	// Version is the digest of the shortcut's version that the program is of; empty where it is not known, since the version
	// is not pinned any more. Current: it is this binary's.
	Version string
	Current bool
}

// ForeignProgramError says that another software's XDP program is on a device.
type ForeignProgramError struct {
	Ifindex int
	Mode    Mode
	ID      uint32
	Name    string // may be empty
}

func (e *ForeignProgramError) Error() string {
	return fmt.Sprintf("ifindex %d has XDP program %q (id %d, %s), which is not tapir's; detach it first, or set xdp.mode to off", e.Ifindex, e.Name, e.ID, e.Mode)
}

// state tells what is on a device's XDP hook. Its second result is open where the program is tapir's.
func (s *Shortcut) state(ifindex int) (DeviceState, *ebpf.Program, error) {
	on, err := readHook(ifindex)
	if err != nil {
		return DeviceState{}, nil, err
	}
	d := DeviceState{Mode: ModeOff}
	switch {
	case on.native != 0:
		d.Mode, d.ID = ModeNative, on.native
	case on.generic != 0:
		d.Mode, d.ID = ModeGeneric, on.generic
	case on.offloaded != 0:
		d.Mode, d.ID, d.Foreign = ModeNative, on.offloaded, true
		return d, nil, nil
	default:
		return d, nil, nil
	}
	prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(d.ID))
	if errors.Is(err, unix.ENOENT) {
		return DeviceState{Mode: ModeOff}, nil, nil // gone since
	}
	if err != nil {
		return d, nil, fmt.Errorf("open program %d: %w", d.ID, err)
	}
	if err := s.describe(&d, prog); err != nil || d.Foreign {
		return d, nil, errors.Join(err, prog.Close())
	}
	return d, prog, nil
}

// describe fills in whose the program is.
func (s *Shortcut) describe(d *DeviceState, prog *ebpf.Program) error {
	info, err := prog.Info()
	if err != nil {
		return fmt.Errorf("program %d: %w", d.ID, err)
	}
	d.Name, d.Tag = info.Name, info.Tag
	ids, _ := info.MapIDs()
	if d.Foreign, err = foreignShortcut(info.Name, ids); err != nil || d.Foreign {
		return err
	}
	d.Version, err = s.versionOf(info.Name, ebpf.ProgramID(d.ID))
	d.Current = d.Version == s.digest
	return err
}
