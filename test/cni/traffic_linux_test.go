package cni_test

import (
	"bytes"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// gatewayMAC is the one MAC of every guest's gateway, on every node.
var gatewayMAC = net.HardwareAddr{0x02, 0x74, 0x61, 0x70, 0x69, 0x72}

// methods are the ways in which frames get from TAP to veth.
var methods = []string{"auto", "tcx", "clsact"}

func TestGuestResolvesWholeLink(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	g := boot(p, p.add())
	for _, tt := range []struct {
		who    string
		target netip.Addr
		answer bool
	}{
		{"the gateway", netip.MustParseAddr("10.9.0.1"), true},
		{"a neighbour that nobody has", netip.MustParseAddr("10.9.0.77"), true},
		{"the guest itself", g.ip[true], false},
		{"the broadcast address", netip.MustParseAddr("10.9.0.255"), false},
		{"an address off the link", netip.MustParseAddr("10.10.0.1"), false},
		{"the gateway", netip.MustParseAddr("fd00:9::1"), true},
		{"a neighbour that nobody has", netip.MustParseAddr("fd00:9::77"), true},
		{"the guest itself", g.ip[false], false},
		{"an address off the link", netip.MustParseAddr("fd00:10::1"), false},
	} {
		wait := silence
		if tt.answer {
			wait = patience
		}
		got := g.resolve(tt.target, wait)
		if tt.answer && !bytes.Equal(got, gatewayMAC) {
			t.Errorf("who has %s (%s)? got %v, want the gateway's %s", tt.target, tt.who, got, gatewayMAC)
		}
		if !tt.answer && got != nil {
			t.Errorf("who has %s (%s)? got %s, want no answer", tt.target, tt.who, got)
		}
	}
}

func TestGuestReachesGatewayNodePodsAndWorld(t *testing.T) {
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			n := newNode(t)
			n.routePodsInWorld()
			a, b := n.pod("a", conf(object{"redirect": method})), n.pod("b", conf(object{"redirect": method}))
			ga, gb := boot(a, a.add()), boot(b, b.add())
			ga.wantPing(ga.gw[true], nodeIP4, gb.ip[true], worldIP4, ga.gw[false], nodeIP6, gb.ip[false], worldIP6)
			gb.wantPing(ga.ip[true], ga.ip[false])
			before := n.snapshot()
			for _, p := range []*pod{a, b} {
				p.works("CHECK", nil)
				p.works("DEL", nil)
			}
			if after := without(n.snapshot(a.netns, b.netns), filepath.Base(n.netns)); len(after) != 2 {
				t.Errorf("after DEL there is more than lo in both sandboxes: %q, before %q", after, before)
			}
		})
	}
}

// routePodsInWorld leads what the world answers back to the node.
func (n *node) routePodsInWorld() {
	n.t.Helper()
	n.inWorld(func() {
		addRoute(n.t, "10.9.0.0/24", nodeIP4)
		addRoute(n.t, "fd00:9::/64", nodeIP6)
	})
}

// talk sends a datagram from the node to a guest's echo port and gives the node's address that it came from.
func (n *node) talk(to netip.Addr) (source netip.Addr, ok bool) {
	n.t.Helper()
	n.in(func() {
		conn, err := net.Dial("udp", netip.AddrPortFrom(to, 7).String())
		if err != nil {
			n.t.Logf("talk to %s: %v", to, err)
			return
		}
		defer conn.Close()
		source = conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr()
		// Asked again, as any client would: a new IPv6 address gets its route from a work queue of the kernel.
		for end := time.Now().Add(patience); !ok && time.Now().Before(end); {
			ok = echoes(conn, "from the node")
		}
	})
	return source, ok
}

// echoes sends a datagram and reports whether it comes back within a fifth of a second.
func echoes(conn net.Conn, text string) bool {
	buf := make([]byte, 100)
	_ = conn.SetDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := conn.Write([]byte(text)); err != nil {
		return false
	}
	size, err := conn.Read(buf)
	return err == nil && string(buf[:size]) == text
}

func TestNodeTalksToGuestFromItsOwnAddress(t *testing.T) {
	gw4, gw6 := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd00:9::1")
	for _, tt := range []struct {
		name         string
		node         func(testing.TB) *node
		want4, want6 netip.Addr
	}{
		{"node with addresses", newNode, nodeIP4, nodeIP6},
		{"node without any", newBareNode, gw4, gw6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := tt.node(t)
			p := n.pod("c1", conf(nil))
			g := boot(p, p.add())
			for to, want := range map[netip.Addr]netip.Addr{g.ip[true]: tt.want4, g.ip[false]: tt.want6} {
				source, ok := n.talk(to)
				if !ok {
					t.Errorf("the guest %s did not answer the node", to)
				}
				if source != want {
					t.Errorf("the node talks to %s from %s, want %s", to, source, want)
				}
			}
			p.works("CHECK", nil)
		})
	}
}

// A node that gets another address, as by DHCP, talks from that one.
func TestNodeTalksFromItsNewAddress(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	g := boot(p, p.add())
	new4, new6 := netip.MustParseAddr("172.18.0.22"), netip.MustParseAddr("fd00:18::22")
	n.in(func() {
		for _, a := range []netip.Prefix{netip.PrefixFrom(nodeIP4, 24), netip.PrefixFrom(nodeIP6, 64)} {
			mustDo(t, delAddr(a.String())(link(t, "up0")))
		}
		addAddr(t, "up0", netip.PrefixFrom(new4, 24))
		addAddr(t, "up0", netip.PrefixFrom(new6, 64))
	})
	for _, want := range []netip.Addr{new4, new6} {
		if source, ok := n.talk(g.ip[want.Is4()]); !ok || source != want {
			t.Errorf("the node talks to %s from %s (%t), want %s", g.ip[want.Is4()], source, ok, want)
		}
	}
}

// The node's neighbour entry of the pod before would send the first frames to a MAC that is gone.
func TestFirstPacketPassesToNewPodWithOldAddress(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipam": ranges("10.9.0.0/24", "fd00:9::/64").with(object{"reuseDelay": "0s"})})
	var macs []string
	for _, id := range []string{"old", "new"} {
		p := n.pod(id, c)
		p.args = "IP=10.9.0.5,fd00:9::5"
		g := boot(p, p.add())
		macs = append(macs, g.mac.String())
		for _, to := range []netip.Addr{g.ip[true], g.ip[false]} {
			if _, ok := n.talk(to); !ok { // one datagram, no second try
				t.Errorf("%s: the first datagram to %s got no answer", id, to)
			}
		}
		p.works("DEL", nil)
	}
	if macs[0] == macs[1] {
		t.Errorf("both pods have the MAC %s: the test shows nothing", macs[0])
	}
}

// Frames of 9000 bytes and the largest of the default MTU pass whole.
func TestFullFramesPass(t *testing.T) {
	n := newNode(t)
	for _, tt := range []struct {
		id  string
		mtu int
	}{{"default", uplinkMTU}, {"jumbo", 9000}} {
		over := object{"queues": 2}
		if tt.mtu != uplinkMTU {
			over["mtu"] = tt.mtu
		}
		p := n.pod(tt.id, conf(over))
		g := boot(p, p.add())
		body := bytes.Repeat([]byte{0xa5}, tt.mtu-20-8)
		g.send(g.gwMAC, unix.ETH_P_IP, echo(g.ip[true], g.gw[true], append([]byte{0, 1, 0, 1}, body...)))
		if _, ok := g.expect(patience, func(p packet) bool {
			return p.from == g.gw[true] && p.data[0] == 0 && bytes.Equal(p.data[8:], body)
		}); !ok {
			t.Errorf("%s: a frame of %d bytes got no answer", tt.id, tt.mtu)
		}
	}
}
