package xdp

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A foreign device is one that another plugin made. Its ifindex is not unique on the node, so that no entry of the
// shared map can be its own: each gets a program of a dozen instructions with the TAP's ifindex in it, which no process
// and no pin keeps. Other people's qdiscs, filters and programs on the device stay, and run before it: it comes last.

// foreignPrefix starts the name of that program, and of its filter; the TAP's ifindex follows, so that it is known whose
// it is.
const foreignPrefix = "tapir_"

func foreignName(tap uint32) string { return fmt.Sprintf("%s%08x", foreignPrefix, tap) }

// parseForeignName is the inverse of foreignName; the name of a filter may have a suffix.
func parseForeignName(name string) (tap uint32, ok bool) {
	digits, ok := strings.CutPrefix(strings.TrimSuffix(name, ownQdiscSuffix), foreignPrefix)
	if !ok || len(digits) != 8 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 16, 32)
	return uint32(n), err == nil
}

// foreignPriority puts the filter behind all others: the highest that the kernel takes.
const foreignPriority = 0xffff

// foreignProgram counts a frame as going to the guest and moves it to the TAP.
func foreignProgram(counters *ebpf.Map, tap uint32) (*ebpf.Program, error) {
	const offset = int16(ReasonToGuest) * 16 // struct count: frames, bytes
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: foreignName(tap), Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.StoreImm(asm.RFP, -4, int64(tap), asm.Word),
			asm.LoadMapPtr(asm.R1, counters.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "redirect"),
			asm.LoadMem(asm.R1, asm.R6, 0, asm.Word), // __sk_buff.len
			asm.LoadMem(asm.R2, asm.R0, offset, asm.DWord),
			asm.Add.Imm(asm.R2, 1),
			asm.StoreMem(asm.R0, offset, asm.R2, asm.DWord),
			asm.LoadMem(asm.R2, asm.R0, offset+8, asm.DWord),
			asm.Add.Reg(asm.R2, asm.R1),
			asm.StoreMem(asm.R0, offset+8, asm.R2, asm.DWord),
			asm.Mov.Imm32(asm.R1, int32(tap)).WithSymbol("redirect"),
			asm.Mov.Imm(asm.R2, 0),
			asm.FnRedirect.Call(),
			asm.Return(),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("load program %s: %w", foreignName(tap), err)
	}
	// The library leaves the name out where its probe for names failed, and nobody would find the program again.
	info, err := prog.Info()
	if err == nil && info.Name != foreignName(tap) {
		err = fmt.Errorf("the kernel has it as %q", info.Name)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load program %s: %w", foreignName(tap), err), prog.Close())
	}
	return prog, nil
}

// ForeignMethod is how a program gets onto a foreign device in the calling thread's netns: as the last filter of the
// qdisc that is there; by tcx, which needs no qdisc, where there is none; by a clsact qdisc on kernels before tcx.
func ForeignMethod(ifindex int) (Method, error) {
	has, err := hasIngressQdisc(ifindex)
	if err != nil || has || HaveTCX() != nil {
		return MethodClsact, err
	}
	return MethodTCX, nil
}

func hasIngressQdisc(ifindex int) (bool, error) {
	qdiscs, err := netlink.QdiscList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: ifindex}})
	if err != nil {
		return false, fmt.Errorf("list qdiscs: %w", err)
	}
	for _, q := range qdiscs {
		if kind := q.Type(); kind == "clsact" || kind == "ingress" {
			return true, nil
		}
	}
	return false, nil
}

// AttachForeign makes a foreign device in the calling thread's netns hand what it receives to the TAP with that ifindex,
// after all others that see its frames. A program that is there already is [ErrInUse].
func (p *Programs) AttachForeign(ifindex int, tap uint32, m Method) error {
	counters, err := p.counterMap()
	if err != nil {
		return err
	}
	if f, err := AttachedForeign(ifindex); err != nil || f.Method != "" {
		if err == nil {
			err = fmt.Errorf("%w, whose tap has ifindex %d", ErrInUse, f.TAP)
		}
		return fmt.Errorf("attach to ifindex %d: %w", ifindex, err)
	}
	prog, err := foreignProgram(counters, tap)
	if err != nil {
		return err
	}
	defer prog.Close()
	switch m {
	case MethodTCX:
		err = explainTCX(link.RawAttachProgram(link.RawAttachProgramOptions{
			Target: ifindex, Program: prog, Attach: ebpf.AttachTCXIngress, Anchor: link.Tail(),
		}))
	case MethodClsact:
		err = attachFilter(prog, ifindex, foreignPriority, filterHandle, foreignName(tap))
	default:
		err = errMethod(m)
	}
	if err != nil {
		return fmt.Errorf("attach to ifindex %d by %s: %w", ifindex, m, err)
	}
	return nil
}

// Foreign is what tapir has on a foreign device.
type Foreign struct {
	TAP    uint32 // ifindex of the TAP that it leads to
	Method Method // empty: nothing is there
}

// AttachedForeign tells what tapir has on a foreign device of the calling thread's netns.
func AttachedForeign(ifindex int) (Foreign, error) {
	prog, f, err := chainedTCX(ifindex)
	if err != nil {
		return Foreign{}, err
	}
	if prog != nil {
		prog.Close()
		return f, nil
	}
	_, f, err = chainedFilter(ifindex)
	return f, err
}

// DetachForeign takes the program that leads to this TAP off a foreign device of the calling thread's netns, and the
// clsact qdisc where tapir added it and nobody else uses it. Nothing there, or another TAP's program, is success.
func DetachForeign(ifindex int, tap uint32) error {
	prog, f, err := chainedTCX(ifindex)
	if err != nil {
		return fmt.Errorf("detach from ifindex %d: %w", ifindex, err)
	}
	if prog != nil {
		defer prog.Close()
		if f.TAP == tap {
			err = detachTCX(prog, ifindex)
		}
		if err != nil {
			return fmt.Errorf("detach from ifindex %d: %w", ifindex, err)
		}
	}
	filter, f, err := chainedFilter(ifindex)
	if err == nil && filter != nil && f.TAP == tap {
		err = deleteFilter(filter, ifindex)
	}
	if err != nil {
		return fmt.Errorf("detach from ifindex %d: %w", ifindex, err)
	}
	return nil
}

// chainedTCX opens tapir's tcx program on the device; nil where there is none, no device or no tcx.
func chainedTCX(ifindex int) (*ebpf.Program, Foreign, error) {
	res, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) {
		return nil, Foreign{}, nil
	}
	if err != nil {
		return nil, Foreign{}, fmt.Errorf("query tcx programs: %w", err)
	}
	for _, a := range res.Programs {
		prog, err := ebpf.NewProgramFromID(a.ID)
		if errors.Is(err, unix.ENOENT) {
			continue // gone since
		}
		if err != nil {
			return nil, Foreign{}, fmt.Errorf("open program %d: %w", a.ID, err)
		}
		if info, err := prog.Info(); err == nil {
			if tap, ok := parseForeignName(info.Name); ok {
				return prog, Foreign{tap, MethodTCX}, nil
			}
		}
		prog.Close()
	}
	return nil, Foreign{}, nil
}

// chainedFilter finds tapir's filter on a foreign device; nil where there is none, or no device.
func chainedFilter(ifindex int) (*netlink.BpfFilter, Foreign, error) {
	filters, err := ingressFilters(ifindex, netlink.HANDLE_MIN_INGRESS)
	if gone(err) || errors.Is(err, unix.EINVAL) {
		return nil, Foreign{}, nil
	}
	if err != nil {
		return nil, Foreign{}, err
	}
	for _, f := range filters {
		b, ok := f.(*netlink.BpfFilter)
		if !ok || b.Priority != foreignPriority {
			continue
		}
		if tap, ok := parseForeignName(b.Name); ok {
			return b, Foreign{tap, MethodClsact}, nil
		}
	}
	return nil, Foreign{}, nil
}
