package main

import (
	"fmt"

	"github.com/tapir-cni/tapir/test/bench/node"
	"github.com/vishvananda/netlink"
)

// passages are how many frames were seen where a sender's frames may pass, by the kernel's own counters.
type passages struct {
	tapDropped uint64 // dropped by the TAP's driver: XDP_DROP
	host       uint64 // received by the host end
	hostShot   uint64 // dropped by tc at the host end
}

func (p passages) minus(before passages) passages {
	return passages{p.tapDropped - before.tapDropped, p.host - before.host, p.hostShot - before.hostShot}
}

// totals are of all floods of a pair.
type totals struct {
	passages
	frames uint64 // accepted
}

func (t *totals) add(p passages, frames uint64) {
	t.tapDropped += p.tapDropped
	t.host += p.host
	t.hostShot += p.hostShot
	t.frames += frames
}

// passages reads the counters of the sender.
func (p *pair) passages() (passages, error) {
	var got passages
	one := p.sender()
	err := node.In(one.netns, func() error {
		link, err := netlink.LinkByName(one.tap)
		if err != nil {
			return fmt.Errorf("counters of tap %q: %w", one.tap, err)
		}
		got.tapDropped = link.Attrs().Statistics.RxDropped
		return nil
	})
	if err != nil || one.host == "" {
		return got, err
	}
	link, err := netlink.LinkByName(one.host)
	if err != nil {
		return got, fmt.Errorf("counters of %q: %w", one.host, err)
	}
	got.host = link.Attrs().Statistics.RxPackets
	qdiscs, err := netlink.QdiscList(link)
	if err != nil {
		return got, fmt.Errorf("qdiscs of %q: %w", one.host, err)
	}
	for _, q := range qdiscs {
		if q.Type() == "clsact" && q.Attrs().Statistics != nil && q.Attrs().Statistics.Queue != nil {
			got.hostShot += uint64(q.Attrs().Statistics.Queue.Drops)
		}
	}
	return got, nil
}

// sent is an error where frames of the sender did not go the way of their variant. Other frames pass too, so a tenth is left
// for them.
func (p passages) sent(variant string, frames uint64) error {
	switch most := frames - frames/10; {
	case variant == dropped && p.tapDropped < most:
		return fmt.Errorf("%d of %d frames were dropped by XDP", p.tapDropped, frames)
	case variant == shortcut && p.host > frames/10:
		return fmt.Errorf("%d of %d frames went by the host's stack instead of the shortcut", p.host, frames)
	case (variant == routed || variant == bridged) && p.host < most:
		return fmt.Errorf("%d of %d frames reached the host end", p.host, frames)
	}
	return nil
}

// forged is an error where forged frames were not dropped at the place of their variant.
func (p passages) forged(variant string, frames uint64) error {
	switch most := frames - frames/10; {
	case variant == shortcut && p.tapDropped < most:
		return fmt.Errorf("%d of %d forged frames were dropped by XDP", p.tapDropped, frames)
	case variant == guarded && p.hostShot < most:
		return fmt.Errorf("%d of %d forged frames were dropped by tc on the host", p.hostShot, frames)
	case (variant == shortcut || variant == routed) && p.host > frames/10:
		return fmt.Errorf("%d of %d forged frames reached the host end", p.host, frames)
	}
	return nil
}
