package rtnl

import (
	"math"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// open gives a connection to a new netns with a veth pair "a" and "b", both up.
func open(t *testing.T) (c *Conn, a, b int) {
	t.Helper()
	testnode.Require(t, "root")
	testnode.In(t, testnode.NewNetns(t), func() {
		var err error
		if c, err = Open(); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(c.Close)
	if err := c.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}); err != nil {
		t.Fatal(err)
	}
	var indexes []int
	for _, name := range []string{"a", "b"} {
		l, err := c.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		indexes = append(indexes, l.Attrs().Index)
	}
	return c, indexes[0], indexes[1]
}

func TestNetnsIDIsGivenOnceAndKept(t *testing.T) {
	c, _, _ := open(t)
	other := testnode.NewNetns(t)
	f, err := os.Open(other)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if id, err := c.GetNetNsIdByFd(int(f.Fd())); err != nil || id != -1 {
		t.Fatalf("before: want no id, got %d, %v: the test shows nothing", id, err)
	}
	first, err := c.EnsureNetnsID(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.EnsureNetnsID(int(f.Fd()))
	if err != nil || again != first {
		t.Errorf("asked again: want %d, got %d, %v", first, again, err)
	}
	if got, err := c.GetNetNsIdByFd(int(f.Fd())); err != nil || got != first {
		t.Errorf("the kernel has %d, %v; want %d", got, err, first)
	}
}

func TestShapeIsWhatWasAskedFor(t *testing.T) {
	c, a, _ := open(t)
	for _, s := range []Shape{
		{Rate: 125_000, Burst: 20_000},
		{Rate: 1_250_000_000, Burst: 10 << 20},
		{Rate: 12_500_000_000, Burst: 64 << 20}, // 100 Gbit/s
		{Rate: 125_000, Burst: math.MaxUint32 / 8},
		{Rate: 1, Burst: math.MaxUint32},
	} {
		if err := c.SetShape(a, s); err != nil {
			t.Errorf("%+v: %v", s, err)
			continue
		}
		if differs, err := c.Shaped(a, s); err != nil || differs != "" {
			t.Errorf("%+v: got %q, %v", s, differs, err)
		}
		other := s
		other.Rate += other.Rate/10 + 1
		if differs, err := c.Shaped(a, other); err != nil || !strings.HasPrefix(differs, "tbf rate") {
			t.Errorf("%+v against %+v: want a difference, got %q, %v", s, other, differs, err)
		}
	}
	if err := c.SetNoqueue(a); err != nil {
		t.Fatal(err)
	}
	if differs, err := c.Shaped(a, Shape{Rate: 1, Burst: 1}); err != nil || differs != "noqueue" {
		t.Errorf("without a shape: want noqueue, got %q, %v", differs, err)
	}
}

func TestNeighbourIsFoundByItsAddress(t *testing.T) {
	testnode.Require(t, "ipv6")
	c, a, b := open(t)
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for _, s := range []string{"192.0.2.1", "fd00::1"} {
		addr := netip.MustParseAddr(s)
		if n, err := c.Neighbour(a, addr); n != nil || err != nil {
			t.Errorf("%s: want none, got %v, %v", addr, n, err)
		}
		err := c.NeighSet(&netlink.Neigh{LinkIndex: a, Family: familyOf(addr), IP: addr.AsSlice(), HardwareAddr: mac, State: unix.NUD_STALE})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := c.Neighbour(a, addr); err != nil || n == nil || n.HardwareAddr.String() != mac.String() || n.State != unix.NUD_STALE {
			t.Errorf("%s: got %v, %v", addr, n, err)
		}
		if n, err := c.Neighbour(b, addr); n != nil || err != nil {
			t.Errorf("%s on another link: want none, got %v, %v", addr, n, err)
		}
		if err := c.UseNeighbour(a, addr); err != nil {
			t.Error(err)
		}
		if n, err := c.Neighbour(a, addr); err != nil || n == nil || n.State&(unix.NUD_DELAY|unix.NUD_PROBE) == 0 {
			t.Errorf("%s, used: want it to be confirmed, got %v, %v", addr, n, err)
		}
	}
}

func TestMonitorTellsWhatHappensInItsNetnsAndEnds(t *testing.T) {
	testnode.Require(t, "root")
	path := testnode.NewNetns(t)
	var m *Monitor
	var c *Conn
	testnode.In(t, path, func() {
		var err error
		if m, err = Watch(unix.RTNLGRP_LINK); err != nil {
			t.Fatal(err)
		}
		if c, err = Open(); err != nil {
			t.Fatal(err)
		}
	})
	defer c.Close()
	if err := c.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}); err != nil {
		t.Fatal(err)
	}
	msgs, err := m.Receive()
	if err != nil || len(msgs) == 0 || msgs[0].Header.Type != unix.RTM_NEWLINK {
		t.Errorf("want RTM_NEWLINK, got %v, %v", msgs, err)
	}
	m.Close()
	for {
		if _, err := m.Receive(); err != nil {
			break
		}
	}
}

func TestOffloadsAndMaxMTUAreTheDrivers(t *testing.T) {
	testnode.Require(t, "root")
	testnode.In(t, testnode.NewNetns(t), func() {
		c, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}); err != nil {
			t.Fatal(err)
		}
		got, err := Offloads("a")
		if err != nil {
			t.Fatal(err)
		}
		if !got["tx-tcp-segmentation"] || got["rx-lro"] || got["no-such-feature"] {
			t.Errorf("want TCP segmentation and no LRO of a veth, got %v", got)
		}
		a, err := c.LinkByName("a")
		if err != nil {
			t.Fatal(err)
		}
		if n, err := c.MaxMTU(a.Attrs().Index); err != nil || n != 65535 {
			t.Errorf("largest MTU of a veth: want 65535, got %d, %v", n, err)
		}
		if _, err := Offloads("none"); err == nil {
			t.Error("offloads of no device: want an error, got none")
		}
	})
}
