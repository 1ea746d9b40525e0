package cni_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestDevicesOfAttachment(t *testing.T) {
	for _, tt := range []struct {
		name   string
		over   object
		ifName string
		tap    string
		mtu    int
	}{
		{"defaults", nil, "eth0", "tap-eth0", uplinkMTU},
		{"mtu, ring and name", object{"mtu": 9000, "txQueueLen": 512, "tapName": "vmtap0", "queues": 2}, "eth0", "vmtap0", 9000},
		{"ifname of 12 bytes", object{"mtu": 1280}, "interface012", "tap-", 1280},
		{"ifname of 15 bytes", nil, "interface012345", "tap-", uplinkMTU},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			p := n.pod("c1", conf(tt.over))
			p.ifName = tt.ifName
			r := p.add()
			tapName := r.Interfaces[2].Name
			if tt.tap == "tap-" && (len(tapName) != 15 || !strings.HasPrefix(tapName, "tap-") || strings.HasPrefix(tapName[4:], tt.ifName[:5])) {
				t.Errorf("tap name %q: want \"tap-\" and a hash, 15 bytes together", tapName)
			} else if tt.tap != "tap-" && tapName != tt.tap {
				t.Errorf("tap name %q, want %q", tapName, tt.tap)
			}
			wantDevice(t, n.netns, hostEnd(t, r), tt.mtu, "tapir:pods/c1/"+tt.ifName)
			wantDevice(t, p.netns, tt.ifName, tt.mtu, "tapir:pods/c1/"+tt.ifName)
			wantDevice(t, p.netns, tapName, tt.mtu, "tapir:pods/c1/"+tt.ifName)
			wantTap(t, p, tapName, tt.over)
			wantHostSide(t, n, r)
			wantNoAddresses(t, p, tapName)
		})
	}
}

// wantDevice wants what all devices of an attachment have in common: MTU, tag, up, and a MAC that udev leaves alone.
func wantDevice(t *testing.T, netns, name string, mtu int, alias string) {
	t.Helper()
	testnode.In(t, netns, func() {
		a := link(t, name).Attrs()
		if a.MTU != mtu || a.Alias != alias || a.RawFlags&unix.IFF_UP == 0 {
			t.Errorf("%s: mtu %d, alias %q, flags %s; want mtu %d, alias %q, up", name, a.MTU, a.Alias, a.Flags, mtu, alias)
		}
		// NET_ADDR_SET, include/uapi/linux/netdevice.h: the MAC was given, and no policy of udev replaces it.
		if got := sysfs(t, name, "addr_assign_type"); got != "3" {
			t.Errorf("%s: addr_assign_type %s, want 3", name, got)
		}
	})
}

// sysfs reads an attribute of a device from a sysfs of the calling thread's netns.
func sysfs(t testing.TB, name, attr string) string {
	t.Helper()
	fd, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.FsconfigCreate(fd); err != nil {
		t.Fatal(err)
	}
	mnt, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(mnt)
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/class/net/%s/%s", mnt, name, attr))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func wantTap(t *testing.T, p *pod, name string, over object) {
	t.Helper()
	wantTapIn(t, p.netns, name, over)
}

func wantTapIn(t *testing.T, netns, name string, over object) {
	t.Helper()
	ring := 1000
	if n, ok := over["txQueueLen"].(int); ok {
		ring = n
	}
	testnode.In(t, netns, func() {
		l := link(t, name)
		if got := l.Attrs().TxQLen; got != ring {
			t.Errorf("%s: txqueuelen %d, want %d", name, got, ring)
		}
		qdiscs, err := netlink.QdiscList(l)
		if err != nil {
			t.Fatal(err)
		}
		var root []string
		for _, q := range qdiscs {
			if q.Attrs().Parent == netlink.HANDLE_ROOT {
				root = append(root, q.Type())
			}
		}
		if diff := cmp.Diff([]string{"noqueue"}, root); diff != "" {
			t.Errorf("%s: root qdisc (-want +got):\n%s", name, diff)
		}
	})
}

// wantHostSide wants the gateway's addresses on the host end, and each of the guest's as a route and a permanent neighbour.
func wantHostSide(t *testing.T, n *node, r *types100.Result) {
	t.Helper()
	wantNodeEnd(t, n, hostEnd(t, r), r.Interfaces[1].Mac)
}

// wantNodeEnd wants it on a device of the node.
func wantNodeEnd(t *testing.T, n *node, name, mac string) {
	t.Helper()
	var got []string
	n.in(func() {
		l := link(t, name)
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			got = append(got, "address "+a.IPNet.String())
		}
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			routes, err := netlink.RouteList(l, family)
			if err != nil {
				t.Fatal(err)
			}
			for _, route := range routes {
				got = append(got, "route "+route.Dst.String())
			}
			neighbours, err := netlink.NeighList(l.Attrs().Index, family)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range neighbours {
				if !e.IP.IsMulticast() {
					got = append(got, fmt.Sprintf("neighbour %s %s permanent %t", e.IP, e.HardwareAddr, e.State == unix.NUD_PERMANENT))
				}
			}
		}
	})
	want := []string{
		"address 10.9.0.1/32", "address fd00:9::1/128", "route 10.9.0.2/32", "neighbour 10.9.0.2 " + mac + " permanent true",
		"route fd00:9::2/128", "neighbour fd00:9::2 " + mac + " permanent true",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// wantNoAddresses wants none on TAP and pod end, not even a link-local one that the kernel makes when a reader attaches.
func wantNoAddresses(t *testing.T, p *pod, tapName string) {
	t.Helper()
	flags := uint16(qemuFlags)
	if q, ok := p.conf["queues"].(int); ok && q > 1 {
		flags = qemuMQFlags
	}
	fd, err := openQueue(t, p.netns, tapName, flags)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	plain := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "control"}, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_DEFAULTS, Queues: 1}
	testnode.In(t, p.netns, func() {
		if err := netlink.LinkAdd(plain); err != nil {
			t.Fatal(err)
		}
		setUp(t, "control") // it keeps its fd: a reader is attached
	})
	defer func() {
		for _, f := range plain.Fds {
			_ = f.Close()
		}
		testnode.In(t, p.netns, func() { _ = netlink.LinkDel(plain) })
	}()
	addresses := func(name string) (got []string) {
		testnode.In(t, p.netns, func() {
			addrs, err := netlink.AddrList(link(t, name), netlink.FAMILY_ALL)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range addrs {
				got = append(got, a.IPNet.String())
			}
		})
		return got
	}
	deadline := time.Now().Add(patience)
	for len(addresses("control")) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("an ordinary TAP with a reader makes no fe80:: address here: the test shows nothing")
		}
		time.Sleep(5 * time.Millisecond)
	}
	for _, name := range []string{tapName, p.ifName} {
		if got := addresses(name); len(got) > 0 {
			t.Errorf("%s has the addresses %q, want none", name, got)
		}
	}
}

func TestMTUWithoutDefaultRouteIs1500(t *testing.T) {
	n := newBareNode(t)
	p := n.pod("c1", conf(nil))
	if r := p.add(); r.Interfaces[1].Mtu != 1500 {
		t.Errorf("mtu %d, want 1500", r.Interfaces[1].Mtu)
	}
}
