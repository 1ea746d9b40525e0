package xdp

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The filter's place comes before that of tapir's other one on a plain pod's host end, and before most others' filters.
const (
	hostPriority   = 1
	hostHandle     = filterPriority
	hostFilterName = "tapir_shortcut"
)

// AttachHost puts the shortcut's tc program on the ingress of a host end in the calling thread's netns, before the programs
// that are there. It holds until DetachHost, or the device's end. Another version's is replaced in one step.
//
// On a kernel without the method the error is an [UnsupportedError].
func (s *Shortcut) AttachHost(ifindex int, m Method) error {
	if err := s.freshEpoch(); err != nil {
		return fmt.Errorf("attach shortcut to ifindex %d: %w", ifindex, err)
	}
	if _, err := s.putHost(ifindex, m, true); err != nil {
		return fmt.Errorf("attach shortcut to ifindex %d by %s: %w", ifindex, m, err)
	}
	return nil
}

// UpgradeHost is Upgrade for the tc program of a host end.
func (s *Shortcut) UpgradeHost(ifindex int, m Method) (bool, error) {
	changed, err := s.putHost(ifindex, m, false)
	if err != nil {
		return false, fmt.Errorf("upgrade shortcut of ifindex %d by %s: %w", ifindex, m, err)
	}
	return changed, nil
}

// putHost replaces another version's program by this one's, and with add attaches it where there is none. It says whether it
// changed anything.
func (s *Shortcut) putHost(ifindex int, m Method, add bool) (bool, error) {
	prog, err := s.program(shortcutProgHostShortcut)
	if err != nil {
		return false, err
	}
	id, err := programID(prog)
	if err != nil {
		return false, err
	}
	switch m {
	case MethodTCX:
		return putHostTCX(prog, id, ifindex, add)
	case MethodClsact:
		return putHostFilter(prog, id, ifindex, add)
	}
	return false, errMethod(m)
}

func putHostTCX(prog *ebpf.Program, id ebpf.ProgramID, ifindex int, add bool) (bool, error) {
	old, oldID, err := hostTCX(ifindex)
	if err != nil {
		return false, err
	}
	if old == nil {
		if !add {
			return false, nil
		}
		return true, attachTCX(prog, ifindex)
	}
	defer old.Close()
	if oldID == id {
		return false, nil
	}
	return true, explainTCX(link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: ifindex, Program: prog, Attach: ebpf.AttachTCXIngress, Anchor: link.ReplaceProgram(old),
	}))
}

func putHostFilter(prog *ebpf.Program, id ebpf.ProgramID, ifindex int, add bool) (bool, error) {
	f, err := findFilter(ifindex, hostPriority, hostHandle, hostFilterName)
	if err != nil {
		return false, err
	}
	if f == nil {
		if !add {
			return false, nil
		}
		return true, attachFilter(prog, ifindex, hostPriority, hostHandle, hostFilterName)
	}
	if f.Id == int(id) {
		return false, nil
	}
	f.LinkIndex, f.Fd, f.DirectAction = ifindex, prog.FD(), true
	return true, netlink.FilterReplace(f)
}

// hostTCX opens the shortcut's program of any version that is on a device's ingress by tcx; nil where there is none, or no
// device.
func hostTCX(ifindex int) (*ebpf.Program, ebpf.ProgramID, error) {
	res, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.ENODEV) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, explainTCX(err)
	}
	for _, a := range res.Programs {
		prog, err := ebpf.NewProgramFromID(a.ID)
		if errors.Is(err, unix.ENOENT) {
			continue // gone since
		}
		if err != nil {
			return nil, 0, fmt.Errorf("open program %d: %w", a.ID, err)
		}
		own, err := isHostShortcut(prog)
		if own || err != nil {
			return prog, a.ID, err
		}
		_ = prog.Close()
	}
	return nil, 0, nil
}

func isHostShortcut(prog *ebpf.Program) (bool, error) {
	info, err := prog.Info()
	if err != nil || info.Name != shortcutProgHostShortcut {
		return false, err
	}
	ids, _ := info.MapIDs()
	foreign, err := foreignShortcut(info.Name, ids)
	return !foreign && err == nil, err
}

// DetachHost takes the shortcut's tc program, of whatever version, off a host end in the calling thread's netns; others'
// programs and filters stay. Nothing there, or no device, is success.
func (s *Shortcut) DetachHost(ifindex int, m Method) error {
	var err error
	switch m {
	case MethodTCX:
		err = detachHostTCX(ifindex)
	case MethodClsact:
		var f *netlink.BpfFilter
		f, err = findFilter(ifindex, hostPriority, hostHandle, hostFilterName)
		if gone(err) {
			err = nil
		}
		if f != nil && err == nil {
			err = deleteFilter(f, ifindex)
		}
	default:
		err = errMethod(m)
	}
	if err != nil {
		return fmt.Errorf("detach shortcut from ifindex %d by %s: %w", ifindex, m, err)
	}
	return nil
}

func detachHostTCX(ifindex int) error {
	old, _, err := hostTCX(ifindex)
	if old == nil || err != nil {
		return err
	}
	defer old.Close()
	return detachTCX(old, ifindex)
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
			attached, err = hostFilterIs(prog, ifindex)
		default:
			err = errMethod(m)
		}
	}
	if err != nil {
		return false, fmt.Errorf("look for shortcut on ifindex %d by %s: %w", ifindex, m, err)
	}
	return attached, nil
}

func hostFilterIs(prog *ebpf.Program, ifindex int) (bool, error) {
	id, err := programID(prog)
	if err != nil {
		return false, err
	}
	f, err := findFilter(ifindex, hostPriority, hostHandle, hostFilterName)
	if gone(err) {
		return false, nil
	}
	return f != nil && f.Id == int(id), err
}
