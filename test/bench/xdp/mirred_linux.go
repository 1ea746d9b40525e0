package main

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// mirredTAP is the name of the TAP that joinTAP makes.
const mirredTAP = "tap0"

// joinTAP does in the calling thread's netns what the plugin tc-redirect-tap does after bridge (its internal/netlink.go): a
// TAP with one queue and a virtio-net header, an ingress qdisc on it and on the veth, and on each a u32 filter that matches
// every frame and whose mirred action puts it out of the other. The guest then has the veth's MAC and address.
func joinTAP() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = mirredTAP
	tuntap := &netlink.Tuntap{
		LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Queues: 1,
		Flags: netlink.TUNTAP_ONE_QUEUE | netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR,
	}
	if err := netlink.LinkAdd(tuntap); err != nil {
		return fmt.Errorf("create tap %q: %w", mirredTAP, err)
	}
	for _, f := range tuntap.Fds {
		f.Close() // it is persistent; the guest opens it
	}
	if err := netlink.LinkSetMTU(tuntap, mtu); err != nil {
		return fmt.Errorf("set the MTU of %q: %w", mirredTAP, err)
	}
	if err := netlink.LinkSetUp(tuntap); err != nil {
		return fmt.Errorf("set %q up: %w", mirredTAP, err)
	}
	here, err := netlink.LinkByName(mirredTAP)
	if err != nil {
		return err
	}
	veth, err := netlink.LinkByName(ifName)
	if err != nil {
		return err
	}
	for _, link := range []netlink.Link{here, veth} {
		qdisc := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_INGRESS}}
		if err := netlink.QdiscAdd(qdisc); err != nil {
			return fmt.Errorf("add an ingress qdisc to %q: %w", link.Attrs().Name, err)
		}
	}
	if err := mirror(here, veth); err != nil {
		return err
	}
	return mirror(veth, here)
}

// mirror puts what enters from out of to.
func mirror(from, to netlink.Link) error {
	err := netlink.FilterAdd(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: from.Attrs().Index, Parent: netlink.MakeHandle(0xffff, 0), Protocol: unix.ETH_P_ALL},
		Actions: []netlink.Action{&netlink.MirredAction{
			ActionAttrs:  netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
			MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: to.Attrs().Index,
		}},
	})
	if err != nil {
		return fmt.Errorf("redirect %q to %q: %w", from.Attrs().Name, to.Attrs().Name, err)
	}
	return nil
}

// guard drops on the node, by a tc filter on the host end, what the pod sends from another address than its own: the least
// that such a filter can do, four loads and one comparison.
func guard(host string, address [4]byte) error {
	link, err := netlink.LinkByName(host)
	if err != nil {
		return fmt.Errorf("find %q: %w", host, err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "bench_guard", Type: ebpf.SchedCLS, License: "MIT",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1), // where LoadAbs expects the context
			asm.LoadAbs(12, asm.Half),
			asm.JNE.Imm(asm.R0, unix.ETH_P_IP, "pass"),
			asm.LoadAbs(14+12, asm.Word),
			asm.JEq.Imm32(asm.R0, int32(uint32(address[0])<<24|uint32(address[1])<<16|uint32(address[2])<<8|uint32(address[3])), "pass"),
			asm.Mov.Imm(asm.R0, int32(netlink.TC_ACT_SHOT)),
			asm.Return(),
			asm.Mov.Imm(asm.R0, int32(netlink.TC_ACT_OK)).WithSymbol("pass"),
			asm.Return(),
		},
	})
	if err != nil {
		return fmt.Errorf("load the host's filter: %w", err)
	}
	defer program.Close() // the filter holds it
	clsact := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(clsact); err != nil {
		return fmt.Errorf("add clsact to %q: %w", host, err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Protocol: unix.ETH_P_ALL, Priority: 1},
		Fd:          program.FD(), Name: "bench_guard", DirectAction: true,
	}
	if err := netlink.FilterAdd(filter); err != nil {
		return fmt.Errorf("add the host's filter to %q: %w", host, err)
	}
	return nil
}
