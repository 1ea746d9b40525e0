package cni_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
)

var (
	portmapConf   = object{"type": "portmap", "backend": "nftables", "snat": true, "capabilities": object{"portMappings": true}}
	hostPort      = 7777
	portMappings  = object{"portMappings": []object{{"hostPort": hostPort, "containerPort": 7, "protocol": "udp"}}}
	bandwidthConf = object{"type": "bandwidth", "ingressRate": 80_000_000, "ingressBurst": 800_000, "egressRate": 80_000_000, "egressBurst": 800_000}
)

// hostPortAnswers sends a datagram from the world to the node's port and tells whether the guest's answer came back.
func (n *node) hostPortAnswers(host netip.Addr) (ok bool) {
	n.t.Helper()
	n.inWorld(func() {
		conn, err := net.Dial("udp", netip.AddrPortFrom(host, uint16(hostPort)).String())
		if err != nil {
			n.t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		buf := make([]byte, 100)
		if _, err := conn.Write([]byte("from the world")); err != nil {
			n.t.Logf("to port %d of %s: %v", hostPort, host, err)
			return
		}
		size, err := conn.Read(buf)
		ok = err == nil && string(buf[:size]) == "from the world"
	})
	return ok
}

func TestHostPortReachesGuest(t *testing.T) {
	needTools(t, "nft")
	bridge := func() object { return neighbours[0].conf.with(object{"ipam": neighbours[0].hostLocal(t.TempDir())}) }
	for _, tt := range []struct {
		name    string
		plugins []object
	}{
		{"bridge portmap tapir", []object{bridge(), portmapConf, chainConf(object{"result": "firecracker"})}},
		{"bridge tapir portmap", []object{bridge(), chainConf(object{"result": "firecracker"}), portmapConf}},
		{"tapir portmap", []object{conf(object{"result": "firecracker"}), portmapConf}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			n.in(func() { n.sysctl("net/ipv6/conf/all/forwarding", "1") }) // portmap does not
			w := n.network("pods", tt.plugins...)
			p := n.pod("c1", nil)
			rt := runtimeConf(p, portMappings)
			r := w.add(rt)
			bootSDK(p, r)
			for _, host := range []netip.Addr{nodeIP4, nodeIP6} {
				if !n.hostPortAnswers(host) {
					t.Errorf("port %d of %s does not lead to the guest", hostPort, host)
				}
			}
			w.check(rt)
			w.del(rt)
			if n.hostPortAnswers(nodeIP4) {
				t.Errorf("port %d still answers after DEL", hostPort)
			}
			n.tool("nft", "flush", "ruleset") // portmap leaves its tables
		})
	}
}

// The list that many nodes have: what comes before tapir changes the interface, what comes after works on its host end.
func TestUsualListOfPlugins(t *testing.T) {
	needTools(t, "iptables", "ip6tables", "nft")
	n := newNode(t)
	w := n.network("pods",
		neighbours[0].conf.with(object{"ipam": neighbours[0].hostLocal(t.TempDir())}),
		object{"type": "tuning", "mac": "02:11:22:33:44:55", "mtu": 1380, "sysctl": object{"net.ipv4.conf.IFNAME.arp_filter": "1"}},
		object{"type": "firewall", "backend": "iptables"},
		chainConf(object{"result": "firecracker"}),
		bandwidthConf)
	p := n.pod("c1", nil)
	rt := runtimeConf(p, nil)
	r := w.add(rt)
	g := bootSDK(p, r)
	if g.mac.String() != "02:11:22:33:44:55" {
		t.Errorf("the guest's MAC: want what tuning set, got %s", g.mac)
	}
	testnode.In(t, p.netns, func() {
		if mtu := link(t, "tap-eth0").Attrs().MTU; mtu != 1380 {
			t.Errorf("the TAP's MTU: want what tuning set, 1380, got %d", mtu)
		}
	})
	g.wantPing(g.gw[true], nodeIP4)
	g.wantPingBy(g.gw[false], nodeIP6)
	for _, hook := range []string{"tbf", "ingress"} {
		if n.bytesOf(hook) == 0 {
			t.Errorf("no frame of the guest passed bandwidth's %s", hook)
		}
	}
	w.check(rt)
	w.del(rt)
	if left := n.snapshot(p.netns); strings.Contains(strings.Join(left, "\n"), "tap-eth0") {
		t.Errorf("after DEL of the list there is still the TAP: %q", left)
	}
	for _, tool := range []string{"iptables", "ip6tables"} {
		n.tool(tool, "-F")
		n.tool(tool, "-X")
	}
	n.tool("nft", "flush", "ruleset")
}

// bytesOf is how many bytes qdiscs of that kind on the node's veths have seen.
func (n *node) bytesOf(kind string) (total uint64) {
	n.t.Helper()
	n.in(func() {
		for _, l := range allLinks(n.t) {
			if l.Type() != "veth" {
				continue
			}
			list, err := netlink.QdiscList(l)
			if err != nil {
				n.t.Fatal(err)
			}
			for _, q := range list {
				if q.Type() == kind && q.Attrs().Statistics != nil {
					total += q.Attrs().Statistics.Basic.Bytes
				}
			}
		}
	})
	return total
}

// bandwidth finds the host end of tapir's own veth as it finds any other.
func TestBandwidthAfterTapirAlone(t *testing.T) {
	n := newNode(t)
	w := n.network("pods", conf(object{"result": "firecracker"}), bandwidthConf)
	p := n.pod("c1", nil)
	rt := runtimeConf(p, nil)
	g := bootSDK(p, w.add(rt))
	g.wantPing(g.gw[true], nodeIP4)
	g.wantPingBy(g.gw[false], g.gw[false])
	for _, hook := range []string{"tbf", "ingress"} {
		if n.bytesOf(hook) == 0 {
			t.Errorf("no frame of the guest passed bandwidth's %s", hook)
		}
	}
	w.check(rt)
	w.del(rt)
}

// A runtime gives a capability to every plugin that names it: tapir itself, or the bandwidth plugin after it.
func TestBandwidthAsCapabilityOfTapirOrOfThePluginAfter(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", nil)
	rt := runtimeConf(p, object{"bandwidth": object{"ingressRate": 80_000_000, "ingressBurst": 800_000}})
	before := n.snapshot(p.netns)
	for _, list := range []*network{
		n.network("pods", conf(object{"capabilities": object{"bandwidth": true}})),
		n.network("pods", conf(nil), object{"type": "bandwidth", "capabilities": object{"bandwidth": true}}),
	} {
		g := boot(p, list.add(rt))
		g.wantPing(g.gw[true], nodeIP4)
		if n.bytesOf("tbf") == 0 {
			t.Error("no frame to the guest passed a tbf")
		}
		list.check(rt)
		list.del(rt)
		wantSame(t, "after DEL", before, n.snapshot(p.netns))
	}
}

// What tapir cannot do in a list is refused with code 7 and a word of what to do, and leaves the pod as it was.
func TestChainedRefusesWhatBelongsToOthers(t *testing.T) {
	n := newNode(t)
	c := n.chain("c1", neighbours[1].conf.with(object{"ipam": neighbours[1].static(60)}), chainConf(nil))
	before, sandbox := n.snapshot(c.netns), c.sandbox()
	for _, tt := range []struct {
		name string
		over object
		args string
		want []string
	}{
		{"bandwidth of the runtime", object{"runtimeConfig": object{"bandwidth": object{"ingressRate": 1000}}}, "", []string{"runtimeConfig.bandwidth"}},
		{"portMappings of the runtime", object{"runtimeConfig": portMappings}, "", []string{"runtimeConfig.portMappings", "portmap"}},
		{"ipam", object{"ipam": ranges("10.9.0.0/24")}, "", []string{"ipam", "another plugin"}},
		{"ipMasq", object{"ipMasq": true}, "", []string{"ipMasq", "another plugin"}},
		{"xdp", object{"xdp": object{"mode": "auto"}}, "", []string{"xdp.mode", "policies"}},
		{"another MAC", object{"mac": "02:00:00:00:00:99"}, "", []string{"mac", "02:00:00:00:00:99", ifaceMAC(t, c.netns, "eth0")}},
		{"another MAC by CNI_ARGS", nil, "MAC=02:00:00:00:00:98", []string{"mac", "02:00:00:00:00:98"}},
		{"another MAC of the runtime", object{"runtimeConfig": object{"mac": "02:00:00:00:00:97"}}, "", []string{"mac", "02:00:00:00:00:97"}},
		{"another MTU", object{"mtu": 1333}, "", []string{"mtu", "1333", "1500"}},
		{"several at once", object{"ipMasq": true, "ipam": ranges("10.9.0.0/24"), "xdp": object{"mode": "native"}}, "", []string{"ipam", "ipMasq", "xdp.mode"}},
		{"an address of the runtime", object{"runtimeConfig": object{"ips": []string{"10.23.0.77"}}}, "", []string{"ips", "10.23.0.77", "10.23.0.60"}},
		{"no address of the runtime", object{"runtimeConfig": object{"ips": []string{"ten"}}}, "", []string{"runtimeConfig.ips", "ten"}},
		{"ranges of the runtime", object{"runtimeConfig": object{"ipRanges": [][]object{{{"subnet": "10.5.0.0/24"}}}}}, "", []string{"runtimeConfig.ipRanges"}},
		{"an address by CNI_ARGS", nil, "IP=10.23.0.78", []string{"ips", "10.23.0.78"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c.args = tt.args
			wantText(t, c.fails("ADD", 7, tt.over), tt.want...)
			c.works("DEL", tt.over)
			wantSame(t, "the node", before, n.snapshot(c.netns))
			wantSame(t, "the sandbox", sandbox, c.sandbox())
		})
	}
	// The interface's own are no contradiction.
	c.args = "IP=10.23.0.60;MAC=" + ifaceMAC(t, c.netns, "eth0")
	c.conf["mtu"], c.conf["runtimeConfig"] = 1500, object{"ips": []string{"fd00:23::3c/64"}, "dns": object{"servers": []string{"10.23.0.53"}}}
	if r := c.add(); len(r.DNS.Nameservers) != 1 || r.DNS.Nameservers[0] != "10.23.0.53" {
		t.Errorf("dns in the result: want what tapir was told, got %v", r.DNS)
	}
	c.works("CHECK", nil)
	c.works("DEL", nil)
}

// A plugin that runs after no other, and a name that the plugin before did not give, are told so.
func TestChainedWithoutItsInterface(t *testing.T) {
	n := newNode(t)
	c := n.chain("c1", neighbours[1].conf.with(object{"ipam": neighbours[1].static(60)}), chainConf(nil))
	c.ifName = "eth7"
	wantText(t, c.fails("ADD", 7, nil), `"eth7"`, c.netns)
	c.works("DEL", nil)
	c.ifName = "eth0"
	wantText(t, c.fails("ADD", 7, object{"prevResult": nil}), "ipam")
	wantText(t, c.fails("ADD", 7, object{"prevResult": object{"cniVersion": "9.9"}}), "prevResult", "9.9")
	wantText(t, c.fails("ADD", 7, object{"prevResult": object{"cniVersion": "1.1.0", "ips": "none"}}), "prevResult")
}

// One conflist serves plain containers and microVMs: without the opt-in tapir is not there.
func TestChainedWithoutOptInPassesThrough(t *testing.T) {
	n := newNode(t)
	for _, annotated := range []bool{false, true} {
		c := n.chain("c1", neighbours[1].conf.with(object{"ipam": neighbours[1].static(60)}), chainConf(object{"when": "annotated", "result": "firecracker"}))
		if annotated {
			c.args = "TAP=1"
		}
		before, sandbox := n.snapshot(c.netns), c.sandbox()
		r := c.add()
		wantUntouched(t, c.prev, r)
		if annotated {
			bootSDK(c.pod, r).wantPing(netip.MustParseAddr(neighbours[1].gw4))
		} else {
			if len(r.Interfaces) != len(c.prev.Interfaces) || len(r.IPs) != len(c.prev.IPs) {
				t.Errorf("the result of a pass-through: want prevResult %v, got %v", c.prev, r)
			}
			wantSame(t, "the node after a pass-through", before, n.snapshot(c.netns))
			wantSame(t, "the sandbox after a pass-through", sandbox, c.sandbox())
			for _, path := range []string{stateDir, pinDir} {
				if exists(path) {
					t.Errorf("a pass-through made %s", path)
				}
			}
		}
		c.works("CHECK", object{"prevResult": r})
		c.works("DEL", object{"prevResult": r})
		wantSame(t, "the sandbox after DEL", sandbox, c.sandbox())
		c.delBefore()
	}
}
