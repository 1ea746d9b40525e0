package xdp

import (
	"fmt"
	"net"
)

// Uplink is a device of the host's netns that leads to other nodes.
type Uplink struct {
	Index int // ifindex
	MAC   net.HardwareAddr
	MTU   int
}

// AttachUplink puts the uplink program on a device of the calling thread's netns, the host's, and makes the device a
// target of routes. It gives the mode that it got; an error of mode native says what the driver said. A foreign program
// stays and gives a [ForeignProgramError].
func (s *Shortcut) AttachUplink(u Uplink, mode Mode) (Mode, error) {
	v := shortcutAttachment{Flags: flagUplink, Counters: uint32(u.Index), Mtu: uint32(u.MTU)}
	if err := encodeMAC(&v.GatewayMac, u.MAC, RoleGuest); err != nil {
		return ModeOff, fmt.Errorf("uplink %d: MAC: %w", u.Index, err)
	}
	attachments, err := s.ownMap(shortcutMapAttachments)
	if err != nil {
		return ModeOff, err
	}
	if err := attachments.Put(uint32(u.Index), v); err != nil {
		return ModeOff, fmt.Errorf("uplink %d: %w", u.Index, err)
	}
	if err := s.addDevice(shortcutMapUplinks, uint32(u.Index)); err != nil {
		return ModeOff, err
	}
	got, err := s.attachXDP(u.Index, mode, uplinkProgram)
	if err != nil {
		return ModeOff, fmt.Errorf("attach XDP program to uplink %d: %w", u.Index, err)
	}
	return got, nil
}

// DetachUplink takes the program off the device and the device out of the maps. What is not there is success.
func (s *Shortcut) DetachUplink(ifindex int) error {
	if err := s.detachXDP(ifindex); err != nil {
		return fmt.Errorf("detach XDP program from uplink %d: %w", ifindex, err)
	}
	return s.Leave(uint32(ifindex))
}

// Upgrade replaces the programs of other versions on a device of the calling thread's netns, a TAP or an uplink, in one step, in
// the mode that they have. It says whether it did; a device without tapir's program stays so.
func (s *Shortcut) Upgrade(ifindex int) (bool, error) {
	d, old, err := s.state(ifindex)
	if err != nil {
		return false, fmt.Errorf("upgrade XDP program of ifindex %d: %w", ifindex, err)
	}
	if old == nil {
		return false, nil
	}
	defer old.Close()
	if d.Current {
		return false, nil
	}
	prog, err := s.program(d.Name)
	if err == nil {
		err = writeHook(ifindex, prog.FD(), modeFlag(d.Mode), old)
	}
	if err != nil {
		return false, fmt.Errorf("upgrade XDP program of ifindex %d: %w", ifindex, err)
	}
	return true, nil
}
