package main

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/test/bench/node"
	"github.com/vishvananda/netlink"
)

// limit makes of the pod a TAP whose native XDP program drops every frame: all that is left is the write and the driver.
func (p *pod) limit() error {
	p.tap, p.mac, p.address = "tap0", net.HardwareAddr{0x02, 0, 0, 0, 0, 1}, netip.MustParsePrefix("10.208.0.2/24")
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "bench_limit", Type: ebpf.XDP, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, int32(xdpDrop)), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("load the dropping program: %w", err)
	}
	defer program.Close() // the link holds it
	return node.In(p.netns, func() error {
		if err := tap.Create(tap.Spec{Name: p.tap, Queues: 1}); err != nil {
			return err
		}
		device, err := netlink.LinkByName(p.tap)
		if err != nil {
			return err
		}
		attached, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: device.Attrs().Index, Flags: link.XDPDriverMode})
		if err != nil {
			return fmt.Errorf("attach the dropping program to tap %q: %w", p.tap, err)
		}
		p.undo = append(p.undo, attached.Close)
		if err := netlink.LinkSetUp(device); err != nil {
			return fmt.Errorf("set tap %q up: %w", p.tap, err)
		}
		return nil
	})
}

// xdpDrop is XDP_DROP of linux/bpf.h.
const xdpDrop = 1
