package cni_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
)

// stateDir and pinDir are where the plugin keeps things if the configuration does not say otherwise.
const (
	stateDir = "/run/tapir"
	pinDir   = "/sys/fs/bpf/tapir"
)

// A node is a host of its own: a netns in which the plugin runs, with an uplink to another netns, the world. Forwarding
// is off, as on a machine that nobody has prepared.
type node struct {
	t     testing.TB
	netns string
	world string
}

// The addresses of a node and of its next hop in the world; worldIP4 and worldIP6 are further away, behind that hop.
var (
	nodeIP4, nodeIP6   = netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("fd00:18::2")
	hopIP4, hopIP6     = netip.MustParseAddr("172.18.0.1"), netip.MustParseAddr("fd00:18::1")
	worldIP4, worldIP6 = netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("fd00:51::7")
)

// uplinkMTU is not 1500, so that a default is told from what the default route's device has.
const uplinkMTU = 1400

// newBareNode makes a node without uplink and addresses. When the test ends, "tapirctl cleanup" must leave nothing there.
func newBareNode(t testing.TB) *node {
	t.Helper()
	testnode.Require(t, "root", "bpf", "tun", "ipv6")
	n := &node{t: t, netns: testnode.NewNetns(t)}
	n.in(func() {
		setUp(t, "lo")
		n.sysctl("net/ipv4/ip_forward", "0")
		n.sysctl("net/ipv6/conf/all/forwarding", "0")
		n.sysctl("net/ipv6/conf/default/accept_dad", "0")
	})
	t.Cleanup(n.leavesNothing)
	return n
}

// newNode makes a node with an uplink "up0" and default routes.
func newNode(t testing.TB) *node {
	t.Helper()
	n := newBareNode(t)
	n.world = testnode.NewNetns(t)
	n.in(func() { addUplink(t, n.world) })
	n.inWorld(func() {
		addAddr(t, "up0", netip.PrefixFrom(hopIP4, 24))
		addAddr(t, "up0", netip.PrefixFrom(hopIP6, 64))
		setUp(t, "lo")
		addAddr(t, "lo", netip.PrefixFrom(worldIP4, 32))
		addAddr(t, "lo", netip.PrefixFrom(worldIP6, 128))
	})
	n.in(func() {
		addAddr(t, "up0", netip.PrefixFrom(nodeIP4, 24))
		addAddr(t, "up0", netip.PrefixFrom(nodeIP6, 64))
		addRoute(t, "0.0.0.0/0", hopIP4)
		addRoute(t, "::/0", hopIP6)
	})
	return n
}

func (n *node) in(f func())      { n.t.Helper(); testnode.In(n.t, n.netns, f) }
func (n *node) inWorld(f func()) { n.t.Helper(); testnode.In(n.t, n.world, f) }

// sysctl sets a sysctl of the calling thread's netns.
func (n *node) sysctl(name, value string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0); err != nil {
		n.t.Fatal(err)
	}
}

// readSysctl reads a sysctl of the node.
func (n *node) readSysctl(name string) (value string) {
	n.t.Helper()
	n.in(func() {
		b, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			n.t.Fatal(err)
		}
		value = strings.TrimSpace(string(b))
	})
	return value
}

// leavesNothing runs when every sandbox of the test is gone: what is left is dead, and the clean-up must remove it all.
func (n *node) leavesNothing() {
	n.t.Helper()
	if out := n.ctl("cleanup", "--yes"); out.code != 0 {
		n.t.Errorf("tapirctl cleanup --yes: %s", out)
	}
	for _, path := range []string{stateDir, pinDir} {
		if _, err := os.Stat(path); err == nil {
			n.t.Errorf("after the clean-up there is still %s", path)
			_ = os.RemoveAll(path) // the next test is not to suffer
		}
	}
	for _, name := range n.linkNames() {
		if strings.HasPrefix(name, "tpr") {
			n.t.Errorf("after the clean-up there is still the device %s", name)
		}
	}
	if tables := n.nftables(); len(tables) > 0 {
		n.t.Errorf("after the clean-up nftables still has %q", tables)
	}
}

func (n *node) linkNames() (names []string) {
	n.t.Helper()
	n.in(func() {
		for _, l := range allLinks(n.t) {
			names = append(names, l.Attrs().Name)
		}
	})
	return names
}

// What follows acts on the netns of the calling thread.

func addUplink(t testing.TB, world string) {
	t.Helper()
	f, err := os.Open(world)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0", MTU: uplinkMTU}, PeerName: "up0", PeerNamespace: netlink.NsFd(f.Fd())}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	setUp(t, "up0")
	testnode.In(t, world, func() {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/up0/accept_dad", []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
		setUp(t, "up0")
	})
}

func link(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatalf("link %s: %v", name, err)
	}
	return l
}

func allLinks(t testing.TB) []netlink.Link {
	t.Helper()
	links, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // a device came or went meanwhile
		links, err = netlink.LinkList()
	}
	if err != nil {
		t.Fatal(err)
	}
	return links
}

func setUp(t testing.TB, name string) {
	t.Helper()
	if err := netlink.LinkSetUp(link(t, name)); err != nil {
		t.Fatalf("set %s up: %v", name, err)
	}
}

func addAddr(t testing.TB, dev string, p netip.Prefix) {
	t.Helper()
	addr := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		addr.Flags = 0x02 // IFA_F_NODAD
	}
	if err := netlink.AddrAdd(link(t, dev), addr); err != nil {
		t.Fatalf("add %s to %s: %v", p, dev, err)
	}
}

func addRoute(t testing.TB, dst string, gw netip.Addr) {
	t.Helper()
	if err := netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParsePrefix(dst)), Gw: gw.AsSlice()}); err != nil {
		t.Fatalf("route %s via %s: %v", dst, gw, err)
	}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
