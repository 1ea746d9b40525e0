package shortcut_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/microvm/stream"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/tapir-cni/tapir/xdp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The link between two nodes, and a pod of the other one.
var (
	hereIP  = [2]netip.Prefix{netip.MustParsePrefix("172.18.0.2/24"), netip.MustParsePrefix("fd00:18::2/64")}
	thereIP = [2]netip.Prefix{netip.MustParsePrefix("172.18.0.1/24"), netip.MustParsePrefix("fd00:18::1/64")}
	farPods = [2]netip.Prefix{netip.MustParsePrefix("10.8.0.0/24"), netip.MustParsePrefix("fd00:8::/64")}
	farPod  = [2]netip.Addr{netip.MustParseAddr("10.8.0.7"), netip.MustParseAddr("fd00:8::7")}
	ourPods = [2]netip.Prefix{netip.MustParsePrefix("10.9.0.0/24"), netip.MustParsePrefix("fd00:9::/64")}
)

// A far node is a netns at the other end of a veth that stands for the NICs of both.
type far struct {
	n     *node
	netns string
}

// connect gives the node an uplink "up0" to another node, with routes both ways.
func (n *node) connect() *far {
	t := n.t
	t.Helper()
	f := &far{n, testnode.NewNetns(t)}
	peer, err := os.Open(f.netns)
	check(t, err)
	defer peer.Close()
	n.in(func() {
		check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0", MTU: mtu}, PeerName: "up0", PeerNamespace: netlink.NsFd(peer.Fd())}))
		addresses(t, "up0", hereIP)
		gro(t, "up0")
	})
	testnode.In(t, f.netns, func() {
		check(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0))
		addresses(t, "up0", thereIP)
		gro(t, "up0")
		addresses(t, "lo", [2]netip.Prefix{netip.PrefixFrom(farPod[ipv4], 32), netip.PrefixFrom(farPod[ipv6], 128)})
		routes(t, ourPods, hereIP)
	})
	n.in(func() { routes(t, farPods, thereIP) })
	serve(t, f.netns)
	return f
}

// gro makes the driver receive by NAPI: only then does a veth take frames that XDP sends to its peer.
func gro(t testing.TB, name string) {
	t.Helper()
	if out, err := exec.Command("ethtool", "-K", name, "gro", "on").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func addresses(t testing.TB, name string, all [2]netip.Prefix) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	check(t, err)
	check(t, netlink.LinkSetUp(link))
	for _, p := range all {
		check(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD}))
	}
}

func routes(t testing.TB, to, via [2]netip.Prefix) {
	t.Helper()
	for family := range families {
		check(t, netlink.RouteAdd(&netlink.Route{Dst: ipNet(to[family]), Gw: via[family].Addr().AsSlice()}))
	}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// uplinkFrames are those that came by the uplink, by what became of them.
func (n *node) uplinkFrames() ways {
	n.t.Helper()
	var rows []struct {
		Mode   string                 `json:"mode"`
		Frames map[string]xdp.Counter `json:"counters"`
	}
	out := n.ctl("xdp", "uplink", "status", "-o", "json")
	if err := json.Unmarshal(out, &rows); err != nil || len(rows) != 1 {
		n.t.Fatalf("want one uplink, got %s (%v)", out, err)
	}
	w := ways{}
	for reason, c := range rows[0].Frames {
		w[reason] = c.Frames
	}
	return w
}

// usable waits until the routes of both families are, or are not.
func (n *node) usable(want bool) {
	n.t.Helper()
	testnode.Eventually(n.t, patience, func() error {
		var rows []struct {
			Prefix netip.Prefix `json:"prefix"`
			Usable bool         `json:"usable"`
			Why    string       `json:"why"`
		}
		if err := json.Unmarshal(n.ctl("xdp", "route", "list", "-o", "json"), &rows); err != nil || len(rows) != 2 {
			return fmt.Errorf("want two routes, got %v, %w", rows, err)
		}
		for _, r := range rows {
			if r.Usable != want {
				return fmt.Errorf("route %s: usable: %t, %s", r.Prefix, r.Usable, r.Why)
			}
		}
		return nil
	})
}

// Frames to and from pods of another node go by the uplink past the host's stack, while the next hop is known; else by the stack.
func TestUplink(t *testing.T) {
	n := newNode(t)
	f := n.connect()
	n.tapird("--uplink")
	a := n.boot("a", conf("native", object{"xdp": object{"mode": "native", "uplink": "up0"}}))
	for family := range families {
		n.ctl("xdp", "route", "add", farPods[family].String(), "via", thereIP[family].Addr().String())
	}
	n.usable(true)
	for _, card := range []int{guest.OffloadNone, guest.OffloadTSO} {
		a.offload(card)
		for family, name := range families {
			before := n.uplinkFrames()
			w := a.during(func() { check(t, a.move(netip.AddrPortFrom(farPod[family], stream.Port), bulk, connection{})) })
			w.wantTaken(t, name, "xdp_to_uplink")
			if card == guest.OffloadTSO {
				w.wantTaken(t, name+", TSO", "tc_to_uplink")
			}
			if got := n.uplinkFrames(); got["xdp_to_guest"] == before["xdp_to_guest"] {
				t.Errorf("%s: no frame came by the uplink to the guest: %v", name, got)
			}
		}
	}

	t.Run("another MAC of the next hop", func(t *testing.T) {
		flow := a.converseWith(f)
		flow.goesOn("at first")
		testnode.In(t, f.netns, func() {
			link, err := netlink.LinkByName("up0")
			check(t, err)
			check(t, netlink.LinkSetHardwareAddr(link, net.HardwareAddr{2, 0xfa, 0, 0, 0, 9}))
		})
		n.in(func() {
			link, err := netlink.LinkByName("up0")
			check(t, err)
			for family := range families {
				check(t, netlink.NeighSet(&netlink.Neigh{
					LinkIndex: link.Attrs().Index, IP: thereIP[family].Addr().AsSlice(), State: netlink.NUD_REACHABLE,
					HardwareAddr: net.HardwareAddr{2, 0xfa, 0, 0, 0, 9},
				}))
			}
		})
		flow.goesOn("with another MAC of the next hop")
		testnode.Eventually(t, patience, func() error {
			if out := string(n.ctl("xdp", "route", "list")); strings.Count(out, "02:fa:00:00:00:09") != 2 {
				return fmt.Errorf("routes lead elsewhere: %s", out)
			}
			return nil
		})
		w := a.during(func() { flow.goesOn("by the new MAC") })
		w.wantTaken(t, "by the new MAC", "xdp_to_uplink")
		flow.ends()
	})

	t.Run("no next hop", func(t *testing.T) {
		flow := a.converseWith(f)
		flow.goesOn("at first")
		f.carrier(false)
		n.usable(false)
		flow.stands("without a next hop")
		w := a.during(func() {
			conn := a.listenUDP(0)
			for range 10 {
				_, _ = conn.WriteToUDPAddrPort(nil, netip.AddrPortFrom(farPod[ipv4], echoPort)) // that nobody is reached may be said here
				time.Sleep(10 * time.Millisecond)
			}
		})
		w.wantNone(t, "without a next hop", "xdp_pass_no_next_hop", "tc_pass_no_next_hop")
		f.carrier(true)
		n.usable(true)
		flow.goesOn("with the next hop again")
		flow.ends()
	})

	t.Run("another way of the host's", func(t *testing.T) {
		flow := a.converseWith(f)
		flow.goesOn("at first")
		n.in(func() {
			link, err := netlink.LinkByName("up0")
			check(t, err)
			// The next hop that the shortcut's routes name is none of the host's any more.
			for family := range families {
				to := &netlink.Route{Dst: ipNet(farPods[family]), LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK}
				check(t, netlink.RouteReplace(to))
				check(t, netlink.NeighSet(&netlink.Neigh{
					LinkIndex: link.Attrs().Index, IP: farPod[family].AsSlice(), State: netlink.NUD_PERMANENT,
					HardwareAddr: net.HardwareAddr{2, 0xfa, 0, 0, 0, 9},
				}))
			}
		})
		n.usable(false)
		w := a.during(func() { flow.goesOn("by the default path") })
		w.wantNone(t, "by the default path", "xdp_pass_no_next_hop", "tc_pass_no_next_hop")
		flow.ends()
	})
	n.ctl("xdp", "uplink", "detach", "up0")
}

// carrier takes the other node's device down, or brings it up again with what went with it.
func (f *far) carrier(on bool) {
	t := f.n.t
	t.Helper()
	testnode.In(t, f.netns, func() {
		link, err := netlink.LinkByName("up0")
		check(t, err)
		if !on {
			check(t, netlink.LinkSetDown(link))
			return
		}
		check(t, netlink.LinkSetUp(link))
		check(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(thereIP[ipv6]), Flags: unix.IFA_F_NODAD}))
		routes(t, ourPods, hereIP)
	})
}

// converseWith starts a flow to the other node.
func (m *machine) converseWith(f *far) *flow {
	return converseAt(m, f.netns, farPod[ipv4], "to another node")
}
