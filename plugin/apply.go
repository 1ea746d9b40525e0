package plugin

import (
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/internal/trace"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/xdp"
)

// apply carries a plan out in the kernel. What it has done so far is on its undo stack.
type apply struct {
	plan  *Plan
	rec   *state.Attachment // addresses, ifindexes and MTU are filled in
	netns ns.NetNS
	host  *rtnl.Conn // in the host's netns
	pod   *rtnl.Conn // in the pod's netns
	progs *xdp.Programs
	undo  *undo
	trace *trace.Trace

	bpffs      string        // the folder of the pinned programs
	shortcut   *xdp.Shortcut // nil: no part in it
	noShortcut string        // why not, though it was wanted
	joined     bool          // it has its part, and the TAP its program
}

// run makes devices, programs, addresses, routes and masquerade, in this order, so that no frame of the guest ever
// meets a device without its checks.
func (a *apply) run() error {
	if err := a.devices(); err != nil {
		return err
	}
	a.trace.Mark("devices and programs")
	if a.plan.Chained {
		return a.publish(a.bpffs)
	}
	if err := a.hostSide(); err != nil {
		return err
	}
	if err := a.awaitCarrier(); err != nil {
		return err
	}
	a.trace.Mark("addresses and routes")
	if err := a.masquerade(); err != nil {
		return err
	}
	if err := a.publish(a.bpffs); err != nil {
		return err
	}
	return a.writeDAN()
}

// devices makes the devices where they stay.
func (a *apply) devices() error {
	if a.plan.OnHost {
		return a.makeTap() // hostSide brings it up
	}
	return a.netns.Do(a.podSide)
}

func (a *apply) masquerade() error {
	chain := a.rec.Masquerade
	if chain == "" {
		return nil
	}
	a.undo.push("masquerade", func() error { return removeMasquerade(chain, a.rec.Addresses) })
	err := addMasquerade(chain, exceptions(a.rec, a.plan), a.rec.Addresses)
	a.trace.Mark("masquerade")
	return err
}

// writeDAN comes last: Kata may use what the file says as soon as it is there.
func (a *apply) writeDAN() error {
	if a.rec.DAN == "" {
		return nil
	}
	a.undo.push("DAN file", func() error { return removeDANDevice(a.host, a.rec, a.rec.DAN, false) })
	err := putDANDevice(a.host, a.rec)
	a.trace.Mark("DAN file")
	return err
}

// awaitCarrier makes a plain pod's end send from now on. It came up before the host end, without a carrier: what it sends is
// dropped until the kernel's link watch has its turn, which waits for the RTNL lock, or until somebody asks for the link by its
// ifindex (Linux 6.8 or newer: net/core/rtnetlink.c, rtnl_getlink).
func (a *apply) awaitCarrier() error {
	if !a.plan.Plain {
		return nil // with a TAP, frames go round the queue
	}
	if _, err := a.pod.LinkByIndex(a.rec.Pod.Index); err != nil {
		return fmt.Errorf("look up %q in netns %q: %w", a.rec.Pod.Name, a.plan.Netns, err)
	}
	return nil
}

// podSide runs on a thread in the pod's netns: a TAP belongs to the netns of the open(), and BPF_PROG_ATTACH looks the
// device up in that of the caller.
func (a *apply) podSide(hostNS ns.NetNS) error {
	if !a.plan.Plain {
		if err := a.makeTap(); err != nil {
			return err
		}
	}
	switch {
	case a.plan.Chained:
		if err := a.attachForeign(); err != nil {
			return err
		}
	default:
		if err := a.makeVeth(); err != nil {
			return err
		}
		if err := a.shape(); err != nil {
			return err
		}
		if a.plan.Plain {
			return a.addressPod()
		}
		if err := a.progs.Attach(a.rec.Pod.Index, xdp.RolePod, xdp.Method(a.rec.Redirect)); err != nil {
			return err
		}
		if err := a.pod.Configure(a.rec.Pod.Index, rtnl.Settings{Up: true, Name: a.rec.Pod.Name}); err != nil {
			return err
		}
		if err := a.joinShortcut(hostNS); err != nil {
			return err
		}
	}
	// Last, and for good: one write to a TAP that is down gives a VMM EIO.
	return a.pod.Configure(a.rec.TAP.Index, rtnl.Settings{Up: true, Name: a.rec.TAP.Name})
}

// makeTap runs on a thread in the netns of the TAP. It leaves the TAP down.
func (a *apply) makeTap() error {
	dev, p := a.rec.TAP, a.plan
	conn, role, where := a.pod, xdp.RoleGuest, fmt.Sprintf("netns %q", p.Netns)
	if p.OnHost {
		conn, role, where = a.host, xdp.RoleHost, "the host's netns"
	}
	if err := tap.Create(tap.Spec{Name: dev.Name, Index: dev.Index, Queues: p.Queues, Owner: p.Owner, Group: p.Group}); err != nil {
		return fmt.Errorf("in %s: %w", where, err)
	}
	a.undo.push("tap "+dev.Name, func() error { return conn.DeleteLink(dev.Index) })
	if err := conn.Configure(dev.Index, rtnl.Settings{
		Name: dev.Name, MAC: xdp.GatewayMAC, MTU: a.rec.MTU, TxQueueLen: p.TxQueue, Group: a.rec.Group, Alias: a.rec.Alias(), NoIPv6Addr: true,
	}); err != nil {
		return err
	}
	if err := conn.SetNoqueue(dev.Index); err != nil {
		return fmt.Errorf("tap %q: %w", dev.Name, err)
	}
	method := xdp.Method(a.rec.Redirect)
	if a.plan.Chained {
		method = xdp.MethodClsact // the TAP is tapir's own
	}
	return a.progs.Attach(dev.Index, role, method)
}

// attachForeign leads what the interface of the plugin before receives to the TAP. It runs on a thread in the pod's netns.
func (a *apply) attachForeign() error {
	dev := a.rec.Pod
	// Before the attempt: where the kernel's answer is lost, it may have succeeded. Only this TAP's program is taken off.
	a.undo.push("program on "+dev.Name, func() error {
		return a.netns.Do(func(ns.NetNS) error { return xdp.DetachForeign(dev.Index, uint32(a.rec.TAP.Index)) })
	})
	if err := a.progs.AttachForeign(dev.Index, uint32(a.rec.TAP.Index), xdp.Method(a.rec.Redirect)); err != nil {
		if errors.Is(err, xdp.ErrInUse) {
			return withCode(CodeBusy, fmt.Errorf("%q has a TAP of tapir already: %w", dev.Name, err))
		}
		return fmt.Errorf("%q: %w", dev.Name, err)
	}
	return nil
}

// makeVeth creates both ends where they stay. The pod end has the guest's MAC: what the node sends to the guest passes
// the pod end as if it were for itself.
func (a *apply) makeVeth() error {
	r := a.rec
	a.undo.push("veth "+r.Host.Name, func() error { return deleteOwn(a.host, r.Host) }) // before: the kernel's answer can be lost
	err := a.host.CreateVeth(
		rtnl.End{Name: r.Host.Name, Index: r.Host.Index, MAC: xdp.GatewayMAC, MTU: r.MTU},
		rtnl.End{Name: r.Pod.Name, Index: r.Pod.Index, MAC: a.plan.MAC, MTU: r.MTU, Group: r.Group},
		int(a.netns.Fd()))
	if err != nil {
		return existsAs(CodeBusy, fmt.Errorf("in netns %q: %w", a.plan.Netns, err))
	}
	return a.pod.Configure(r.Pod.Index, rtnl.Settings{Name: r.Pod.Name, Alias: r.Alias(), NoIPv6Addr: !a.plan.Plain})
}

// deleteOwn deletes a device that has the name and the ifindex that were chosen for it; any other one is somebody else's.
func deleteOwn(conn *rtnl.Conn, dev state.Device) error {
	link, err := conn.LinkByName(dev.Name)
	if rtnl.Gone(err) || err == nil && link.Attrs().Index != dev.Index {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up %q: %w", dev.Name, err)
	}
	return conn.DeleteLink(dev.Index)
}
