package cni_test

import (
	"math"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
)

// Limits that a busy machine can fill, in bits a second, and how near to them a TCP stream must come.
const (
	ingressRate = 60e6
	egressRate  = 30e6
	tolerance   = 0.15
)

var limits = object{"bandwidth": object{"ingressRate": int(ingressRate), "ingressBurst": 800000, "egressRate": int(egressRate), "egressBurst": 800000}}

// payload is the share of a TCP stream's data in what a token bucket counts: frames with Ethernet, IPv4 and TCP headers and time stamps.
const payload = float64(uplinkMTU-20-32) / float64(uplinkMTU+14)

// wantRate measures a flow in windows until one is near its limit. On a busy machine TCP falls short of it now and then, and what
// waited comes in a window after that; on the whole it may not be faster.
func wantRate(t *testing.T, what string, from, to net.Conn, limit float64) {
	t.Helper()
	want := limit * payload
	var seen []float64
	all := 0.0
	for settle := 300 * time.Millisecond; len(seen) < 15; settle = 0 {
		got := rate(t, from, to, settle, 700*time.Millisecond)
		seen = append(seen, math.Round(got/1e5)/10)
		all += got
		if got < want*(1+tolerance) && got > want*(1-tolerance) {
			return
		}
		if len(seen) > 3 && all/float64(len(seen)) > want*(1+tolerance) {
			break
		}
	}
	t.Errorf("%s: want %.1f Mbit/s within %.0f %%, got %v", what, want/1e6, tolerance*100, seen)
}

func TestBandwidthIsLimitedInBothDirections(t *testing.T) {
	for _, tt := range []struct {
		name    string
		offload int
		xdp     object
	}{
		{"no offloads", offloadNone, nil},
		{"TSO", offloadTSO, nil},
		{"no offloads, with the shortcut", offloadNone, object{"mode": "auto"}},
		{"TSO, with the shortcut", offloadTSO, object{"mode": "auto"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			over := object{}
			if tt.xdp != nil {
				over["xdp"] = tt.xdp
			}
			limited, free := n.pod("limited", conf(over).with(object{"runtimeConfig": limits})), n.pod("free", conf(over))
			a, b := bootStack(limited, limited.add(), tt.offload), bootStack(free, free.add(), tt.offload)
			limited.works("CHECK", object{"runtimeConfig": limits})

			node := converse(t, n.netns, a.netns, a.ip[true])
			other := converse(t, b.netns, a.netns, a.ip[true])
			wantRate(t, "from the node", node.client, node.server, ingressRate)
			wantRate(t, "to the node", node.server, node.client, egressRate)
			wantRate(t, "from another pod", other.client, other.server, ingressRate)
			wantRate(t, "to another pod", other.server, other.client, egressRate)
			n.wantTaken(t, limited, tt.xdp != nil, false)

			if tt.xdp == nil {
				return
			}
			// The control: between two pods without limits the same kind of flow takes the shortcut, and is faster than any limit.
			third := n.pod("third", conf(over))
			c := bootStack(third, third.add(), tt.offload)
			unlimited := converse(t, b.netns, c.netns, c.ip[true])
			if got := rate(t, unlimited.client, unlimited.server, 300*time.Millisecond, 700*time.Millisecond); got < 2*ingressRate {
				t.Errorf("between pods without limits: got %.1f Mbit/s: the test shows nothing", got/1e6)
			}
			n.wantTaken(t, free, true, true)
		})
	}
}

// A plain pod's limits are on the same ends of its veth.
func TestBandwidthOfPlainPodIsLimited(t *testing.T) {
	n := newNode(t)
	c := conf(object{"when": "annotated", "runtimeConfig": limits})
	p := n.pod("plain", c)
	r := p.add()
	p.works("CHECK", nil)
	ip, _ := netip.AddrFromSlice(r.IPs[0].Address.IP)
	conn := converse(t, n.netns, p.netns, ip.Unmap())
	wantRate(t, "to the pod", conn.client, conn.server, ingressRate)
	wantRate(t, "from the pod", conn.server, conn.client, egressRate)
}

// One direction alone leaves the other as it is.
func TestBandwidthOfOneDirection(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(object{"runtimeConfig": object{"bandwidth": object{"egressRate": int(egressRate), "egressBurst": 800000}}}))
	s := bootStack(p, p.add(), offloadTSO)
	conn := converse(t, n.netns, s.netns, s.ip[true])
	if got := rate(t, conn.client, conn.server, 300*time.Millisecond, 700*time.Millisecond); got < 2*ingressRate {
		t.Errorf("without a limit towards the guest: got %.1f Mbit/s", got/1e6)
	}
	wantRate(t, "from the guest", conn.server, conn.client, egressRate)
}

func TestCheckSeesMissingAndOtherLimits(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(object{"runtimeConfig": limits}))
	r := p.add()
	p.works("CHECK", nil)
	wantText(t, p.fails("CHECK", codeDiffers, object{"runtimeConfig": object{"bandwidth": object{"ingressRate": 8000000, "ingressBurst": 800000}}}), "bandwidth")
	for _, at := range []struct{ netns, dev string }{{n.netns, hostEnd(t, r)}, {p.netns, "eth0"}} {
		var kept []netlink.Qdisc
		testnode.In(t, at.netns, func() {
			kept, _ = netlink.QdiscList(link(t, at.dev))
			for _, q := range kept {
				if q.Type() == "tbf" {
					mustDo(t, netlink.QdiscDel(q))
				}
			}
		})
		wantText(t, p.fails("CHECK", codeDiffers, nil), at.dev+": bandwidth: want a limit of")
		testnode.In(t, at.netns, func() {
			for _, q := range kept {
				if q.Type() == "tbf" {
					mustDo(t, netlink.QdiscAdd(q))
				}
			}
		})
		p.works("CHECK", nil)
	}
	p.works("DEL", nil)
}

// A burst of a few bits would let no frame pass.
func TestTinyBurstLetsFramesPass(t *testing.T) {
	n := newNode(t)
	tiny := object{"bandwidth": object{"ingressRate": int(ingressRate), "ingressBurst": 8, "egressRate": int(egressRate), "egressBurst": 8}}
	p := n.pod("c1", conf(object{"runtimeConfig": tiny}))
	g := boot(p, p.add())
	g.wantPing(nodeIP4, nodeIP6)
	big := make([]byte, uplinkMTU-20-8)
	g.send(g.gwMAC, 0x0800, echo(g.ip[true], g.gw[true], append([]byte{0, 1, 0, 1}, big[4:]...)))
	if _, ok := g.expect(patience, func(p packet) bool { return p.from == g.gw[true] && p.data[0] == 0 }); !ok {
		t.Errorf("a frame of %d bytes got no answer", uplinkMTU)
	}
}

// Of the annotations kubernetes.io/ingress-bandwidth and egress-bandwidth containerd makes a rate, and the largest burst that fits 32
// bits (internal/cri/server/sandbox_run.go, toCNIBandWidth); of a direction without an annotation zeroes. The slowest rate that
// Kubernetes takes is 1 kbit/s.
func TestBandwidthAsContainerdGivesIt(t *testing.T) {
	n := newNode(t)
	for i, b := range []object{
		{"ingressRate": 10_000_000, "ingressBurst": math.MaxUint32, "egressRate": 0, "egressBurst": 0},
		{"ingressRate": 0, "ingressBurst": 0, "egressRate": 1_000, "egressBurst": math.MaxUint32},
		{"ingressRate": 1_000, "ingressBurst": math.MaxUint32, "egressRate": 1_000_000_000_000, "egressBurst": math.MaxUint32},
	} {
		p := n.pod("c"+itoa(i), conf(object{"capabilities": object{"bandwidth": true}, "runtimeConfig": object{"bandwidth": b}}))
		g := boot(p, p.add())
		p.works("CHECK", nil)
		g.wantPing(nodeIP4, nodeIP6)
		p.works("DEL", nil)
	}
}
