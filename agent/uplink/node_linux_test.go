package uplink

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// patience is how long anything may take on a busy machine.
const patience = 20 * time.Second

var (
	prefix4, prefix6 = netip.MustParsePrefix("10.9.1.0/24"), netip.MustParsePrefix("fd00:9:1::/64")
	hop4, hop6       = netip.MustParseAddr("172.18.0.1"), netip.MustParseAddr("fd00:18::1")
	other4           = netip.MustParseAddr("172.18.0.3")
)

// A node has "up0", whose other end is in lan, where the next hops are; the routes of the kernel to both prefixes go there.
type node struct {
	t           *testing.T
	netns, lan  string
	conn, there *rtnl.Conn
	up0         int
}

func newNode(t *testing.T) *node {
	t.Helper()
	testnode.Require(t, "root", "bpf", "btf", "ipv6")
	n := &node{t: t, netns: testnode.NewNetns(t), lan: testnode.NewNetns(t)}
	f, err := os.Open(n.lan)
	must(t, err)
	defer f.Close()
	testnode.In(t, n.lan, func() { n.there, err = rtnl.Open(); must(t, err) })
	t.Cleanup(n.there.Close)
	testnode.In(t, n.netns, func() { n.conn, err = rtnl.Open(); must(t, err) })
	t.Cleanup(n.conn.Close)
	must(t, n.conn.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0", MTU: 1400}, PeerName: "up0", PeerNamespace: netlink.NsFd(f.Fd())}))
	for _, end := range []struct {
		netns string
		conn  *rtnl.Conn
		addrs []string
	}{{n.lan, n.there, []string{"172.18.0.1/24", "172.18.0.3/24", "fd00:18::1/64"}}, {n.netns, n.conn, []string{"172.18.0.2/24", "fd00:18::2/64"}}} {
		testnode.In(t, end.netns, func() {
			for name, value := range map[string]string{
				"ipv6/conf/up0/accept_dad": "0", "ipv4/conf/up0/arp_notify": "1",
				// A neighbour that is gone is found to be so in a second, not in half a minute.
				"ipv4/neigh/up0/base_reachable_time_ms": "400", "ipv4/neigh/up0/delay_first_probe_time": "1", "ipv4/neigh/up0/retrans_time_ms": "100",
				"ipv6/neigh/up0/base_reachable_time_ms": "400", "ipv6/neigh/up0/delay_first_probe_time": "1", "ipv6/neigh/up0/retrans_time_ms": "100",
				"ipv4/neigh/up0/locktime": "0",
			} {
				must(t, os.WriteFile("/proc/sys/net/"+name, []byte(value), 0))
			}
		})
		must(t, end.conn.LinkSetUp(linkOf(t, end.conn)))
		for _, a := range end.addrs {
			addr, err := netlink.ParseAddr(a)
			must(t, err)
			addr.Flags = unix.IFA_F_NODAD
			must(t, end.conn.AddrAdd(linkOf(t, end.conn), addr))
		}
	}
	n.up0 = linkOf(t, n.conn).Attrs().Index
	n.route("add", prefix4, hop4)
	n.route("add", prefix6, hop6)
	return n
}

func linkOf(t *testing.T, c *rtnl.Conn) netlink.Link {
	t.Helper()
	l, err := c.LinkByName("up0")
	must(t, err)
	return l
}

// local adds an address to the node, on lo, or deletes it.
func (n *node) local(verb string, a netip.Addr) {
	n.t.Helper()
	testnode.In(n.t, n.netns, func() {
		lo, err := netlink.LinkByName("lo")
		must(n.t, err)
		must(n.t, netlink.LinkSetUp(lo))
		change := map[string]func(netlink.Link, *netlink.Addr) error{"add": netlink.AddrAdd, "delete": netlink.AddrDel}[verb]
		must(n.t, change(lo, &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice())}))
	})
}

// route adds, replaces or deletes a route of the kernel.
func (n *node) route(verb string, p netip.Prefix, via netip.Addr) {
	n.t.Helper()
	r := &netlink.Route{Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if via.IsValid() {
		r.Gw = via.AsSlice()
	} else {
		r.Type = unix.RTN_BLACKHOLE
	}
	do := map[string]func(*netlink.Route) error{"add": n.conn.RouteAdd, "replace": n.conn.RouteReplace, "delete": n.conn.RouteDel}[verb]
	must(n.t, do(r))
}

// send sends a datagram to a next hop, as frames on the default path do: the kernel resolves it.
func (n *node) send(to netip.Addr) {
	n.t.Helper()
	testnode.In(n.t, n.netns, func() {
		c, err := net.Dial("udp", netip.AddrPortFrom(to, 9).String())
		must(n.t, err)
		defer c.Close()
		_, _ = c.Write([]byte("x")) // refused or not
	})
}

// lanMAC is the MAC of the next hops.
func (n *node) lanMAC() string {
	n.t.Helper()
	return linkOf(n.t, n.there).Attrs().HardwareAddr.String()
}

// run runs an Uplink in the node until the test ends or stop is called.
func (n *node) run(table func() (Table, error), dir string) (stop func()) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	out := io.Writer(io.Discard)
	if testing.Verbose() {
		out = os.Stderr
	}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		testnode.In(n.t, n.netns, func() {
			done <- New(Config{Open: table, Dir: dir, Logger: slog.New(slog.NewTextHandler(out, nil))}).Run(ctx)
		})
		close(done)
	}()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		for err := range done {
			if err != nil {
				n.t.Errorf("Run: %v", err)
			}
		}
	}
	n.t.Cleanup(stop)
	return stop
}

// eventually waits until ok is true, and gives up with what it saw last.
func eventually(t *testing.T, what string, ok func() (bool, any)) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		good, saw := ok()
		if good {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s; got %+v", what, patience, saw)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pinDir is a folder of its own on the node's bpffs.
func pinDir(t *testing.T) string {
	dir := filepath.Join("/sys/fs/bpf", t.Name())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
