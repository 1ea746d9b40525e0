package xdp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/internal/testnode"
)

// node is a host netns with guests on real devices, each in a pod's netns, with the default programs and the shortcut's.
type node struct {
	t      testing.TB
	host   string
	progs  *Programs
	s      *Shortcut
	method Method
	guests []*guest
	clones bool // guests to come have a fixed identity inside
}

// guest is one attachment; the test reads and writes its TAP.
type guest struct {
	*node
	ns             string
	tapIdx, podIdx uint32
	hostIdx        uint32
	tap            port
	mac            net.HardwareAddr
	v4, v6         netip.Addr
	part           Participant
	mode           Mode // that it got
}

// newNode makes a host that routes, with n guests that take part in the given mode.
func newNode(t testing.TB, n int, mode Mode) *node {
	t.Helper()
	testnode.Require(t, "root", "bpf", "btf", "tcx", "tun", "ipv6")
	nd := &node{t: t, host: testnode.NewNetns(t), s: newShortcutAt(t), method: MethodTCX}
	var err error
	if nd.progs, err = Ensure(nd.s.base); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nd.progs.Close() })
	testnode.In(t, nd.host, func() {
		for _, file := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			nd.must(os.WriteFile("/proc/sys/net/"+file, []byte("1"), 0))
		}
		nd.must(os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0))
		lo, err := netlink.LinkByName("lo")
		nd.must(err)
		nd.must(netlink.LinkSetUp(lo))
	})
	for i := range n {
		nd.addGuest(i, mode)
	}
	return nd
}

func (nd *node) must(err error) {
	nd.t.Helper()
	if err != nil {
		nd.t.Fatal(err)
	}
}

// addGuest makes the i-th guest: 10.9.0.(10+i) and 2001:db8:9::(10+i), with ifindexes that no other device of the node has.
func (nd *node) addGuest(i int, mode Mode) *guest {
	nd.t.Helper()
	base := uint32(1000000 + 10*i)
	g := &guest{
		node: nd, ns: testnode.NewNetns(nd.t), tapIdx: base + 1, podIdx: base + 2, hostIdx: base + 3,
		mac: net.HardwareAddr{0x02, 0xbb, 0, 0, 0, byte(10 + i)},
		v4:  netip.AddrFrom4([4]byte{10, 9, 0, byte(10 + i)}), v6: netip.MustParseAddr(fmt.Sprintf("2001:db8:9::%x", 10+i)),
	}
	if nd.clones {
		g.mac = guestMAC
	}
	nd.guests = append(nd.guests, g)
	testnode.In(nd.t, g.ns, func() {
		// So that only the tests' frames are on the way.
		nd.must(os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0))
	})
	nsid := g.makeVeth(fmt.Sprintf("tpr%d", i))
	testnode.In(nd.t, g.ns, func() {
		g.tap = openTAPAt(nd.t, "tap-eth0", g.tapIdx, unix.O_NONBLOCK)
		g.attachDefault()
		up(nd.t, "eth0")
		setMTU(nd.t, "eth0", 1500)
	})
	testnode.In(nd.t, nd.host, func() { g.routeHost(fmt.Sprintf("tpr%d", i)) })
	g.part = Participant{
		TAP: g.tapIdx, Host: g.hostIdx, HostNSID: nsid, MAC: g.mac, MTU: 1500, SpoofCheck: true, Counters: g.tapIdx,
		Addresses: []netip.Prefix{netip.PrefixFrom(g.v4, 24), netip.PrefixFrom(g.v6, 64)},
	}
	if nd.clones {
		g.part.Inside = []netip.Addr{inside4.Addr(), inside6.Addr()}
	}
	if mode != ModeOff {
		g.join(mode)
	}
	testnode.In(nd.t, g.ns, func() {
		up(nd.t, "tap-eth0")
		setMTU(nd.t, "tap-eth0", 1500)
		awaitUp(nd.t, "eth0")
	})
	testnode.In(nd.t, nd.host, func() { awaitUp(nd.t, fmt.Sprintf("tpr%d", i)) })
	return g
}

// makeVeth makes the pair and gives the id of the host's netns in the pod's.
func (g *guest) makeVeth(name string) (nsid int32) {
	pod, err := os.Open(g.ns)
	g.must(err)
	defer pod.Close()
	host, err := os.Open(g.host)
	g.must(err)
	defer host.Close()
	testnode.In(g.t, g.host, func() {
		c, err := rtnl.Open()
		g.must(err)
		defer c.Close()
		here := rtnl.End{Name: name, Index: int(g.hostIdx), MAC: GatewayMAC, MTU: 1500}
		there := rtnl.End{Name: "eth0", Index: int(g.podIdx), MAC: g.mac, MTU: 1500}
		g.must(c.CreateVeth(here, there, int(pod.Fd())))
	})
	testnode.In(g.t, g.ns, func() {
		c, err := rtnl.Open()
		g.must(err)
		defer c.Close()
		id, err := c.EnsureNetnsID(int(host.Fd()))
		g.must(err)
		nsid = int32(id)
	})
	return nsid
}

// attachDefault is the default path of an attachment.
func (g *guest) attachDefault() {
	ep := Endpoint{
		Role: RoleGuest, SpoofCheck: true, Peer: g.podIdx, Redirect: RedirectPeer, Counters: g.tapIdx,
		GuestMAC: g.mac, GatewayMAC: GatewayMAC,
		Addresses: []netip.Prefix{netip.PrefixFrom(g.v4, 24), netip.PrefixFrom(g.v6, 64)}, Gateways: []netip.Addr{gateway4, gateway6},
	}
	pod := Endpoint{Role: RolePod, Peer: g.tapIdx, Redirect: RedirectEgress, Counters: g.tapIdx}
	if g.clones {
		ep.Addresses, ep.Gateways, ep.Outside = []netip.Prefix{inside4, inside6}, insideGW, []netip.Addr{g.v4, g.v6}
		pod.Addresses, pod.Outside = ep.Addresses, ep.Outside
	}
	g.must(g.progs.Reserve(map[uint32]Endpoint{g.tapIdx: ep, g.podIdx: pod}))
	g.must(g.progs.Attach(int(g.tapIdx), RoleGuest, g.method))
	g.must(g.progs.Attach(int(g.podIdx), RolePod, g.method))
}

// routeHost gives the host its way to the guest.
func (g *guest) routeHost(name string) {
	l, err := netlink.LinkByName(name)
	g.must(err)
	g.must(netlink.LinkSetUp(l))
	for _, a := range []netip.Addr{g.v4, g.v6} {
		dst := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
		g.must(netlink.RouteAdd(&netlink.Route{LinkIndex: int(g.hostIdx), Scope: netlink.SCOPE_LINK, Dst: dst}))
		g.must(netlink.NeighAdd(&netlink.Neigh{LinkIndex: int(g.hostIdx), IP: a.AsSlice(), HardwareAddr: g.mac, State: netlink.NUD_PERMANENT}))
	}
	gw := &net.IPNet{IP: gateway4.AsSlice(), Mask: net.CIDRMask(32, 32)}
	g.must(netlink.AddrAdd(l, &netlink.Addr{IPNet: gw}))
}

// join takes the steps of an ADD.
func (g *guest) join(mode Mode) {
	g.t.Helper()
	g.must(g.s.Join(g.part))
	testnode.In(g.t, g.ns, func() {
		g.must(g.s.AddDevice(g.tapIdx))
		var err error
		g.mode, err = g.s.AttachTAP(int(g.tapIdx), mode)
		g.must(err)
	})
	testnode.In(g.t, g.host, func() { g.must(g.s.AttachHost(int(g.hostIdx), g.method)) })
	g.must(g.s.Publish(g.tapIdx))
}

// leave takes the steps of a change to mode off.
func (g *guest) leave() {
	g.t.Helper()
	g.must(g.s.Withdraw(g.tapIdx))
	testnode.In(g.t, g.ns, func() { g.must(g.s.DetachTAP(int(g.tapIdx))) })
	testnode.In(g.t, g.host, func() { g.must(g.s.DetachHost(int(g.hostIdx), g.method)) })
	g.must(g.s.Leave(g.tapIdx, g.hostIdx))
}

func setMTU(t testing.TB, name string, mtu int) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetMTU(l, mtu); err != nil {
		t.Fatal(err)
	}
}

// openTAPAt is openTAP with a chosen ifindex.
func openTAPAt(t testing.TB, name string, ifindex uint32, flags int) port {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETIFINDEX, int(ifindex)); err != nil {
		t.Fatalf("choose ifindex %d: %v", ifindex, err)
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		t.Fatalf("create TAP: %v", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloadCsum|offloadTSO4); err != nil {
		t.Fatal(err)
	}
	return port{t: t, fd: fd, unicast: true}
}

// to is a frame of the guest's, by way of its gateway.
func (g *guest) to(dst netip.Addr, proto int, l4 []byte) []byte {
	if dst.Is4() {
		return eth(GatewayMAC, g.mac, typeIPv4, ip4(g.v4, dst, proto, 0, l4))
	}
	return eth(GatewayMAC, g.mac, typeIPv6, ip6(g.v6, dst, proto, 64, l4))
}

// paths are the guest's counters of the shortcut, frames alone, without those beside.
func (g *guest) paths() map[ShortcutReason]uint64 {
	g.t.Helper()
	c, err := g.s.ShortcutCounters(g.tapIdx)
	g.must(err)
	out := map[ShortcutReason]uint64{}
	for r, n := range c {
		if !r.Beside() {
			out[r] = n.Frames
		}
	}
	return out
}

// took runs f and says under which reasons its frames were counted.
func (g *guest) took(f func()) map[ShortcutReason]uint64 {
	g.t.Helper()
	before := g.paths()
	f()
	out := map[ShortcutReason]uint64{}
	for r, n := range g.paths() {
		if n > before[r] {
			out[r] = n - before[r]
		}
	}
	return out
}

// wantTook runs f and compares; each reason is one frame's.
func (g *guest) wantTook(what string, f func(), reasons ...ShortcutReason) {
	g.t.Helper()
	got := g.took(f)
	want := map[ShortcutReason]uint64{}
	for _, r := range reasons {
		want[r]++
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		g.t.Errorf("%s: took %v, want %v", what, got, want)
	}
}

// reaches sends a frame to another guest and compares what comes out with want, byte for byte.
func (g *guest) reaches(other *guest, what string, h vnetHdr, frame, want []byte) vnetHdr {
	g.t.Helper()
	g.tap.send(h, frame)
	return other.tap.want(what, want)
}

// nft loads rules into the host's netns.
func (nd *node) nft(rules string) {
	nd.t.Helper()
	testnode.In(nd.t, nd.host, func() {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			nd.t.Fatalf("nft: %v: %s", err, out)
		}
	})
}

// eventually waits for cond.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: it did not come to that", what)
		}
	}
}

func setBlocking(fd int) error {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags&^unix.O_NONBLOCK)
	return err
}

func deleteLink(t testing.TB, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(l); err != nil {
		t.Fatal(err)
	}
}

func writeSysctl(t testing.TB, name, value string) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

func openNetns(path string) (*os.File, error) { return os.Open(path) }
