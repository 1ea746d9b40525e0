package xdp

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// hookModes are the modes to try, in order.
func hookModes(m Mode) ([]Mode, error) {
	switch m {
	case ModeAuto:
		return []Mode{ModeNative, ModeGeneric}, nil
	case ModeNative, ModeGeneric:
		return []Mode{m}, nil
	}
	return nil, fmt.Errorf("XDP mode: want %s, %s or %s, got %q", ModeAuto, ModeNative, ModeGeneric, m)
}

func modeFlag(m Mode) uint32 {
	if m == ModeGeneric {
		return xdpSkbMode
	}
	return xdpDrvMode
}

// AttachTAP puts the guest's XDP program on a TAP of the calling thread's netns and gives the mode that it got. It holds
// until DetachTAP, or the device's end. Another version's program is replaced in one step; a program that is not tapir's
// stays and gives a [ForeignProgramError].
func (s *Shortcut) AttachTAP(ifindex int, mode Mode) (Mode, error) {
	got, err := s.attachXDP(ifindex, mode, tapProgram)
	if err != nil {
		return ModeOff, fmt.Errorf("attach XDP program to TAP %d: %w", ifindex, err)
	}
	return got, nil
}

// tapProgram is the program for a TAP's hook: in generic mode every run is a generic one.
func tapProgram(m Mode) string {
	if m == ModeGeneric {
		return shortcutProgGuestXdpSkb
	}
	return shortcutProgGuestXdp
}

func uplinkProgram(Mode) string { return shortcutProgUplinkXdp }

// attachXDP tries the modes in order.
func (s *Shortcut) attachXDP(ifindex int, mode Mode, program func(Mode) string) (Mode, error) {
	modes, err := hookModes(mode)
	if err != nil {
		return ModeOff, err
	}
	var errs []error
	for _, m := range modes {
		err := s.attachMode(ifindex, m, program(m))
		if err == nil {
			return m, nil
		}
		var foreign *ForeignProgramError
		if errors.As(err, &foreign) || errors.Is(err, unix.ENODEV) {
			return ModeOff, err
		}
		errs = append(errs, fmt.Errorf("%s: %w", m, err))
	}
	return ModeOff, errors.Join(errs...)
}

// attachMode attaches in one mode. What is there of tapir's in the same mode is replaced; in another mode it is taken off
// first, since the kernel holds one mode at a time.
func (s *Shortcut) attachMode(ifindex int, m Mode, name string) error {
	prog, err := s.program(name)
	if err != nil {
		return err
	}
	d, old, err := s.state(ifindex)
	if err != nil {
		return err
	}
	if d.Foreign {
		return &ForeignProgramError{Ifindex: ifindex, Mode: d.Mode, ID: d.ID, Name: d.Name}
	}
	if old == nil {
		if err := s.freshEpoch(); err != nil {
			return err
		}
		return writeHook(ifindex, prog.FD(), modeFlag(m)|xdpUpdateIfNoexist, nil)
	}
	defer old.Close()
	if d.Mode == m {
		if d.Current && d.Name == name {
			return nil
		}
		return writeHook(ifindex, prog.FD(), modeFlag(m), old)
	}
	if err := writeHook(ifindex, -1, modeFlag(d.Mode), old); err != nil {
		return err
	}
	return writeHook(ifindex, prog.FD(), modeFlag(m)|xdpUpdateIfNoexist, nil)
}

// DetachTAP takes tapir's XDP program, of whatever version, off a device of the calling thread's netns. Nothing there, a
// foreign program, or no device is success.
func (s *Shortcut) DetachTAP(ifindex int) error {
	if err := s.detachXDP(ifindex); err != nil {
		return fmt.Errorf("detach XDP program from ifindex %d: %w", ifindex, err)
	}
	return nil
}

func (s *Shortcut) detachXDP(ifindex int) error {
	d, old, err := s.state(ifindex)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil || old == nil {
		return err
	}
	defer old.Close()
	return writeHook(ifindex, -1, modeFlag(d.Mode), old)
}

// TAPState tells what is on the XDP hook of a TAP of the calling thread's netns.
func (s *Shortcut) TAPState(ifindex int) (DeviceState, error) {
	d, prog, err := s.state(ifindex)
	if err != nil {
		return d, fmt.Errorf("look at the XDP hook of ifindex %d: %w", ifindex, err)
	}
	if prog != nil {
		_ = prog.Close()
	}
	return d, nil
}
