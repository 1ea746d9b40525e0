package xdp

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
)

// Uplink is a device of the host's netns that leads to other nodes.
type Uplink struct {
	Index int // ifindex
	MAC   net.HardwareAddr
	MTU   int
}

// AttachUplink puts the uplink program on a device of the calling thread's netns, the host's, and makes the device a
// target of routes. It gives the mode that it got; the error of mode native has what the driver said, of an MTU that it cannot
// take for one. A foreign program stays and gives a [ForeignProgramError].
//
// XDP on a TAP sends to a device whose driver takes such frames ([XDPFeatures.Transmit]); for any other they go by tc.
// That, the MAC and the MTU may change: doing it again brings the programs up to date.
func (s *Shortcut) AttachUplink(u Uplink, mode Mode) (Mode, error) {
	v := shortcutAttachment{Flags: flagUplink, Counters: uint32(u.Index), Mtu: uint32(u.MTU)}
	if err := encodeMAC(&v.GatewayMac, u.MAC, RoleGuest); err != nil {
		return ModeOff, fmt.Errorf("uplink %d: MAC: %w", u.Index, err)
	}
	// The program first: without an entry it passes all.
	got, err := s.attachXDP(u.Index, mode, uplinkProgram)
	if err != nil {
		return ModeOff, fmt.Errorf("attach XDP program to uplink %d: %w", u.Index, err)
	}
	if err := s.putUplink(uint32(u.Index), v); err != nil {
		return got, fmt.Errorf("uplink %d: %w", u.Index, err)
	}
	return got, nil
}

func (s *Shortcut) putUplink(ifindex uint32, v shortcutAttachment) error {
	if err := s.setTransmit(ifindex); err != nil {
		return err
	}
	paths, err := s.ownMap(shortcutMapPaths)
	if err != nil {
		return err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	// Counters that are there go on.
	err = paths.Update(ifindex, make([]shortcutPathCounts, cpus), ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return err
	}
	attachments, err := s.ownMap(shortcutMapAttachments)
	if err != nil {
		return err
	}
	return attachments.Put(ifindex, v)
}

// setTransmit has the uplink in map uplinks where native programs of other devices can redirect to it.
func (s *Shortcut) setTransmit(ifindex uint32) error {
	features, err := FeaturesOf(int(ifindex))
	if err != nil {
		return err
	}
	if features.Transmit {
		return s.addDevice(shortcutMapUplinks, ifindex)
	}
	uplinks, err := s.ownMap(shortcutMapUplinks)
	if err != nil {
		return err
	}
	if err := uplinks.Delete(ifindex); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// DetachUplink takes the program off the device and the device out of the maps. What is not there is success.
func (s *Shortcut) DetachUplink(ifindex int) error {
	if err := s.detachXDP(ifindex); err != nil {
		return fmt.Errorf("detach XDP program from uplink %d: %w", ifindex, err)
	}
	uplinks, err := s.anyMap(shortcutMapUplinks)
	if err == nil {
		err = uplinks.Delete(uint32(ifindex))
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	return errors.Join(notPinned(err), s.Leave(uint32(ifindex)))
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
