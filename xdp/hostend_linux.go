package xdp

import (
	"fmt"
)

// AttachHost puts the shortcut's tc program on the ingress of a host end in the calling thread's netns, before the programs
// that are there. It holds until DetachHost, or the device's end. Another version's is replaced.
func (s *Shortcut) AttachHost(ifindex int, m Method) error {
	prog, err := s.program(shortcutProgHostShortcut)
	if err == nil {
		switch m {
		case MethodTCX:
			err = attachTCX(prog, ifindex)
		case MethodClsact:
			err = attachFilter(prog, ifindex, hostPriority, hostFilterName)
		default:
			err = errMethod(m)
		}
	}
	if err != nil {
		return fmt.Errorf("attach shortcut to ifindex %d by %s: %w", ifindex, m, err)
	}
	return nil
}

// The filter comes before tapir's other one on a plain pod's host end, and before most others' filters.
const (
	hostPriority   = 1
	hostFilterName = "tapir_shortcut"
)

// DetachHost takes the program off again, of whatever version. Nothing there, or no device, is success.
func (s *Shortcut) DetachHost(ifindex int, m Method) error {
	prog, err := s.program(shortcutProgHostShortcut)
	if err == nil {
		switch m {
		case MethodTCX:
			err = detachTCX(prog, ifindex)
		case MethodClsact:
			err = nil
		default:
			err = errMethod(m)
		}
	}
	if err != nil {
		return fmt.Errorf("detach shortcut from ifindex %d by %s: %w", ifindex, m, err)
	}
	return nil
}

// HostAttached says whether the program of this version is on a host end in the calling thread's netns. A device that
// does not exist has none.
func (s *Shortcut) HostAttached(ifindex int, m Method) (bool, error) {
	prog, err := s.program(shortcutProgHostShortcut)
	var attached bool
	if err == nil {
		switch m {
		case MethodTCX:
			attached, err = attachedTCX(prog, ifindex)
		case MethodClsact:
		default:
			err = errMethod(m)
		}
	}
	if err != nil {
		return false, fmt.Errorf("look for shortcut on ifindex %d by %s: %w", ifindex, m, err)
	}
	return attached, nil
}
