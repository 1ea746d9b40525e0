package cni_test

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// A plain pod has raw sockets: what it sends is checked where it enters the host.
func TestForgedFramesOfPlainPod(t *testing.T) {
	t.Run("checked, clsact", func(t *testing.T) { forgeAsPlainPod(t, "clsact", true) })
	t.Run("checked, tcx", func(t *testing.T) { forgeAsPlainPod(t, "tcx", true) })
	t.Run("not checked", func(t *testing.T) { forgeAsPlainPod(t, "auto", false) })
}

func forgeAsPlainPod(t *testing.T, redirect string, check bool) {
	n := newNode(t)
	p := n.pod("attacker", annotated(object{"redirect": redirect, "spoofCheck": check}))
	r := p.addPlain()
	out, world := tapWire(t, p.netns, "eth0"), tapWire(t, n.world, "up0")
	s := sender{ip4: netip.MustParseAddr("10.9.0.2"), ip6: netip.MustParseAddr("fd00:9::2")}
	s.mac, _ = net.ParseMAC(r.Interfaces[1].Mac)
	dropped := n.list("attacker").Dropped
	for _, f := range forgeries(s, gatewayMAC) {
		before := n.list("attacker").Counters[f.reason].Frames
		if check || f.always {
			dropped++
		}
		out.send(f.bad)
		out.send(f.good)
		if after := n.waitDropped("attacker", dropped); check && after.Counters[f.reason].Frames != before+1 {
			t.Errorf("%s: not counted under %s: %v", f.name, f.reason, after.Counters)
		}
		bad, good := parseFrame(f.bad), parseFrame(f.good)
		if good.to != worldIP4 && good.to != worldIP6 || good.from != s.ip4 && good.from != s.ip6 {
			continue // not routed
		}
		seen, ok := world.frames(patience, func(frame []byte) bool { return sameDatagram(parseFrame(frame), good) })
		if !ok {
			t.Errorf("%s: the legal twin did not get out", f.name)
		}
		forged := slices.ContainsFunc(seen, func(frame []byte) bool { return sameDatagram(parseFrame(frame), bad) })
		if bad.from != good.from && forged && check {
			t.Errorf("%s: the forged frame got out", f.name)
		}
	}
	if got := n.list("attacker").Dropped; got != dropped {
		t.Errorf("dropped in all: %d, want %d: a legal twin is among them", got, dropped)
	}
}

// waitDropped waits until that many frames of an attachment were dropped.
func (n *node) waitDropped(id string, want uint64) (l listing) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		if l = n.list(id); l.Dropped >= want {
			return l
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("%s: want %d dropped, got %v", id, want, l.Counters)
		}
	}
}

// sameDatagram compares what routing leaves alone.
func sameDatagram(a, b packet) bool {
	return a.from == b.from && a.to == b.to && a.transport == b.transport && bytes.Equal(a.data, b.data)
}
