package shortcut_test

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/microvm/stream"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/vishvananda/netlink"
)

// ip runs iproute2 in the calling thread's netns.
func ip(args ...string) ([]byte, error) { return exec.Command("ip", args...).CombinedOutput() }

// inTunnel are the guests' addresses inside their VXLAN.
var inTunnel = [2]netip.Addr{netip.MustParseAddr("192.168.77.1"), netip.MustParseAddr("192.168.77.2")}

// tunnel makes a VXLAN in a guest to another, and gives what removes it.
func (m *machine) tunnel(to *machine, own netip.Addr, port int, checksum bool) (remove func()) {
	t := m.n.t
	t.Helper()
	name := "vxlan0"
	testnode.In(t, m.inside, func() {
		check(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)) // no chatter in it
		device, err := netlink.LinkByName(guest.StackTAP)
		check(t, err)
		v := &netlink.Vxlan{
			LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu - 50}, VxlanId: 7, VtepDevIndex: device.Attrs().Index,
			Group: to.addr(ipv4).AsSlice(), Port: port, UDPCSum: checksum,
		}
		check(t, netlink.LinkAdd(v))
		check(t, netlink.AddrAdd(v, &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(24, 32)}}))
		check(t, netlink.LinkSetUp(v))
	})
	return func() {
		testnode.In(t, m.inside, func() {
			v, err := netlink.LinkByName(name)
			check(t, err)
			check(t, netlink.LinkDel(v))
		})
	}
}

// A guest's own tunnel may hold a checksum that is still partial where nobody sees it: its frames keep to the default path.
func TestTunnelOfGuests(t *testing.T) {
	n := newNode(t)
	a, b := n.boot("a", conf("native", nil)), n.boot("b", conf("native", nil))
	a.offload(guest.OffloadTSO)
	b.offload(guest.OffloadTSO)
	for _, tt := range []struct {
		name     string
		port     int
		checksum bool // of the outer header
		tunnel   bool
	}{
		{"no outer checksum", 4789, false, true},
		{"outer checksum", 4789, true, true},
		// The control: at a port that is no tunnel's the inner checksum stays partial, and the frame is no good.
		{"port of no tunnel", 14789, false, false},
	} {
		removeA, removeB := a.tunnel(b, inTunnel[0], tt.port, tt.checksum), b.tunnel(a, inTunnel[1], tt.port, tt.checksum)
		ofA, ofB := both(a, b, func() {
			to := netip.AddrPortFrom(inTunnel[1], stream.Port)
			if tt.tunnel {
				if err := a.move(to, bulk/4, connection{}); err != nil {
					t.Errorf("%s: %v", tt.name, err)
				}
				return
			}
			if conn, err := a.dial(to, connection{timeout: time.Second}); err == nil {
				conn.Close()
				t.Errorf("%s: its frames hold no partial checksum: the test shows nothing", tt.name)
			}
		})
		if tt.tunnel {
			ofA.wantNone(t, tt.name, "tc_pass_tunnel")
			ofB.wantNone(t, tt.name+", back", "tc_pass_tunnel")
		} else {
			ofA.wantTaken(t, tt.name, "xdp_to_guest")
		}
		removeA()
		removeB()
	}
}
