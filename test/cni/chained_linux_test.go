package cni_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tcxLines are the tcx programs of every device in the netns of the calling thread.
func tcxLines(t testing.TB) (lines []string) {
	t.Helper()
	for _, l := range allLinks(t) {
		for hook, name := range map[ebpf.AttachType]string{ebpf.AttachTCXIngress: "ingress", ebpf.AttachTCXEgress: "egress"} {
			res, err := ebpflink.QueryPrograms(ebpflink.QueryOptions{Target: l.Attrs().Index, Attach: hook})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range res.Programs {
				lines = append(lines, fmt.Sprintf("tcx %s %s program %d", l.Attrs().Name, name, p.ID))
			}
		}
	}
	return lines
}

// A neighbour is a plugin that makes the pod's interface, in a network of its own.
type neighbour struct {
	name    string
	conf    object
	v4, v6  string // subnets
	gw4     string
	gw6     string
	reaches []string // what guests of it reach beside their gateway
	onLink  bool     // pods of the network are neighbours; else the gateway leads to them
}

var neighbours = []neighbour{
	{"bridge", object{"type": "bridge", "bridge": "br0", "isGateway": true, "isDefaultGateway": true, "hairpinMode": true},
		"10.22.0.0/24", "fd00:22::/64", "10.22.0.1", "fd00:22::1", []string{"172.18.0.2", "fd00:18::2"}, true},
	{"ptp", object{"type": "ptp"}, "10.23.0.0/24", "fd00:23::/64", "10.23.0.1", "fd00:23::1", []string{"172.18.0.2", "fd00:18::2"}, false},
	{"macvlan", object{"type": "macvlan", "master": "up0", "mode": "bridge"},
		"172.18.0.0/24", "fd00:18::/64", "172.18.0.1", "fd00:18::1", []string{"198.51.100.7", "fd00:51::7"}, true},
}

// routes are those that the IPAM plugin must name: bridge makes the default route itself, and fails where it is there.
func (nb neighbour) routes() []object {
	if nb.conf["isDefaultGateway"] == true {
		return nil
	}
	return []object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}}
}

// hostLocal is an ipam object of host-local for both families; the first addresses are kept free.
func (nb neighbour) hostLocal(dir string) object {
	start := func(subnet string) string {
		a := netip.MustParsePrefix(subnet).Addr().As16()
		a[15] += 50
		return netip.AddrFrom16(a).Unmap().String()
	}
	return object{"type": "host-local", "dataDir": dir, "routes": nb.routes(), "ranges": [][]object{
		{{"subnet": nb.v4, "rangeStart": start(nb.v4), "gateway": nb.gw4}}, {{"subnet": nb.v6, "rangeStart": start(nb.v6), "gateway": nb.gw6}},
	}}
}

// static is an ipam object of static with the n-th address of both families.
func (nb neighbour) static(n byte) object {
	addr := func(subnet string) string {
		p := netip.MustParsePrefix(subnet)
		a := p.Addr().As16()
		a[15] += n
		return netip.PrefixFrom(netip.AddrFrom16(a).Unmap(), p.Bits()).String()
	}
	return object{"type": "static", "routes": nb.routes(), "addresses": []object{
		{"address": addr(nb.v4), "gateway": nb.gw4}, {"address": addr(nb.v6), "gateway": nb.gw6},
	}}
}

func inPrefix(prefix string, a netip.Addr) bool { return netip.MustParsePrefix(prefix).Contains(a) }

// resultAddrs are the addresses of a result.
func resultAddrs(r *types100.Result) (addrs []netip.Addr) {
	for _, ip := range r.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs
}

func TestChainedAfterRealPlugins(t *testing.T) {
	for _, nb := range neighbours {
		for _, ipam := range []string{"host-local", "static"} {
			t.Run(nb.name+" "+ipam, func(t *testing.T) {
				n := newNode(t)
				n.routePodsInWorld()
				dir := t.TempDir()
				count := byte(60)
				before := func() object {
					if count++; ipam == "static" {
						return nb.conf.with(object{"ipam": nb.static(count)})
					}
					return nb.conf.with(object{"ipam": nb.hostLocal(dir)})
				}
				plain := n.chain("container", before(), chainConf(nil))
				layouts := []string{"cri", "plain", "firecracker"}
				if ipam == "static" {
					layouts = layouts[2:]
				}
				for _, layout := range layouts {
					testChainedLayout(t, n, nb, before(), plain, layout)
				}
			})
		}
	}
}

// testChainedLayout runs the life of one chained attachment beside a container on the same network.
func testChainedLayout(t *testing.T, n *node, nb neighbour, before object, plain *chain, layout string) {
	t.Helper()
	c := n.chain("vm-"+layout, before, chainConf(object{"result": layout}))
	untouched := c.sandbox()
	c.works("DEL", nil) // as the Firecracker SDK does first
	wantSame(t, layout+": the sandbox after a DEL before ADD", untouched, c.sandbox())
	r := c.add()
	wantUntouched(t, c.prev, r)
	wantAdded(t, c.pod, c.prev, r, layout)
	if err := readAsGoCNI(r); err != nil {
		t.Errorf("go-cni could not use it: %v", err)
	}
	if layout == "plain" {
		wantSame(t, "the pod's interface after ADD", ofDevice(without(untouched, "tcx eth0"), "eth0"), ofDevice(without(c.sandbox(), "tcx eth0"), "eth0"))
	}
	g := chainedGuest(c, r, layout)
	g.wantPing(g.gw[true])
	g.wantPingBy(g.gw[false], g.gw[false])
	others := resultAddrs(plain.prev)
	for _, a := range nb.reaches {
		others = append(others, netip.MustParseAddr(a))
	}
	for _, to := range others {
		hop := g.gw[to.Is4()]
		if nb.onLink && (inPrefix(nb.v4, to) || inPrefix(nb.v6, to)) {
			hop = to
		}
		g.wantPingBy(hop, to)
	}
	for _, ip := range g.ip {
		if !plain.kernelPing(ip) {
			t.Errorf("%s: the container could not reach the guest's %s", layout, ip)
		}
	}
	c.works("CHECK", object{"prevResult": r})
	c.checkBefore()
	c.works("DEL", object{"prevResult": r})
	wantSame(t, layout+": the sandbox after DEL", untouched, c.sandbox())
	for _, ip := range resultAddrs(c.prev) {
		if !plain.kernelPing(ip) {
			t.Errorf("%s: after DEL the container could not reach the pod's own kernel at %s", layout, ip)
		}
	}
	c.delBefore()
}

// chainedGuest boots a guest by what the consumer of that layout knows.
func chainedGuest(c *chain, r *types100.Result, layout string) *guest {
	c.n.t.Helper()
	switch layout {
	case "firecracker":
		return bootSDK(c.pod, r)
	case "cri":
		return boot(c.pod, r)
	}
	// plain: the TAP's name is known, all else is the interface's.
	g := startGuest(c.n.t, c.netns, "tap-eth0", ifaceMAC(c.n.t, c.netns, "eth0"), resultAddrs(r)...)
	for _, ip := range r.IPs {
		if gw, ok := netip.AddrFromSlice(ip.Gateway); ok {
			g.gw[gw.Unmap().Is4()] = gw.Unmap()
		}
	}
	g.meetGateway()
	return g
}

func ifaceMAC(t testing.TB, netns, name string) (mac string) {
	t.Helper()
	testnode.In(t, netns, func() {
		mac = hardwareAddr(t, name)
	})
	return mac
}

// CHECK names what is no longer as ADD made it, on the TAP and on the interface of the plugin before.
func TestChainedCheckNamesWhatDiffers(t *testing.T) {
	for _, tt := range []struct {
		name string
		// spoil runs in the sandbox.
		spoil func(t *testing.T)
		want  []string
	}{
		{"TAP deleted", func(t *testing.T) { deleteLinkHere(t, "tap-eth0") }, []string{"tap-eth0"}},
		{"interface deleted", func(t *testing.T) { deleteLinkHere(t, "eth0") }, []string{"eth0"}},
		{"MTU changed", func(t *testing.T) {
			if err := netlink.LinkSetMTU(link(t, "eth0"), 1300); err != nil {
				t.Fatal(err)
			}
		}, []string{"eth0: mtu", "1300", "1440"}},
		{"MAC changed", func(t *testing.T) {
			if err := netlink.LinkSetHardwareAddr(link(t, "eth0"), parseMAC(t, "02:00:00:00:00:31")); err != nil {
				t.Fatal(err)
			}
		}, []string{"eth0: MAC", "02:00:00:00:00:31", podEndMAC}},
		{"program taken off", func(t *testing.T) {
			index := link(t, "eth0").Attrs().Index
			res, err := ebpflink.QueryPrograms(ebpflink.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
			if err != nil || len(res.Programs) != 1 {
				t.Fatalf("tcx programs of eth0: want one, got %v (%v)", res, err)
			}
			prog, err := ebpf.NewProgramFromID(res.Programs[0].ID)
			if err != nil {
				t.Fatal(err)
			}
			defer prog.Close()
			if err := ebpflink.RawDetachProgram(ebpflink.RawDetachProgramOptions{Target: index, Program: prog, Attach: ebpf.AttachTCXIngress}); err != nil {
				t.Fatal(err)
			}
		}, []string{"eth0", "program", "tap-eth0", "not attached"}},
		{"TAP down", func(t *testing.T) {
			if err := netlink.LinkSetDown(link(t, "tap-eth0")); err != nil {
				t.Fatal(err)
			}
		}, []string{"tap-eth0", "down"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			p := n.pod("vm", chainConf(nil))
			n.wire(p, onLinkGateway)
			p.conf["prevResult"], _ = shapes[0].parse(t, p.netns)
			r := p.add()
			p.works("CHECK", object{"prevResult": r})
			testnode.In(t, p.netns, func() { tt.spoil(t) })
			wantText(t, p.fails("CHECK", 104, object{"prevResult": r}), tt.want...)
			p.works("DEL", object{"prevResult": r})
		})
	}
}

// What the guest forges does not reach the other plugin's network; its own frames do.
func TestChainedGuestCannotForge(t *testing.T) {
	n := newNode(t)
	p := n.pod("vm", chainConf(object{"result": "firecracker"}))
	n.wire(p, onLinkGateway)
	p.conf["prevResult"], _ = shapes[0].parse(t, p.netns)
	g := bootSDK(p, p.add())
	out := tapWire(t, n.netns, "cali0")
	gw4, gw6 := g.gw[true], netip.MustParseAddr("fd00:30::1")
	other4, other6 := netip.MustParseAddr("10.30.0.6"), netip.MustParseAddr("fd00:30::6")
	forged := [][]byte{
		eth(g.gwMAC, strangeMAC, unix.ETH_P_IP, echo(g.ip[true], gw4, []byte("mac"))),
		eth(g.gwMAC, g.mac, unix.ETH_P_IP, echo(other4, gw4, []byte("ip"))),
		eth(g.gwMAC, g.mac, unix.ETH_P_IPV6, echo(other6, gw6, []byte("ip6"))),
		eth(broadcast, g.mac, unix.ETH_P_ARP, arp(2, g.mac, gw4, make([]byte, 6), gw4)),
	}
	for _, f := range forged {
		g.write(f)
	}
	last := eth(g.gwMAC, g.mac, unix.ETH_P_IP, echo(g.ip[true], gw4, []byte("own")))
	g.write(last)
	seen, ok := out.frames(patience, func(f []byte) bool { return bytes.Equal(f, last) })
	if !ok {
		t.Fatal("the guest's own frame did not leave: the test shows nothing")
	}
	for i, f := range forged {
		if contains(seen, f) {
			t.Errorf("forged frame %d left the pod", i)
		}
	}
}
