package cni_test

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// raRouter is the link-local address of a router in the world that advertises itself.
var raRouter = netip.MustParseAddr("fe80::1")

// newRANode makes a node that has its IPv6 default route from a router advertisement, as most nodes have.
func newRANode(t *testing.T) *node {
	t.Helper()
	n := newBareNode(t)
	n.world = testnode.NewNetns(t)
	n.in(func() {
		n.sysctl("net/ipv6/conf/default/accept_ra", "1")
		addUplink(t, n.world)
		addAddr(t, "up0", netip.PrefixFrom(nodeIP4, 24))
		addRoute(t, "0.0.0.0/0", hopIP4)
	})
	return n
}

// advertiseRouter sends a router advertisement (RFC 4861, 4.2) of that lifetime into the node's uplink.
func (n *node) advertiseRouter(lifetime time.Duration) {
	n.t.Helper()
	var mac net.HardwareAddr
	n.inWorld(func() { mac = link(n.t, "up0").Attrs().HardwareAddr })
	allNodes := netip.MustParseAddr("ff02::1")
	body := join([]byte{64, 0}, u16(int(lifetime.Seconds())), make([]byte, 8), []byte{1, 1}, mac)
	tapWire(n.t, n.world, "up0").send(eth(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, mac, unix.ETH_P_IPV6, icmp(raRouter, allNodes, 134, body)))
}

// raRoutes are the node's default routes by router advertisement.
func (n *node) raRoutes() (count int) {
	n.t.Helper()
	n.in(func() {
		routes, err := netlink.RouteList(nil, unix.AF_INET6)
		mustDo(n.t, err)
		for _, r := range routes {
			if r.Gw.Equal(raRouter.AsSlice()) && r.Protocol == unix.RTPROT_RA {
				count++
			}
		}
	})
	return count
}

// waitRARoutes waits until there are that many.
func (n *node) waitRARoutes(want int) bool {
	n.t.Helper()
	for deadline := time.Now().Add(patience); n.raRoutes() != want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

func TestNodeKeepsItsRADefaultRoute(t *testing.T) {
	n := newRANode(t)
	n.advertiseRouter(30 * time.Minute)
	if !n.waitRARoutes(1) {
		t.Fatal("the node takes no default route from an advertisement: the test shows nothing")
	}
	p := n.pod("c1", conf(nil))
	p.add()
	if v := n.readSysctl("net/ipv6/conf/all/forwarding"); v != "1" {
		t.Fatalf("IPv6 forwarding is %s after ADD", v)
	}
	if n.raRoutes() != 1 {
		t.Error("ADD cost the node its default route")
	}
	// And goes on taking them: withdrawn, and given again.
	n.advertiseRouter(0)
	if !n.waitRARoutes(0) {
		t.Error("the node no longer hears that its router withdraws")
	}
	n.advertiseRouter(30 * time.Minute)
	if !n.waitRARoutes(1) {
		t.Error("the node no longer takes a default route from an advertisement")
	}
	if v := n.readSysctl("net/ipv6/conf/up0/accept_ra"); v != "2" {
		t.Errorf("accept_ra is %s, want 2", v)
	}
}

// Control: with forwarding on and accept_ra left at 1 the kernel drops the route.
func TestKernelDropsRARouteOfRouter(t *testing.T) {
	n := newRANode(t)
	n.advertiseRouter(30 * time.Minute)
	if !n.waitRARoutes(1) {
		t.Fatal("the node takes no default route from an advertisement")
	}
	n.in(func() { n.sysctl("net/ipv6/conf/all/forwarding", "1") })
	if !n.waitRARoutes(0) {
		t.Error("the kernel kept the route: TestNodeKeepsItsRADefaultRoute shows nothing")
	}
}

// sysctls of the node that have to do with forwarding, as "name = value".
func (n *node) forwardingSysctls() (out []string) {
	n.t.Helper()
	names := []string{"net/ipv4/ip_forward"}
	for _, dev := range []string{"all", "default", "lo", "up0"} {
		names = append(names, "net/ipv4/conf/"+dev+"/forwarding", "net/ipv6/conf/"+dev+"/forwarding", "net/ipv6/conf/"+dev+"/accept_ra")
	}
	for _, name := range names {
		out = append(out, name+" = "+n.readSysctl(name))
	}
	return out
}

func TestCleanupRestoresSysctls(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prepare map[string]string
		subnets []string
		changed []string
		same    []string
	}{
		{"both families", map[string]string{"net/ipv6/conf/up0/accept_ra": "1"}, []string{"10.9.0.0/24", "fd00:9::/64"},
			[]string{"net/ipv4/ip_forward = 1", "net/ipv6/conf/all/forwarding = 1", "net/ipv6/conf/up0/accept_ra = 2"}, nil},
		{"IPv4 alone", nil, []string{"10.9.0.0/24"}, []string{"net/ipv4/ip_forward = 1"}, []string{"net/ipv6/conf/all/forwarding = 0"}},
		{"IPv6 alone", nil, []string{"fd00:9::/64"}, []string{"net/ipv6/conf/all/forwarding = 1"}, []string{"net/ipv4/ip_forward = 0"}},
		{"on already", map[string]string{"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv6/conf/up0/accept_ra": "1"},
			[]string{"10.9.0.0/24", "fd00:9::/64"}, nil, []string{"net/ipv4/ip_forward = 1", "net/ipv6/conf/up0/accept_ra = 1"}},
		{"no advertisements", map[string]string{"net/ipv6/conf/up0/accept_ra": "0"}, []string{"fd00:9::/64"}, nil, []string{"net/ipv6/conf/up0/accept_ra = 0"}},
		{"one interface forwards", map[string]string{"net/ipv4/conf/up0/forwarding": "1", "net/ipv6/conf/up0/forwarding": "1"}, []string{"10.9.0.0/24", "fd00:9::/64"},
			[]string{"net/ipv4/ip_forward = 1"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			n.in(func() {
				for name, value := range tt.prepare {
					n.sysctl(name, value)
				}
			})
			before := n.forwardingSysctls()
			p := n.pod("c1", conf(object{"ipam": ranges(tt.subnets...)}))
			p.add()
			during := n.forwardingSysctls()
			for _, want := range append(tt.changed, tt.same...) {
				if !slices.Contains(during, want) {
					t.Errorf("after ADD: want %s in %q", want, during)
				}
			}
			p.works("DEL", nil)
			if out := n.ctl("cleanup", "--yes"); out.code != 0 {
				t.Errorf("clean-up: %s", out)
			}
			wantSame(t, "sysctls after the clean-up", before, n.forwardingSysctls())
		})
	}
}

// Where the node has IPv6 off, the error says so and nothing is left.
func TestIPv6OffOnNode(t *testing.T) {
	n := newNode(t)
	n.in(func() { n.sysctl("net/ipv6/conf/all/disable_ipv6", "1") })
	n.in(func() { n.sysctl("net/ipv6/conf/default/disable_ipv6", "1") })
	p := n.pod("c1", conf(nil))
	before := n.snapshot(p.netns)
	out := p.call("ADD", nil)
	if out.code == 0 {
		t.Errorf("ADD with an IPv6 range succeeded: %s", out)
	}
	wantText(t, string(out.stdout), "disable_ipv6")
	wantSame(t, "after the failed ADD", before, n.snapshot(p.netns))
	p.conf = conf(object{"ipam": ranges("10.9.0.0/24")})
	boot(p, p.add()).wantPing(nodeIP4)
	if s := strings.Join(n.forwardingSysctls(), " "); !strings.Contains(s, "net/ipv4/ip_forward = 1") {
		t.Errorf("IPv4 does not forward: %s", s)
	}
}
