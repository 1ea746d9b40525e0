package xdp

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Method is how a program gets onto a device.
type Method string

// The methods: tcx needs kernel 6.6, clsact runs on all that tapir supports. Attaching or detaching by tcx waits for an
// RCU grace period under the RTNL lock (kernel/bpf/tcx.c; 7 to 10 ms measured on 6.18), by clsact it does not
// (0.2 ms for qdisc and filter).
const (
	MethodTCX    Method = "tcx"
	MethodClsact Method = "clsact"
)

// Attach puts the role's program on the ingress of a device in the calling thread's netns, before the programs that are
// there. It holds until Detach, or the device's end; no process and no pin keeps it. Doing it twice is one attachment.
//
// On a kernel without the method the error is an [UnsupportedError].
func (p *Programs) Attach(ifindex int, role Role, m Method) error {
	prog, err := p.program(role)
	if err == nil {
		switch m {
		case MethodTCX:
			err = attachTCX(prog, ifindex)
		case MethodClsact:
			err = attachClsact(prog, ifindex)
		default:
			err = errMethod(m)
		}
	}
	if err != nil {
		return fmt.Errorf("attach %s program to ifindex %d by %s: %w", role, ifindex, m, err)
	}
	return nil
}

// Attached says whether the role's program of this version is on the ingress of a device in the calling thread's netns.
// A device that does not exist has none.
func (p *Programs) Attached(ifindex int, role Role, m Method) (bool, error) {
	prog, err := p.program(role)
	var attached bool
	if err == nil {
		switch m {
		case MethodTCX:
			attached, err = attachedTCX(prog, ifindex)
		case MethodClsact:
			attached, err = attachedClsact(prog, ifindex)
		default:
			err = errMethod(m)
		}
	}
	if err != nil {
		return false, fmt.Errorf("look for %s program on ifindex %d by %s: %w", role, ifindex, m, err)
	}
	return attached, nil
}

// Detach takes the role's program of this version off a device in the calling thread's netns; others' programs and
// filters stay. A program or a device that is not there is success.
func (p *Programs) Detach(ifindex int, role Role, m Method) error {
	prog, err := p.program(role)
	if err == nil {
		switch m {
		case MethodTCX:
			err = detachTCX(prog, ifindex)
		case MethodClsact:
			err = detachClsact(prog, ifindex)
		default:
			err = errMethod(m)
		}
	}
	if err != nil {
		return fmt.Errorf("detach %s program from ifindex %d by %s: %w", role, ifindex, m, err)
	}
	return nil
}

func errMethod(m Method) error {
	return fmt.Errorf("method: want %s or %s, got %q", MethodTCX, MethodClsact, m)
}

func attachTCX(prog *ebpf.Program, ifindex int) error {
	err := link.RawAttachProgram(link.RawAttachProgramOptions{
		Target:  ifindex,
		Program: prog,
		Attach:  ebpf.AttachTCXIngress,
		Anchor:  link.Head(),
	})
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return explainTCX(err)
}

func attachedTCX(prog *ebpf.Program, ifindex int) (bool, error) {
	id, err := programID(prog)
	if err != nil {
		return false, err
	}
	res, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil {
		return false, explainTCX(err)
	}
	return slices.ContainsFunc(res.Programs, func(a link.AttachedProgram) bool { return a.ID == id }), nil
}

func detachTCX(prog *ebpf.Program, ifindex int) error {
	err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: ifindex, Program: prog, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return explainTCX(err)
}

// explainTCX asks whether the kernel has tcx at all, now that it has refused something.
func explainTCX(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) {
		if have := HaveTCX(); have != nil {
			return have
		}
	}
	return err
}

func programID(prog *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := prog.Info()
	if err != nil {
		return 0, err
	}
	id, ok := info.ID()
	if !ok {
		return 0, &UnsupportedError{Feature: "program ids", Needs: "kernel 4.13", Err: unix.EINVAL}
	}
	return id, nil
}
