package uplink

import (
	"errors"
	"io/fs"
	"net"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/xdp"
)

// shortcut pins the shortcut in dir and makes up0 its uplink.
func (n *node) shortcut(dir string) *xdp.Shortcut {
	n.t.Helper()
	s, err := xdp.EnsureShortcut(dir)
	must(n.t, err)
	n.t.Cleanup(func() { must(n.t, s.Close()) })
	testnode.In(n.t, n.netns, func() {
		a := linkOf(n.t, n.conn).Attrs()
		_, err := s.AttachUplink(xdp.Uplink{Index: a.Index, MAC: a.HardwareAddr, MTU: a.MTU}, xdp.ModeGeneric)
		must(n.t, err)
	})
	return s
}

func TestPinnedMapIsKeptRight(t *testing.T) {
	n := newNode(t)
	dir := pinDir(t)
	s := n.shortcut(dir)
	add := func() {
		must(t, WithRoutes(dir, func() error { return s.SetRoute(prefix4, xdp.NextHop{Addr: hop4, Uplink: uint32(n.up0)}) }))
		must(t, Touch(dir))
	}
	hop := func() xdp.NextHop {
		routes, err := s.Routes()
		must(t, err)
		return routes[prefix4]
	}
	wantUsable := func() {
		t.Helper()
		eventually(t, "the route is usable", func() (bool, any) {
			h := hop()
			return h.Usable && h.DstMAC.String() == n.lanMAC() && h.SrcMAC.String() == linkOf(t, n.conn).Attrs().HardwareAddr.String() && h.MTU == 1400, h
		})
	}
	stop := n.run(func() (Table, error) { return OpenPinned(dir) }, dir)
	add()
	wantUsable()
	must(t, n.there.LinkSetHardwareAddr(linkOf(t, n.there), net.HardwareAddr{2, 0, 0, 0, 0, 0xaa}))
	wantUsable()
	must(t, n.conn.LinkSetHardwareAddr(linkOf(t, n.conn), net.HardwareAddr{2, 0, 0, 0, 0, 0xcc}))
	wantUsable()

	// Who deletes a route while the hop changes has it deleted.
	must(t, WithRoutes(dir, func() error { return s.DeleteRoute(prefix4) }))
	must(t, Touch(dir))
	must(t, n.conn.LinkSetMTU(linkOf(t, n.conn), 1300))
	must(t, n.conn.LinkSetMTU(linkOf(t, n.conn), 1400))
	add()
	wantUsable()
	table, err := OpenPinned(dir)
	must(t, err)
	must(t, WithRoutes(dir, func() error { return s.DeleteRoute(prefix4) }))
	if err := table.SetHop(Route{prefix4, hop4}, Hop{Dev: n.up0}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the hop of a deleted route: want %v, got %v", fs.ErrNotExist, err)
	}
	must(t, table.Close())
	add()
	wantUsable()

	stop()
	if h := hop(); h.Usable || h.Addr != hop4 {
		t.Errorf("after the end: want an unusable route by %s, got %+v", hop4, h)
	}
}

func TestRouteBesideTheUplinkIsNotUsed(t *testing.T) {
	n := newNode(t)
	dir := pinDir(t)
	s := n.shortcut(dir)
	must(t, s.SetRoute(prefix4, xdp.NextHop{Addr: hop4, Uplink: uint32(n.up0)}))
	n.run(func() (Table, error) { return OpenPinned(dir) }, dir)
	usable := func(want bool) {
		t.Helper()
		eventually(t, "usable is what it should be", func() (bool, any) {
			routes, err := s.Routes()
			must(t, err)
			return routes[prefix4].Usable == want, routes
		})
	}
	usable(true)
	testnode.In(t, n.netns, func() { must(t, s.DetachUplink(n.up0)) })
	must(t, Touch(dir))
	usable(false)
}

func TestNothingPinnedIsNoError(t *testing.T) {
	testnode.Require(t, "root", "bpf")
	if _, err := OpenPinned(pinDir(t)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("want %v, got %v", fs.ErrNotExist, err)
	}
}
