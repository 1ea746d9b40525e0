package state

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// addVeth makes what an ADD makes on the host's side: a veth whose other end is in the netns pod, tagged, with host
// routes and permanent neighbours.
func addVeth(t *testing.T, pod string, k Key, name string, addrs ...string) (host, peer int) {
	t.Helper()
	ns, err := os.Open(pod)
	must(t, err)
	defer ns.Close()
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: name, MTU: 1450, HardwareAddr: mac("02:74:61:70:69:72")},
		PeerName:      k.IfName,
		PeerNamespace: netlink.NsFd(int(ns.Fd())),
	}
	must(t, netlink.LinkAdd(veth))
	link, err := netlink.LinkByName(name)
	must(t, err)
	t.Cleanup(func() { must(t, netlink.LinkDel(link)) })
	must(t, netlink.LinkSetAlias(link, k.Alias()))
	must(t, netlink.LinkSetUp(link))
	for _, a := range addrs {
		ip := netip.MustParseAddr(a)
		dst := &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}))
		must(t, netlink.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, IP: ip.AsSlice(), HardwareAddr: mac("06:00:0a:55:00:05"), State: netlink.NUD_PERMANENT,
		}))
	}
	return link.Attrs().Index, link.Attrs().ParentIndex
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mac(s string) net.HardwareAddr {
	hw, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return hw
}

func TestScanFindsWhatTaggedDevicesUse(t *testing.T) {
	testnode.Require(t, "root", "ipv6", "tun")
	k := Key{Network: "net", ContainerID: "c1", IfName: "eth0"}
	host, peer := addVeth(t, testnode.NewNetns(t), k, "tpr1", "10.9.0.2", "fd00:9::2")

	// Controls: a device that is not tapir's, and what no guest is given on one that is.
	plain := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "plain0"}, Mode: netlink.TUNTAP_MODE_TAP}
	must(t, netlink.LinkAdd(plain))
	t.Cleanup(func() { must(t, netlink.LinkDel(plain)) })
	must(t, netlink.LinkSetUp(plain))
	plainLink, err := netlink.LinkByName("plain0")
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: plainLink.Attrs().Index, Dst: prefix("10.9.0.9/32"), Scope: netlink.SCOPE_LINK}))
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: host, Dst: prefix("10.77.0.0/16"), Scope: netlink.SCOPE_LINK}))

	got, err := ScanKernel(t.Context())
	must(t, err)
	want := []Attachment{{
		Key: k, Status: Ready, Placement: "pod", MTU: 1450, GuestMAC: "06:00:0a:55:00:05", Rebuilt: true,
		Host: Device{Name: "tpr1", Index: host, MAC: "02:74:61:70:69:72"},
		Pod:  Device{Name: "eth0", Index: peer},
		Addresses: []Address{
			{Prefix: netip.MustParsePrefix("10.9.0.2/32")}, {Prefix: netip.MustParsePrefix("fd00:9::2/128")},
		},
	}}
	if diff := cmp.Diff(want, got, compare, cmpopts.IgnoreFields(Attachment{}, "Created")); diff != "" {
		t.Errorf("attachments (-want +got):\n%s", diff)
	}
	if peer == 0 {
		t.Error("the pod end's ifindex is not known")
	}
}

func prefix(s string) *net.IPNet {
	_, p, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	return p
}

func TestLostStateNeverGivesAnAddressOfATaggedDeviceAway(t *testing.T) {
	testnode.Require(t, "root", "ipv6")
	k := Key{Network: "net", ContainerID: "c1", IfName: "eth0"}
	addVeth(t, testnode.NewNetns(t), k, "tpr1", "10.9.0.2", "fd00:9::2")
	s := New(Config{Dir: filepath.Join(t.TempDir(), "tapir")})
	update(t, s, func(tx *Tx) error {
		for _, a := range []string{"10.9.0.2", "fd00:9::2"} {
			addr := netip.MustParseAddr(a)
			if u := status(t, tx, addr); u.Status != AddressLeased || u.Holder != k {
				t.Errorf("address %s: got %+v, want it leased to %q", a, u, k)
			}
			if got, ok, err := tx.NextFree(addr, addr.Next()); got != addr.Next() || !ok || err != nil {
				t.Errorf("next free from %s on: got %s, %v, %v", a, got, ok, err)
			}
		}
		return nil
	})
}

func TestScanOfANodeWithoutTapirIsEmpty(t *testing.T) {
	testnode.Require(t, "root")
	if got, err := ScanKernel(t.Context()); len(got) != 0 || err != nil {
		t.Errorf("scan: got %v, %v", got, err)
	}
}

// A TAP in the host's netns is found by its ifindex where its name is its user's; an alias alone is not enough.
func TestScanFindsTapsOfTheHost(t *testing.T) {
	testnode.Require(t, "root", "ipv6", "tun")
	add := func(name string, index int, flags uint16, k Key) {
		t.Helper()
		addTapAt(t, name, index, flags)
		link, err := netlink.LinkByName(name)
		must(t, err)
		t.Cleanup(func() { must(t, netlink.LinkDel(link)) })
		must(t, netlink.LinkSetAlias(link, k.Alias()))
		must(t, netlink.LinkSetTxQLen(link, 200))
		must(t, netlink.LinkSetUp(link))
	}
	key := func(id string) Key { return Key{Network: "net", ContainerID: id, IfName: "eth0"} }
	add("vmtap0", firstIndex+8, 0, key("named"))
	add("vmtap1", firstIndex+12, unix.IFF_MULTI_QUEUE, key("queues"))
	add("alias0", 0, 0, key("alias"))
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: firstIndex + 8, Dst: prefix("10.9.0.2/32"), Scope: netlink.SCOPE_LINK}))
	must(t, netlink.NeighSet(&netlink.Neigh{
		LinkIndex: firstIndex + 8, IP: net.IPv4(10, 9, 0, 2), HardwareAddr: mac("06:00:0a:55:00:05"), State: netlink.NUD_PERMANENT,
	}))
	got, err := ScanKernel(t.Context())
	must(t, err)
	want := []Attachment{
		{
			Key: key("named"), Status: Ready, Placement: PlacementHost, MTU: 1500, GuestMAC: "06:00:0a:55:00:05", Rebuilt: true, Queues: 1, TxQueue: 200,
			TAP: Device{Name: "vmtap0", Index: firstIndex + 8}, Addresses: []Address{{Prefix: netip.MustParsePrefix("10.9.0.2/32")}},
		},
		{
			Key: key("queues"), Status: Ready, Placement: PlacementHost, MTU: 1500, Rebuilt: true, TxQueue: 200,
			TAP: Device{Name: "vmtap1", Index: firstIndex + 12},
		},
	}
	if diff := cmp.Diff(want, got, compare, cmpopts.IgnoreFields(Attachment{}, "Created"), cmpopts.IgnoreFields(Device{}, "MAC")); diff != "" {
		t.Errorf("attachments (-want +got):\n%s", diff)
	}
	for _, a := range got {
		if path, known := a.TAPNetns(); path != "" || !known || !a.OnHost() {
			t.Errorf("%s: netns %q, known %t", a.Key, path, known)
		}
	}
}

// addTapAt makes a persistent TAP of a chosen ifindex; 0 lets the kernel choose.
func addTapAt(t *testing.T, name string, index int, flags uint16) {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.IoctlSetPointerInt(fd, unix.TUNSETIFINDEX, index))
	ifr, err := unix.NewIfreq(name)
	must(t, err)
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | flags)
	must(t, unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr))
	must(t, unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1))
}
