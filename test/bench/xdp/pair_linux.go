package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/tapir-cni/tapir/test/bench/node"
)

// namespaces makes network namespaces that stay until the benchmark ends.
type namespaces interface {
	NewNetnses(count int) ([]string, error)
}

// A pod is a sandbox with a TAP that this process has open in the VMM's place.
type pod struct {
	attachment
	id     string // of the container
	netns  string // path
	queue  *guest.Queue
	undo   []func() error // in reverse
	inside string         // path of the netns of a guest with a stack of its own
	port   *guest.Queue   // the other side of that guest's TAP
}

// A pair is two pods of one variant, of which the first sends. The limit has just one.
type pair struct {
	variant string
	spin    bool // the reader of a flood does not sleep
	pods    []*pod
	total   totals
}

func (p *pair) sender() *pod   { return p.pods[0] }
func (p *pair) receiver() *pod { return p.pods[1] }

// gatewayMAC is that of every guest's gateway under tapir, see ARCHITECTURE.md.
var gatewayMAC = net.HardwareAddr{0x02, 0x74, 0x61, 0x70, 0x69, 0x72}

// nextHop is the MAC to which a guest sends what is for the other: a bridge is one link, tapir routes.
func (p *pair) nextHop(to *pod) net.HardwareAddr {
	if p.variant == bridged || p.variant == guarded {
		return to.mac
	}
	return gatewayMAC
}

// open makes the pair of a variant.
func open(o options, n namespaces, variant string) (_ *pair, err error) {
	p := &pair{variant: variant, spin: o.spin}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("set up %q: %w", variant, err), p.close())
		}
	}()
	count := 2
	if variant == dropped || variant == guarded {
		count = 1
	}
	paths, err := n.NewNetnses(2 * count)
	if err != nil {
		return nil, err
	}
	for i := range count {
		one := &pod{id: fmt.Sprintf("%s-%d", variant, i), netns: paths[2*i], inside: paths[2*i+1]}
		p.pods = append(p.pods, one)
		if variant == dropped {
			err = one.limit()
		} else {
			err = one.attach(networkOf(o, variant), variant)
		}
		if err == nil {
			err = one.open()
		}
		if err != nil {
			return nil, err
		}
	}
	return p, nil
}

// attach runs ADD, and for a bridge what has to follow it.
func (p *pod) attach(n network, variant string) error {
	stdout, err := n.call("ADD", p.id, p.netns, nil)
	if err != nil {
		return err
	}
	p.undo = append(p.undo, func() error {
		_, failed := n.call("DEL", p.id, p.netns, stdout)
		return failed
	})
	if p.attachment, err = readResult(stdout, p.netns); err != nil {
		return err
	}
	if variant != bridged && variant != guarded {
		if p.tap == "" {
			return fmt.Errorf("the result names no TAP: %s", stdout)
		}
		return nil
	}
	p.tap = mirredTAP
	if err := node.In(p.netns, joinTAP); err != nil {
		return err
	}
	if variant == guarded {
		return guard(p.host, p.address.Addr().As4())
	}
	return nil
}

func (p *pod) open() (err error) {
	if p.queue, err = guest.Open(p.netns, p.tap, guest.OffloadNone); err != nil {
		return err
	}
	p.undo = append(p.undo, p.queue.Close)
	return nil
}

// stack makes, at its first call, the guest with a kernel's stack beside the pod, whose TAP a pump will join to the pod's.
func (p *pod) stack() (err error) {
	if p.port != nil {
		return nil
	}
	s := guest.Stack{Netns: p.inside, MAC: p.mac, Address: p.address, Gateway: p.gateway, MTU: mtu}
	if err := s.Create(); err != nil {
		return err
	}
	if p.port, err = guest.Open(p.inside, guest.StackTAP, guest.OffloadNone); err != nil {
		return err
	}
	p.undo = append(p.undo, p.port.Close)
	return nil
}

// close takes the pair down: it closes the queues and runs DEL.
func (p *pair) close() error {
	var faults []error
	for _, one := range p.pods {
		for len(one.undo) > 0 {
			last := len(one.undo) - 1
			faults = append(faults, one.undo[last]())
			one.undo = one.undo[:last]
		}
	}
	return errors.Join(faults...)
}

// peer is an address that a limit's frames are for; nobody has it.
var peer = netip.AddrFrom4([4]byte{192, 0, 2, 99})
