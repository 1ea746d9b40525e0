package cni_test

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/xdp"
	"github.com/vishvananda/netlink"
)

// otherNode is the pod range behind the next hop, and a pod in it.
var (
	otherRange4, otherRange6 = netip.MustParsePrefix("10.77.1.0/24"), netip.MustParsePrefix("fd00:77::/64")
	otherPod4, otherPod6     = netip.MustParseAddr("10.77.1.5"), netip.MustParseAddr("fd00:77::5")
)

// tapird runs a tapird on the node until the test ends.
func (n *node) tapird() *exec.Cmd {
	n.t.Helper()
	dir := n.t.TempDir() // the clean-up wants the node's own to be empty
	cmd := exec.Command(filepath.Join(os.Getenv(binDirEnv), "tapird"), "--state-dir", dir, "--socket", filepath.Join(dir, "tapird.sock"), "--log-level", "warn")
	cmd.Stderr = os.Stderr
	n.start(cmd)
	n.t.Cleanup(func() { kill(cmd) })
	return cmd
}

// xdpRoute is what the tests read of a row of "tapirctl xdp route list".
type xdpRoute struct {
	Prefix      netip.Prefix
	Usable      bool
	MAC, Why    string
	Via, Uplink string
}

func (n *node) xdpRoutes() (rows []xdpRoute) {
	n.t.Helper()
	n.ctlJSON(&rows, "xdp", "route", "list")
	return rows
}

// eventually waits until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// Frames to another node's pods go by the uplink, what comes back straight into the TAP, while tapird keeps the next hop.
func TestUplinkLeadsToOtherNodesWhileTapirdKeepsIt(t *testing.T) {
	for _, mode := range []string{"generic", "native"} {
		t.Run(mode, func(t *testing.T) {
			n := newNode(t)
			n.routePodsInWorld()
			announce := func() {
				mustDo(t, os.WriteFile("/proc/sys/net/ipv4/conf/up0/arp_notify", []byte("1"), 0))
				mustDo(t, os.WriteFile("/proc/sys/net/ipv6/conf/up0/ndisc_notify", []byte("1"), 0))
			}
			n.in(announce)
			n.inWorld(func() {
				announce()
				addAddr(t, "lo", netip.PrefixFrom(otherPod4, 32))
				addAddr(t, "lo", netip.PrefixFrom(otherPod6, 128))
				if mode == "native" { // what is sent to a veth natively it takes only while its peer polls
					attachForeignXDP(t, "up0")
				}
			})
			p := n.pod("a", withShortcut("auto"))
			g := boot(p, p.add())
			out := n.ctl("xdp", "uplink", "attach", "up0", "--mode", mode)
			if out.code != 0 || !strings.Contains(string(out.stdout), "up0: veth, "+mode+", MTU 1400") {
				t.Fatalf("attach: %s", out)
			}
			if said := strings.Contains(string(out.stdout), "takes an MTU of some 3,500 at most"); said != (mode == "native") {
				t.Errorf("attach in mode %s: what it costs is said: %t: %s", mode, said, out)
			}
			add := func(prefix netip.Prefix, via netip.Addr) answer {
				return n.ctl("xdp", "route", "add", prefix.String(), "via", via.String(), "dev", "up0")
			}
			if out := add(otherRange4, hopIP4); out.code != 0 || !strings.Contains(string(out.stderr), "tapird does not keep it") && !strings.Contains(string(out.stderr), "has not answered") {
				t.Errorf("without tapird: %s", out)
			}
			g.wantPing(otherPod4)
			if got := n.taken(p); got > 0 {
				t.Errorf("%d frames took a route that nobody keeps", got)
			}
			daemon := n.tapird()
			if out := add(otherRange6, hopIP6); out.code != 0 {
				t.Errorf("with tapird: %s", out)
			}
			usable := func() bool {
				rows := n.xdpRoutes()
				return len(rows) == 2 && rows[0].Usable && rows[1].Usable
			}
			eventually(t, "both routes are usable", usable)
			ping := func(what string) {
				t.Helper()
				before := n.paths(p)
				g.wantPing(otherPod4, otherPod6)
				took, up := uint64(0), uint64(0)
				for r, c := range n.paths(p) {
					if r == xdp.ShortcutXDPToUplink || r == xdp.ShortcutTCToUplink {
						took += c.Frames - before[r].Frames
					}
				}
				var index int
				n.in(func() { index = link(t, "up0").Attrs().Index })
				counters, err := n.shortcut().ShortcutCounters(uint32(index))
				mustDo(t, err)
				if up = counters[xdp.ShortcutXDPToGuest].Frames; took < 2 || up < 2 {
					t.Errorf("%s: %d frames left by the uplink and %d came by it: %v; %v", what, took, up, n.paths(p), counters)
				}
			}
			ping("at first")
			n.inWorld(func() { mustDo(t, netlink.LinkSetHardwareAddr(link(t, "up0"), net.HardwareAddr{2, 0, 0, 0, 0, 0xaa})) })
			eventually(t, "the next hop's new MAC is known", func() bool { rows := n.xdpRoutes(); return usable() && strings.HasSuffix(rows[0].MAC, ":aa") })
			ping("with the next hop's new MAC")
			n.in(func() { mustDo(t, netlink.LinkSetHardwareAddr(link(t, "up0"), net.HardwareAddr{2, 0, 0, 0, 0, 0xbb})) })
			g.wantPing(otherPod4, otherPod6) // by whatever way, while the world learns it
			eventually(t, "both routes are usable with the uplink's new MAC", usable)
			ping("with the uplink's new MAC")

			if err := daemon.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			eventually(t, "no route is usable without tapird", func() bool { return !n.xdpRoutes()[0].Usable && !n.xdpRoutes()[1].Usable })
			g.wantPing(otherPod4, otherPod6)
			wantText(t, string(n.ctl("doctor").stdout), "shortcut to "+otherRange4.String(), "tapird does not keep it")
			if out := n.ctl("xdp", "route", "del", otherRange4.String()); out.code != 0 || len(n.xdpRoutes()) != 1 {
				t.Errorf("delete a route: %s", out)
			}
			if out := n.ctl("xdp", "uplink", "detach", "up0"); out.code != 0 {
				t.Errorf("detach: %s", out)
			}
			if out := n.ctl("xdp", "uplink", "status"); out.code != 0 || !strings.Contains(string(out.stdout), "no uplink") {
				t.Errorf("after detach: %s", out)
			}
			p.works("DEL", nil)
		})
	}
}
