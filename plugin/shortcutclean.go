package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/xdp"
)

// shortcutEntries are the TAPs that have entries in the shortcut, of the layout that this version knows.
func (c Cleaner) shortcutEntries() ([]uint32, error) {
	var out []uint32
	err := c.withShortcut(func(s *xdp.Shortcut) error {
		all, err := s.Participants()
		if err != nil {
			return err
		}
		targets, err := s.Published()
		out = slices.AppendSeq(slices.Collect(maps.Keys(all)), maps.Values(targets))
		return err
	})
	slices.Sort(out)
	return slices.Compact(out), err
}

// shortcutOrphans removes entries that no attachment has.
func (c Cleaner) shortcutOrphans(r *Report, taps []uint32, known map[uint32]bool) error {
	dead := slices.DeleteFunc(taps, func(index uint32) bool { return known[index] })
	if len(dead) == 0 {
		return nil
	}
	return c.withShortcut(func(s *xdp.Shortcut) error {
		stale, err := staleTargets(s, known)
		if err != nil {
			return err
		}
		var errs []error
		for addr, tap := range stale {
			if !c.DryRun && slices.Contains(dead, tap) {
				errs = append(errs, s.Withdraw(tap, addr))
			}
		}
		for _, tap := range dead {
			if !c.DryRun {
				errs = append(errs, s.Leave(tap, tap-offsetTAP+offsetHost))
			}
			r.Removed = append(r.Removed, Leftover{"entry", fmt.Sprintf("shortcut of ifindex %d", tap), "no attachment has it"})
		}
		return errors.Join(errs...)
	})
}

// uplinks takes the shortcut's program off the node's devices.
func (c Cleaner) uplinks(r *Report) error {
	return c.withShortcut(func(s *xdp.Shortcut) error {
		devices, err := Uplinks(s)
		errs := []error{err}
		for _, d := range devices {
			if !c.DryRun {
				errs = append(errs, s.DetachUplink(d.Index))
			}
			r.Removed = append(r.Removed, Leftover{"uplink", d.Name, "no attachment is left"})
		}
		return errors.Join(errs...)
	})
}

// withShortcut calls fn with the pinned maps of this version's layout, unless there are none.
func (c Cleaner) withShortcut(fn func(*xdp.Shortcut) error) error {
	layouts, err := xdp.Layouts(c.BPFFS)
	if err != nil || len(layouts) == 0 {
		return err
	}
	s, err := xdp.OpenLayout(c.BPFFS, xdp.ShortcutLayout())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(fn(s), s.Close())
}

// UplinkDevice is a device of the host's netns with the shortcut's program for uplinks.
type UplinkDevice struct {
	Name  string
	Index int
	MTU   int
	State xdp.DeviceState
}

// Uplinks finds the uplinks in the calling thread's netns, which is the host's.
func Uplinks(s *xdp.Shortcut) ([]UplinkDevice, error) {
	host, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	links, err := host.Links()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var out []UplinkDevice
	for _, l := range links {
		a := l.Attrs()
		if a.Xdp == nil || !a.Xdp.Attached {
			continue
		}
		is, err := s.TAPState(a.Index)
		if rtnl.Gone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !is.Foreign && is.Name == uplinkProgram {
			out = append(out, UplinkDevice{a.Name, a.Index, a.MTU, is})
		}
	}
	return out, nil
}

// uplinkProgram is the name of the program on an uplink's XDP hook.
const uplinkProgram = "uplink_xdp"
