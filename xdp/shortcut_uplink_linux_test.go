package xdp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// wire is the other end of a veth that stands in for the node's NIC: what another node would see.
type wire struct {
	port
	ns     string
	uplink Uplink
}

// newWire gives the node an uplink. With xmit the wire's end has an XDP program, without which a veth takes no frames from XDP.
func newWire(nd *node, mtu int, xmit bool) *wire {
	nd.t.Helper()
	w := &wire{ns: testnode.NewNetns(nd.t)}
	pass := passProgram(nd.t, "pass")
	testnode.In(nd.t, w.ns, func() {
		writeSysctl(nd.t, "ipv6/conf/default/disable_ipv6", "1")
	})
	testnode.In(nd.t, nd.host, func() {
		writeSysctl(nd.t, "ipv6/conf/default/disable_ipv6", "1")
		there, err := openNetns(w.ns)
		nd.must(err)
		defer there.Close()
		attrs := netlink.LinkAttrs{Name: "up0", Index: uplinkDev, HardwareAddr: uplinkMAC, MTU: mtu}
		nd.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "wire0", PeerHardwareAddr: nextMAC, PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(int(there.Fd()))}))
		l, err := netlink.LinkByName("up0")
		nd.must(err)
		nd.must(netlink.LinkSetUp(l))
	})
	testnode.In(nd.t, w.ns, func() {
		l, err := netlink.LinkByName("wire0")
		nd.must(err)
		if xmit {
			nd.must(writeHook(l.Attrs().Index, pass.FD(), xdpDrvMode, nil))
		}
		nd.must(netlink.LinkSetUp(l))
		w.port = packetSocket(nd.t, uint32(l.Attrs().Index))
		awaitUp(nd.t, "wire0")
	})
	testnode.In(nd.t, nd.host, func() { awaitUp(nd.t, "up0") })
	w.uplink = Uplink{Index: uplinkDev, MAC: uplinkMAC, MTU: mtu}
	return w
}

func (w *wire) attach(nd *node, mode Mode) Mode {
	nd.t.Helper()
	var got Mode
	testnode.In(nd.t, nd.host, func() {
		var err error
		got, err = nd.s.AttachUplink(w.uplink, mode)
		nd.must(err)
	})
	hop := NextHop{Uplink: uplinkDev, DstMAC: nextMAC, SrcMAC: uplinkMAC, MTU: 1500, Usable: true}
	nd.must(nd.s.SetRoute(nodes4, hop))
	nd.must(nd.s.SetRoute(nodes6, hop))
	return got
}

// A guest and another node's, by the uplink: from TAP to wire and from wire to TAP, in each mode of both.
func TestShortcutUplink(t *testing.T) {
	for _, c := range []struct {
		name        string
		tap, uplink Mode
		xmit        bool
		out, in     []ShortcutReason // how frames go; the last of in is counted at the uplink
	}{
		{"native", ModeNative, ModeNative, true, []ShortcutReason{ShortcutXDPToUplink}, []ShortcutReason{ShortcutXDPToGuest}},
		{"the NIC is generic", ModeNative, ModeGeneric, true, []ShortcutReason{ShortcutXDPToUplink}, []ShortcutReason{ShortcutXDPToGuest}},
		{"the NIC takes nothing from XDP", ModeNative, ModeNative, false, []ShortcutReason{xdpNoDevice, ShortcutTCToUplink}, []ShortcutReason{ShortcutXDPToGuest}},
		{"all generic", ModeGeneric, ModeGeneric, false, []ShortcutReason{xdpNoDevice, ShortcutTCToUplink}, []ShortcutReason{ShortcutXDPToGuest}},
	} {
		t.Run(c.name, func(t *testing.T) {
			nd := newNode(t, 1, c.tap)
			g := nd.guests[0]
			w := newWire(nd, 1500, c.xmit)
			if got := w.attach(nd, c.uplink); got != c.uplink {
				t.Errorf("the uplink got mode %s, want %s", got, c.uplink)
			}
			for name, f := range map[string][]byte{
				"IPv4": g.to(remote4, protoUDP, udp(g.v4, remote4, 1000, 2000, []byte("out"))),
				"IPv6": g.to(remote6, protoTCP, tcp(g.v6, remote6, 1000, 2000, tcpSYN)),
			} {
				g.wantTook(name, func() {
					g.tap.send(vnetHdr{}, f)
					w.want(name, routed(f, nextMAC, uplinkMAC))
				}, c.out...)
			}
			up := &guest{node: nd, tapIdx: uplinkDev}
			for name, f := range map[string][]byte{
				"IPv4": eth(uplinkMAC, nextMAC, typeIPv4, ip4(remote4, g.v4, protoUDP, 0, udp(remote4, g.v4, 2000, 1000, []byte("in")))),
				"IPv6": eth(uplinkMAC, nextMAC, typeIPv6, ip6(remote6, g.v6, protoTCP, 64, tcp(remote6, g.v6, 2000, 1000, tcpSYN|tcpACK))),
			} {
				up.wantTook(name, func() {
					w.send(vnetHdr{}, f)
					g.tap.want(name, routed(f, g.mac, GatewayMAC))
				}, c.in...)
			}
			testnode.In(t, nd.host, func() {
				st, err := nd.s.UplinkState(uplinkDev)
				if err != nil || st.Mode != c.uplink || !st.Current || !st.Known || !st.Features.Native || st.Features.Transmit != c.xmit {
					t.Errorf("state %+v, %v", st, err)
				}
				nd.must(nd.s.DetachUplink(uplinkDev))
				nd.must(nd.s.DetachUplink(uplinkDev))
				if st, err := nd.s.UplinkState(uplinkDev); err != nil || st.Mode != ModeOff {
					t.Errorf("detached: %+v, %v", st, err)
				}
			})
			f := g.to(remote4, protoUDP, udp(g.v4, remote4, 1000, 2000, []byte("out")))
			g.wantTook("detached", func() { g.tap.send(vnetHdr{}, f); w.wantNothing("detached") }, xdpNoDevice, tcReasons+xdpNoDevice)
		})
	}
}

// An IPv6 route that covers the place of IPv4 in the map would lead IPv4 frames.
func TestShortcutRouteLeadsOneFamily(t *testing.T) {
	for _, p := range []string{"::/0", "::/64", "::ffff:0:0/95", "::ffff:0:0/96", "::ffff:10.0.0.0/104"} {
		if _, err := routeKey(netip.MustParsePrefix(p)); err == nil {
			t.Errorf("%s is taken", p)
		}
	}
	for _, p := range []string{"0.0.0.0/0", "10.9.1.0/24", "fd00::/8", "::fffe:0:0/96", "::/96"} {
		key, err := routeKey(netip.MustParsePrefix(p))
		if err != nil || key.prefix() != netip.MustParsePrefix(p) {
			t.Errorf("%s became %s: %v", p, key.prefix(), err)
		}
	}
}

// A next hop that is not known now, and one that is again.
func TestShortcutNextHop(t *testing.T) {
	nd := newNode(t, 1, ModeNative)
	g := nd.guests[0]
	w := newWire(nd, 1500, true)
	w.attach(nd, ModeNative)
	f := g.to(remote4, protoUDP, udp(g.v4, remote4, 1000, 2000, make([]byte, 60)))
	noHop := ShortcutReason(shortcutPathReasonPATH_PASS_NO_NEXT_HOP)
	nd.must(nd.s.SetRoute(nodes4, NextHop{Uplink: uplinkDev}))
	g.wantTook("unusable", func() { g.tap.send(vnetHdr{}, f); w.wantNothing("unusable") }, noHop, tcReasons+noHop)
	small := NextHop{Addr: remote4, Uplink: uplinkDev, DstMAC: strangerMAC, SrcMAC: uplinkMAC, MTU: len(f) - 14, Usable: true}
	nd.must(nd.s.SetRoute(nodes4, small))
	g.wantTook("another MAC", func() { g.tap.send(vnetHdr{}, f); w.want("another MAC", routed(f, strangerMAC, uplinkMAC)) }, ShortcutXDPToUplink)
	longer := g.to(remote4, protoUDP, udp(g.v4, remote4, 1000, 2000, make([]byte, 61)))
	g.wantTook("too long", func() { g.tap.send(vnetHdr{}, longer); w.wantNothing("too long") }, xdpMTU, tcReasons+xdpMTU)
	routes, err := nd.s.Routes()
	if got := routes[nodes4]; err != nil || len(routes) != 2 || fmt.Sprint(got) != fmt.Sprint(small) {
		t.Errorf("routes %v, %v; want %v", routes, err, small)
	}
	nd.must(nd.s.DeleteRoute(nodes4))
	nd.must(nd.s.DeleteRoute(nodes4))
	g.wantTook("no route", func() { g.tap.send(vnetHdr{}, f); w.wantNothing("no route") }, xdpNoTarget, tcReasons+xdpNoTarget)
}

// What the driver says of an MTU that native mode cannot take is told; auto takes the other mode.
func TestShortcutUplinkMTU(t *testing.T) {
	nd := newNode(t, 0, ModeOff)
	w := newWire(nd, 9000, false)
	testnode.In(t, nd.host, func() {
		_, err := nd.s.AttachUplink(w.uplink, ModeNative)
		if err == nil || !strings.Contains(err.Error(), "MTU") {
			t.Errorf("native at MTU 9000: %v, want the driver's words", err)
		}
		parts, listErr := nd.s.ownMap(shortcutMapAttachments)
		nd.must(listErr)
		var v shortcutAttachment
		if parts.Lookup(uint32(uplinkDev), &v) == nil {
			t.Error("an uplink that was not attached has an entry")
		}
		got, err := nd.s.AttachUplink(w.uplink, ModeAuto)
		if err != nil || got != ModeGeneric {
			t.Errorf("auto: %s, %v; want generic", got, err)
		}
	})
}
