package cni_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
)

// wiring is how another plugin connected its pod.
type wiring int

const (
	onLinkGateway    wiring = iota // 10.30.0.5/24 and fd00:30::5/64, gateways on the host end, as bridge and ptp do
	proxyARP                       // /32 and /128, default routes by 169.254.1.1 and the host end's link-local, as Calico does
	permanentGateway               // /32 with a permanent neighbour for 169.254.1.1, nobody answers ARP, as AWS does
	noDefaultRoute                 // on link, and nothing leads further
)

const (
	hostEndMAC = "ee:ee:ee:ee:ee:ee" // Calico's
	hostEndLL  = "fe80::ecee:eeff:feee:eeee"
	podEndMAC  = "02:30:00:00:00:05"
	foreignIP4 = "10.30.0.5"
	foreignIP6 = "fd00:30::5"
)

// wire makes a veth into the pod by hand, "eth0" there and "cali0" on the node.
func (n *node) wire(p *pod, w wiring) {
	n.t.Helper()
	bits4, bits6 := 24, 64
	if w == proxyARP || w == permanentGateway {
		bits4, bits6 = 32, 128
	}
	n.in(func() {
		n.sysctl("net/ipv4/ip_forward", "1")
		n.sysctl("net/ipv6/conf/all/forwarding", "1")
		f, err := os.Open(p.netns)
		if err != nil {
			n.t.Fatal(err)
		}
		defer f.Close()
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cali0", MTU: 1440, HardwareAddr: parseMAC(n.t, hostEndMAC)},
			PeerName: "eth0", PeerNamespace: netlink.NsFd(f.Fd()), PeerHardwareAddr: parseMAC(n.t, podEndMAC), PeerMTU: 1440}
		if err := netlink.LinkAdd(veth); err != nil {
			n.t.Fatal(err)
		}
		setUp(n.t, "cali0")
		if w == proxyARP {
			n.sysctl("net/ipv4/conf/cali0/proxy_arp", "1")
			n.sysctl("net/ipv4/neigh/cali0/proxy_delay", "0")
		}
		if bits4 == 24 {
			addAddr(n.t, "cali0", netip.MustParsePrefix("10.30.0.1/24"))
			addAddr(n.t, "cali0", netip.MustParsePrefix("fd00:30::1/64"))
		} else {
			addDevRoute(n.t, "cali0", foreignIP4+"/32")
			addDevRoute(n.t, "cali0", foreignIP6+"/128")
		}
	})
	testnode.In(n.t, p.netns, func() {
		n.sysctl("net/ipv6/conf/eth0/accept_dad", "0")
		setUp(n.t, "lo")
		setUp(n.t, "eth0")
		addAddr(n.t, "eth0", netip.PrefixFrom(netip.MustParseAddr(foreignIP4), bits4))
		addAddr(n.t, "eth0", netip.PrefixFrom(netip.MustParseAddr(foreignIP6), bits6))
		switch w {
		case onLinkGateway:
			addRoute(n.t, "0.0.0.0/0", netip.MustParseAddr("10.30.0.1"))
			addRoute(n.t, "::/0", netip.MustParseAddr("fd00:30::1"))
		case proxyARP, permanentGateway:
			addDevRoute(n.t, "eth0", "169.254.1.1/32")
			addRoute(n.t, "0.0.0.0/0", netip.MustParseAddr("169.254.1.1"))
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link(n.t, "eth0").Attrs().Index, Dst: ipNet(netip.MustParsePrefix("::/0")), Gw: netip.MustParseAddr(hostEndLL).AsSlice()}); err != nil {
				n.t.Fatal(err)
			}
		}
		if w == permanentGateway {
			if err := netlink.NeighAdd(&netlink.Neigh{LinkIndex: link(n.t, "eth0").Attrs().Index, IP: netip.MustParseAddr("169.254.1.1").AsSlice(),
				HardwareAddr: parseMAC(n.t, hostEndMAC), State: netlink.NUD_PERMANENT}); err != nil {
				n.t.Fatal(err)
			}
		}
	})
}

func addDevRoute(t testing.TB, dev, dst string) {
	t.Helper()
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link(t, dev).Attrs().Index, Dst: ipNet(netip.MustParsePrefix(dst)), Scope: netlink.SCOPE_LINK}); err != nil {
		t.Fatalf("route %s on %s: %v", dst, dev, err)
	}
}

// A shape is a result as some plugin writes it; NETNS stands for the sandbox.
type shape struct {
	name    string
	wiring  wiring
	version string
	prev    string
	gw4     string // of the guest
	gw6     string
}

var shapes = []shape{
	{"well-formed", onLinkGateway, "1.1.0", `{"interfaces":[{"name":"cali0","mac":"ee:ee:ee:ee:ee:ee"},{"name":"eth0","mac":"02:30:00:00:00:05","sandbox":"NETNS"}],
		"ips":[{"interface":1,"address":"10.30.0.5/24","gateway":"10.30.0.1"},{"interface":1,"address":"fd00:30::5/64","gateway":"fd00:30::1"}],"dns":{"nameservers":["10.96.0.10"]}}`, "10.30.0.1", "fd00:30::1"},
	{"null interface indices", onLinkGateway, "1.1.0", `{"interfaces":[{"name":"eth0","mac":"02:30:00:00:00:05","sandbox":"NETNS"}],
		"ips":[{"interface":null,"address":"10.30.0.5/24","gateway":"10.30.0.1"},{"address":"fd00:30::5/64","gateway":"fd00:30::1"}]}`, "10.30.0.1", "fd00:30::1"},
	{"no interfaces", onLinkGateway, "1.0.0", `{"ips":[{"address":"fd00:30::5/64"},{"address":"10.30.0.5/24"}]}`, "10.30.0.1", "fd00:30::1"},
	{"empty sandbox", onLinkGateway, "1.0.0", `{"interfaces":[{"name":"eth0","mac":"02:30:00:00:00:05"}],
		"ips":[{"interface":0,"address":"10.30.0.5/24","gateway":"10.30.0.1"},{"interface":0,"address":"fd00:30::5/64"}]}`, "10.30.0.1", "fd00:30::1"},
	{"another path to the sandbox, no MAC", onLinkGateway, "1.0.0", `{"interfaces":[{"name":"eth0","sandbox":"/proc/4711/ns/net"}],
		"ips":[{"interface":0,"address":"10.30.0.5/24","gateway":"10.30.0.1"},{"interface":0,"address":"fd00:30::5/64","gateway":"fd00:30::1"}]}`, "10.30.0.1", "fd00:30::1"},
	{"only a name, as kindnet", onLinkGateway, "0.3.1", `{"interfaces":[{"name":"eth0"}],
		"ips":[{"version":"4","interface":0,"address":"10.30.0.5/24","gateway":"10.30.0.1"},{"version":"6","interface":0,"address":"fd00:30::5/64","gateway":"fd00:30::1"}]}`, "10.30.0.1", "fd00:30::1"},
	{"no IPs", onLinkGateway, "0.4.0", `{"interfaces":[{"name":"eth0","sandbox":"NETNS"}]}`, "10.30.0.1", "fd00:30::1"},
	{"empty", onLinkGateway, "1.1.0", `{}`, "10.30.0.1", "fd00:30::1"},
	{"addresses of another interface", onLinkGateway, "1.1.0", `{"interfaces":[{"name":"cali0"},{"name":"eth0","sandbox":"NETNS"}],
		"ips":[{"interface":0,"address":"10.30.0.1/24"}]}`, "10.30.0.1", "fd00:30::1"},
	{"no gateway anywhere", noDefaultRoute, "1.1.0", `{"interfaces":[{"name":"eth0","sandbox":"NETNS"}],
		"ips":[{"interface":0,"address":"10.30.0.5/24"},{"interface":0,"address":"fd00:30::5/64"}]}`, "169.254.1.1", "fe80::1"},
	{"Calico", proxyARP, "0.3.1", `{"interfaces":[{"name":"cali0"},{"name":"eth0","sandbox":"NETNS"}],
		"ips":[{"version":"4","interface":1,"address":"10.30.0.5/32"},{"version":"6","interface":1,"address":"fd00:30::5/128"}],"dns":{}}`, "169.254.1.1", hostEndLL},
	{"AWS", permanentGateway, "0.4.0", `{"interfaces":[{"name":"eni30"},{"name":"eth0","sandbox":"NETNS"},{"name":"dummy30","mac":"254","sandbox":"0"}],
		"ips":[{"version":"4","interface":1,"address":"10.30.0.5/32"}]}`, "169.254.1.1", ""},
}

// parse is the shape's result as its version reads it.
func (s shape) parse(t testing.TB, netns string) (json.RawMessage, *types100.Result) {
	t.Helper()
	var m object
	if err := json.Unmarshal([]byte(strings.ReplaceAll(s.prev, "NETNS", netns)), &m); err != nil {
		t.Fatal(err)
	}
	raw := marshal(t, m.with(object{"cniVersion": s.version}))
	return raw, parseResult(t, raw, s.version)
}

func TestChainedAfterEveryShapeOfResult(t *testing.T) {
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			n := newNode(t)
			p := n.pod("vm", chainConf(object{"cniVersion": s.version, "result": "firecracker"}))
			n.wire(p, s.wiring)
			raw, prev := s.parse(t, p.netns)
			p.conf["prevResult"] = json.RawMessage(raw)
			untouched := p.sandbox()
			r := p.add()
			wantUntouched(t, prev, r)
			wantAdded(t, p, prev, r, "firecracker")
			g := guestOfPseudo(t, p, r, s)
			if want := podEndMAC; g.mac.String() != want {
				t.Errorf("the guest's MAC: want the kernel's %s, got %s", want, g.mac)
			}
			wantWayOut(t, n, g, s)
			if s.version != "0.3.1" {
				p.works("CHECK", object{"prevResult": r})
			}
			p.works("DEL", object{"prevResult": r})
			wantSame(t, "the sandbox after DEL", untouched, p.sandbox())
			n.in(func() { deleteLinkHere(t, "cali0") })
		})
	}
}

// guestOfPseudo starts a guest by the TAP's and the pseudo entry, whose address must be the pod's with that gateway.
func guestOfPseudo(t *testing.T, p *pod, r *types100.Result, s shape) *guest {
	t.Helper()
	pseudo := r.Interfaces[len(r.Interfaces)-1]
	last := r.IPs[len(r.IPs)-1]
	if last.Interface == nil || *last.Interface != len(r.Interfaces)-1 {
		t.Fatalf("the last address is not the pseudo entry's: %v", r)
	}
	bits := "24"
	if s.wiring == proxyARP || s.wiring == permanentGateway {
		bits = "32"
	}
	if got, want := fmt.Sprint(&last.Address, " ", last.Gateway), foreignIP4+"/"+bits+" "+s.gw4; got != want {
		t.Errorf("the pseudo entry's address: want %s, got %s", want, got)
	}
	if mtu := r.Interfaces[len(r.Interfaces)-2].Mtu; s.version == "1.1.0" && mtu != 1440 {
		t.Errorf("the TAP's MTU in the result: want that of the interface, 1440, got %d", mtu)
	}
	g := startGuest(t, p.netns, pseudo.Name, pseudo.Mac, netip.MustParseAddr(foreignIP4), netip.MustParseAddr(foreignIP6))
	g.gw[true] = netip.MustParseAddr(s.gw4)
	if s.wiring != noDefaultRoute {
		g.meetGateway()
	}
	return g
}

// wantWayOut wants the guest to reach node and world by its gateways; on a network without any, its neighbour.
func wantWayOut(t *testing.T, n *node, g *guest, s shape) {
	t.Helper()
	n.inWorld(func() {
		addRoute(t, "10.30.0.0/24", nodeIP4)
		addRoute(t, "fd00:30::/64", nodeIP6)
	})
	if s.wiring == noDefaultRoute {
		// The queue starts a moment after its opening.
		for range 20 {
			if g.resolve(netip.MustParseAddr("10.30.0.1"), silence) != nil {
				break
			}
		}
		g.wantPingBy(netip.MustParseAddr("10.30.0.1"), netip.MustParseAddr("10.30.0.1"))
		g.wantPingBy(netip.MustParseAddr("fd00:30::1"), netip.MustParseAddr("fd00:30::1"))
		return
	}
	if s.wiring == permanentGateway && g.gwMAC.String() != hostEndMAC {
		t.Errorf("who has %s? want the permanent entry's %s, got %s", s.gw4, hostEndMAC, g.gwMAC)
	}
	g.wantPing(nodeIP4, worldIP4)
	if s.gw6 != "" {
		g.wantPingBy(netip.MustParseAddr(s.gw6), nodeIP6, worldIP6)
	}
}

func deleteLinkHere(t testing.TB, name string) {
	t.Helper()
	if err := netlink.LinkDel(link(t, name)); err != nil {
		t.Fatal(err)
	}
}
