package uplink

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/tapir-cni/tapir/xdp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// uplinkProgram is the name of the program on an uplink's XDP hook.
const uplinkProgram = "uplink_xdp"

// pinned is the kernel's map, of the layout that this binary knows.
type pinned struct {
	dir string
	s   *xdp.Shortcut
}

// OpenPinned opens the map that is pinned below dir; where none is, the error is [fs.ErrNotExist].
func OpenPinned(dir string) (Table, error) {
	s, err := xdp.OpenLayout(dir, xdp.ShortcutLayout())
	if err != nil {
		return nil, err
	}
	return &pinned{dir, s}, nil
}

func (p *pinned) Close() error { return p.s.Close() }

func (p *pinned) Routes() (map[netip.Prefix]Entry, error) {
	routes, err := p.s.Routes()
	if err != nil {
		return nil, err
	}
	out := make(map[netip.Prefix]Entry, len(routes))
	for prefix, r := range routes {
		out[prefix] = Entry{
			Route{Prefix: prefix, Via: r.Addr},
			Hop{Usable: r.Usable, Dev: int(r.Uplink), MAC: r.DstMAC, Source: r.SrcMAC, MTU: r.MTU},
		}
	}
	return out, nil
}

// Uplinks are the devices of this netns whose XDP hook has tapir's program for uplinks.
func (p *pinned) Uplinks() (map[int]Device, error) {
	links, err := netlink.LinkList()
	for try := 0; errors.Is(err, netlink.ErrDumpInterrupted) && try < 20; try++ {
		links, err = netlink.LinkList()
	}
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	out := map[int]Device{}
	for _, l := range links {
		a := l.Attrs()
		if a.Xdp == nil || !a.Xdp.Attached {
			continue
		}
		state, err := p.s.TAPState(a.Index)
		if errors.Is(err, unix.ENODEV) {
			continue // gone since
		}
		if err != nil {
			return nil, err
		}
		if !state.Foreign && state.Name == uplinkProgram {
			out[a.Index] = Device{Index: a.Index} // what the map has is not told: it is set once
		}
	}
	return out, nil
}

// SetUplink keeps the mode that the uplink has.
func (p *pinned) SetUplink(d Device) error {
	state, err := p.s.TAPState(d.Index)
	if err != nil {
		return err
	}
	if state.Mode == xdp.ModeOff || state.Foreign {
		return nil // no uplink any more
	}
	own, err := xdp.EnsureShortcut(p.dir)
	if err != nil {
		return err
	}
	defer own.Close()
	_, err = own.AttachUplink(xdp.Uplink{Index: d.Index, MAC: d.MAC, MTU: d.MTU}, state.Mode)
	return err
}

func (p *pinned) DropUplink(index int) error { return p.s.DetachUplink(index) }

func (p *pinned) SetHop(rt Route, h Hop) error {
	next := xdp.NextHop{Addr: rt.Via, Uplink: uint32(h.Dev), Usable: h.Usable, MTU: h.MTU, DstMAC: h.MAC, SrcMAC: h.Source}
	return WithRoutes(p.dir, func() error {
		routes, err := p.s.Routes()
		if err != nil {
			return err
		}
		old, ok := routes[rt.Prefix]
		if !ok || old.Addr != rt.Via {
			return fmt.Errorf("route %s via %s: %w", rt.Prefix, rt.Via, fs.ErrNotExist)
		}
		if next.Uplink == 0 {
			next.Uplink = old.Uplink
		}
		return p.s.SetRoute(rt.Prefix, next)
	})
}

// WithRoutes calls fn while no other process changes which routes there are: who writes a hop does not bring a route back
// that somebody deletes. dir is the folder of the pins, which must exist.
func WithRoutes(dir string, fn func() error) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	return fn()
}
