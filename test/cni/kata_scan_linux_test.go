package cni_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What follows stands in for Kata where there is no DAN file and it looks into the sandbox: the Go runtime
// (virtcontainers/network_linux.go) and runtime-rs (network_with_netns.rs), with the model tcfilter.

// kataEndpoint is what Kata's guest is told of an interface.
type kataEndpoint struct {
	name       string
	mac        string
	mtu        int
	addresses  []string
	routes     []string // those that the kernel did not make
	neighbours []string
}

// scanAsKata finds the endpoints in the calling thread's netns, or why Kata would not start.
func scanAsKata() (found []kataEndpoint, err error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		a := l.Attrs()
		if a.RawFlags&unix.IFF_LOOPBACK != 0 {
			continue
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return nil, err
		}
		if l.Type() == "tuntap" || l.Type() == "tun" { // runtime-rs looks at the kind first
			return nil, fmt.Errorf("unsupported link type: %s is a tap", a.Name)
		}
		if len(addrs) == 0 {
			continue // the Go runtime
		}
		switch l.Type() {
		case "veth", "device", "macvlan", "ipvlan":
		default:
			return nil, fmt.Errorf("unsupported network interface: %s", l.Type())
		}
		e := kataEndpoint{name: a.Name, mac: a.HardwareAddr.String(), mtu: a.MTU}
		for _, addr := range addrs {
			if !addr.IP.IsLinkLocalUnicast() {
				e.addresses = append(e.addresses, addr.IPNet.String())
			}
		}
		if err := e.learn(l); err != nil {
			return nil, err
		}
		found = append(found, e)
	}
	if len(found) == 0 {
		return nil, errors.New("no endpoint")
	}
	return found, nil
}

// learn takes routes of a protocol other than the kernel's, and permanent neighbours.
func (e *kataEndpoint) learn(l netlink.Link) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := netlink.RouteList(l, family)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.Protocol != unix.RTPROT_KERNEL {
				e.routes = append(e.routes, fmt.Sprintf("%s via %s", r.Dst, r.Gw))
			}
		}
		neighbours, err := netlink.NeighList(l.Attrs().Index, family)
		if err != nil {
			return err
		}
		for _, n := range neighbours {
			if n.State == unix.NUD_PERMANENT {
				e.neighbours = append(e.neighbours, n.IP.String()+" "+n.HardwareAddr.String())
			}
		}
	}
	return nil
}

// kataTAP is what Kata calls its first TAP.
const kataTAP = "tap0_kata"

// tcfilter makes Kata's TAP in the calling thread's netns and redirects all frames between it and the interface.
func tcfilter(t testing.TB, name, tapName string, queues int) {
	t.Helper()
	flags := netlink.TuntapFlag(unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if queues > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	mustDo(t, netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: tapName, MTU: link(t, name).Attrs().MTU}, Mode: netlink.TUNTAP_MODE_TAP, Flags: flags}))
	setUp(t, tapName)
	mirror := func(from, to netlink.Link) {
		t.Helper()
		at := netlink.QdiscAttrs{LinkIndex: from.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}
		mustDo(t, netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: at})) // EEXIST or EINVAL where somebody has one already
		mustDo(t, netlink.FilterAdd(&netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: from.Attrs().Index, Parent: at.Handle, Protocol: unix.ETH_P_ALL},
			Actions: []netlink.Action{&netlink.MirredAction{
				ActionAttrs: netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN}, MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: to.Attrs().Index,
			}},
		}))
	}
	mirror(link(t, name), link(t, tapName))
	mirror(link(t, tapName), link(t, name))
}

func kataConf(over object) object { return conf(object{"vmm": "kata"}).with(over) }

// Kata finds one veth with addresses and no TAP, puts its own qdisc and TAP there, and its guest has the pod's network.
func TestKataGuestByScan(t *testing.T) {
	for _, redirect := range []string{"clsact", "tcx"} {
		t.Run(redirect, func(t *testing.T) {
			n := newNode(t)
			n.routePodsInWorld()
			p, other := n.pod("c1", kataConf(object{"redirect": redirect})), n.pod("other", conf(nil))
			before := n.snapshot(p.netns)
			r := p.addPlain()
			g2 := boot(other, other.add())
			var found []kataEndpoint
			testnode.In(t, p.netns, func() {
				var err error
				found, err = scanAsKata()
				mustDo(t, err)
				for _, q := range qdiscsOf(t, "eth0") {
					if q == "clsact" || q == "ingress" {
						t.Errorf("eth0 has a qdisc %s: Kata's own would not fit beside it", q)
					}
				}
				tcfilter(t, "eth0", kataTAP, 1)
			})
			want := []kataEndpoint{{
				name: "eth0", mac: r.Interfaces[1].Mac, mtu: uplinkMTU, addresses: []string{"10.9.0.2/24", "fd00:9::2/64"},
				routes:     []string{"0.0.0.0/0 via 10.9.0.1", "::/0 via fd00:9::1"},
				neighbours: []string{"10.9.0.1 " + gatewayMAC.String(), "fd00:9::1 " + gatewayMAC.String()},
			}}
			if diff := cmp.Diff(want, found, cmp.AllowUnexported(kataEndpoint{})); diff != "" {
				t.Errorf("what Kata finds (-want +got):\n%s", diff)
			}
			g := boot(p, r)
			g.wantPing(nodeIP4, nodeIP6, worldIP4, worldIP6, g2.ip[true], g2.ip[false])
			g2.wantPing(g.ip[true], g.ip[false])

			// The spoof check stands at the host end, out of Kata's way.
			bad := eth(gatewayMAC, g.mac, unix.ETH_P_IP, udp(victim4, worldIP4, 9, 9, []byte("forged")))
			g.write(bad)
			n.waitDropped("c1", 1)
			wantText(t, n.guestConfigRefused("c1"), "Kata makes its own")
			p.works("CHECK", nil)
			p.works("DEL", nil)
			other.works("DEL", nil)
			testnode.In(t, p.netns, func() { mustDo(t, netlink.LinkDel(link(t, kataTAP))) }) // Kata's own
			wantSame(t, "after DEL", without(before, "sysctl"), without(n.snapshot(p.netns), "sysctl", "table", "chain"))
		})
	}
}

// guestConfigRefused is why there is none.
func (n *node) guestConfigRefused(id string) string {
	n.t.Helper()
	out := n.ctl("guest-config", id)
	if out.code != 1 {
		n.t.Errorf("guest-config of %s: want exit code 1, got %s", id, out)
	}
	return string(out.stderr)
}

func qdiscsOf(t testing.TB, name string) (kinds []string) {
	t.Helper()
	list, err := netlink.QdiscList(link(t, name))
	mustDo(t, err)
	for _, q := range list {
		kinds = append(kinds, q.Type())
	}
	return kinds
}

// Controls: what Kata could not do in sandboxes that are not made for it.
func TestKataScanRefusesOtherSandboxes(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	p.add()
	testnode.In(t, p.netns, func() {
		if found, err := scanAsKata(); err == nil {
			t.Errorf("a sandbox with a TAP: found %v, want an error", found)
		}
		if err := netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: link(t, "eth0").Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
		}}); err == nil {
			t.Error("an ingress qdisc fits beside clsact: the test for none shows nothing")
		}
	})
	empty := n.pod("c2", hostConf(nil))
	empty.add()
	testnode.In(t, empty.netns, func() {
		if found, err := scanAsKata(); err == nil {
			t.Errorf("an empty sandbox: found %v, want an error", found)
		}
	})
}

// CHECK compares what Kata needs as it compares a plain pod, whatever Kata has put there since.
func TestCheckOfKataPod(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", kataConf(nil))
	p.addPlain()
	testnode.In(t, p.netns, func() { tcfilter(t, "eth0", kataTAP, 2) })
	p.works("CHECK", nil)
	testnode.In(t, p.netns, func() { mustDo(t, delNeighbour("10.9.0.1")(link(t, "eth0"))) })
	wantText(t, p.fails("CHECK", codeDiffers, nil), "neighbour 10.9.0.1 is missing")
	wantText(t, p.fails("CHECK", codeDiffers, object{"placement": "host"}), "placement: want host, got pod")
	p.works("DEL", nil)
}
