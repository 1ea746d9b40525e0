package main

import (
	"errors"
	"fmt"

	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/tapir-cni/tapir/test/bench/node"
)

// A pod is a sandbox whose TAP this process has open in the VMM's place.
type pod struct {
	sandbox
	queue *guest.Queue
	inner string       // path of the netns of the guest's own stack
	port  *guest.Queue // the other side of that guest's TAP
	own   guest.Stack  // what the guest was told
}

// A pair is two pods of one network, of which the first sends.
type pair struct {
	network network
	pods    []*pod
	undo    []func() error // in reverse
}

func (p *pair) sender() *pod   { return p.pods[0] }
func (p *pair) receiver() *pod { return p.pods[1] }

// open makes the pair.
func open(o options, n *node.Node, net network) (_ *pair, err error) {
	p := &pair{network: net}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("set up a pair of %q: %w", net.name, err), p.close())
		}
	}()
	for i := range 2 {
		if err := p.add(o, n, fmt.Sprintf("%s-%d", net.name, i)); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *pair) add(o options, n *node.Node, id string) error {
	paths, err := n.NewNetnses(2)
	if err != nil {
		return err
	}
	out, err := p.network.call(o, "ADD", id, paths[0], nil)
	if err != nil {
		return err
	}
	p.undo = append(p.undo, func() error {
		_, failed := p.network.call(o, "DEL", id, paths[0], out.Stdout)
		return failed
	})
	one := &pod{inner: paths[1]}
	if one.sandbox, err = readResult(out.Stdout, paths[0]); err != nil {
		return err
	}
	one.own = guest.Stack{Netns: one.inner, MAC: one.mac, Address: one.address, Gateway: one.gateway, MTU: mtu}
	if p.network.clones {
		one.own.MAC, one.own.Address, one.own.Gateway = insideMAC, inside, insideGateway
	}
	p.pods = append(p.pods, one)
	if err := one.own.Create(); err != nil {
		return err
	}
	if one.queue, err = guest.Open(paths[0], one.tap, guest.OffloadNone); err != nil {
		return err
	}
	p.undo = append(p.undo, one.queue.Close)
	if one.port, err = guest.Open(one.inner, guest.StackTAP, guest.OffloadNone); err != nil {
		return err
	}
	p.undo = append(p.undo, one.port.Close)
	return nil
}

// close takes the pair down.
func (p *pair) close() error {
	var faults []error
	for len(p.undo) > 0 {
		last := len(p.undo) - 1
		faults = append(faults, p.undo[last]())
		p.undo = p.undo[:last]
	}
	return errors.Join(faults...)
}
