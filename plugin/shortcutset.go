package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// Shortcuts changes the parts of attachments in the shortcut while they run.
type Shortcuts struct {
	StateDir string
	BPFFS    string // the folder of the pinned programs
}

// turnedOff is why an attachment whose configuration wants the shortcut has none.
const turnedOff = `turned off by "tapirctl xdp off"`

// Set gives an attachment a part in the shortcut in that mode, or takes it with [xdp.ModeOff], in the middle of its flows: both ends
// of each flow change at once, those that conntrack knows keep the default path. A TAP never goes down for it. The record keeps
// what the configuration wants.
func (c Shortcuts) Set(ctx context.Context, key state.Key, mode xdp.Mode) (state.XDP, error) {
	var out state.XDP
	err := c.held(ctx, key, func(rec *state.Attachment, save func() error) error {
		defer func() { out = rec.XDP }()
		return c.inSandbox(rec, func(s *xdp.Shortcut, pod *rtnl.Conn, host ns.NetNS) error {
			before := rec.XDP.Layout
			if mode == xdp.ModeOff {
				return c.outOf(before, s, rec, func() error { return leavePart(s, rec, host) })
			}
			// First, so that DEL finds the entries, whatever becomes of this process.
			rec.XDP.Layout = s.Layout()
			if err := save(); err != nil {
				return err
			}
			return c.outOf(before, s, rec, func() error {
				err := takePart(s, rec, pod, host, mode)
				if err != nil && rec.XDP.Mode == "" {
					err = errors.Join(err, leavePart(s, rec, host)) // what it did so far
				}
				return err
			})
		})
	})
	if err != nil {
		return out, fmt.Errorf("set the shortcut of %s to %s: %w", key, mode, err)
	}
	return out, nil
}

// Flag keeps an attachment's frames off the shortcut, in both directions and at once, or lets them on it again. It is the operator's word.
func (c Shortcuts) Flag(ctx context.Context, key state.Key, flagged bool) error {
	return c.flag(ctx, key, func(x *state.XDP) { x.Flagged = flagged })
}

// FlagPolicy is Flag for pods that a NetworkPolicy selects: either word keeps an attachment off the shortcut.
func (c Shortcuts) FlagPolicy(ctx context.Context, key state.Key, selected bool) error {
	return c.flag(ctx, key, func(x *state.XDP) { x.Policy = selected })
}

// offShortcut says whether an attachment that has a part in the shortcut is kept off it.
func offShortcut(rec *state.Attachment) bool {
	return rec.XDP.Flagged || rec.XDP.Policy || rec.Bandwidth != nil
}

func (c Shortcuts) flag(ctx context.Context, key state.Key, change func(*state.XDP)) error {
	err := c.held(ctx, key, func(rec *state.Attachment, _ func() error) error {
		if change(&rec.XDP); rec.XDP.Mode == "" {
			return nil // it acts when the shortcut is turned on
		}
		s, err := xdp.OpenLayout(c.BPFFS, cmp.Or(rec.XDP.Layout, xdp.ShortcutLayout())) // a rebuilt record does not know it
		if err != nil {
			return err
		}
		return errors.Join(s.SetNoShortcut(tapIndex(*rec), offShortcut(rec)), s.Close())
	})
	if err != nil {
		return fmt.Errorf("flag %s: %w", key, err)
	}
	return nil
}

// Upgrade puts this version's programs onto the devices of an attachment, each in one step. It says whether it changed any.
func (c Shortcuts) Upgrade(ctx context.Context, key state.Key) (changed bool, err error) {
	err = c.held(ctx, key, func(rec *state.Attachment, _ func() error) error {
		if rec.XDP.Mode == "" {
			return nil
		}
		return c.inSandbox(rec, func(s *xdp.Shortcut, pod *rtnl.Conn, host ns.NetNS) (err error) {
			if rec.XDP.Layout != s.Layout() {
				changed = true
				return c.moveMaps(s, rec, pod, host)
			}
			var atHost bool
			if changed, err = s.Upgrade(rec.TAP.Index); err != nil {
				return err
			}
			err = host.Do(func(ns.NetNS) (err error) {
				atHost, err = s.UpgradeHost(rec.Host.Index, xdp.Method(rec.Redirect))
				return err
			})
			changed = changed || atHost
			return err
		})
	})
	if err != nil {
		return changed, fmt.Errorf("upgrade the shortcut of %s: %w", key, err)
	}
	return changed, nil
}

// moveMaps gives an attachment its part in this version's maps, whose layout is another one: the new programs do not look into the
// old maps. Between both its frames take the default path.
func (c Shortcuts) moveMaps(s *xdp.Shortcut, rec *state.Attachment, pod *rtnl.Conn, host ns.NetNS) error {
	return c.outOf(rec.XDP.Layout, s, rec, func() error { return takePart(s, rec, pod, host, xdp.Mode(rec.XDP.Mode)) })
}

// outOf calls change, which acts on this version's maps, and takes the attachment out of those that it was in, where their layout is
// another one: its addresses before, so that nobody is led past the change, and the rest after it.
func (c Shortcuts) outOf(layout string, s *xdp.Shortcut, rec *state.Attachment, change func() error) error {
	if layout == "" || layout == s.Layout() {
		return change()
	}
	old, err := xdp.OpenLayout(c.BPFFS, layout)
	if errors.Is(err, fs.ErrNotExist) {
		return change()
	}
	if err != nil {
		return err
	}
	defer old.Close()
	tap := uint32(rec.TAP.Index)
	if err := old.Withdraw(tap, addressesOf(*rec)...); err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	return old.Leave(tap, uint32(rec.Host.Index))
}

// held calls fn with the attachment's record under its hold, and records what fn made of it; save does so meanwhile.
func (c Shortcuts) held(ctx context.Context, key state.Key, fn func(rec *state.Attachment, save func() error) error) (err error) {
	hold, err := state.AcquireHold(ctx, c.StateDir, key, holdWait)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release()) }()
	store := state.New(state.Config{Dir: c.StateDir})
	var rec state.Attachment
	err = store.View(ctx, func(tx *state.Tx) (err error) {
		var ok bool
		if rec, ok, err = tx.Attachment(key); err == nil && (!ok || rec.Status != state.Ready) {
			err = errors.New("there is no finished ADD of it")
		}
		return err
	})
	if err != nil {
		return err
	}
	save := func() error { return store.Update(ctx, func(tx *state.Tx) error { return tx.Put(rec) }) }
	return errors.Join(fn(&rec, save), save())
}

// inSandbox calls fn on a thread in the attachment's sandbox.
func (c Shortcuts) inSandbox(rec *state.Attachment, fn func(*xdp.Shortcut, *rtnl.Conn, ns.NetNS) error) error {
	switch {
	case rec.TAP.Name == "":
		return errors.New("it has no TAP")
	case rec.Chained:
		return errors.New("it is on another plugin's interface: the shortcut would go round that plugin's policies")
	case rec.OnHost():
		return errors.New("its TAP is in the host's netns: there is no way to cut short")
	case rec.Netns == "":
		return errors.New("its record was rebuilt from the kernel and does not know its sandbox")
	}
	s, err := xdp.EnsureShortcut(c.BPFFS)
	if err != nil {
		return err
	}
	defer s.Close()
	netns, err := openSandbox(rec.Netns)
	if err != nil {
		return err
	}
	defer netns.Close()
	return netns.Do(func(host ns.NetNS) error {
		pod, err := rtnl.Open()
		if err != nil {
			return err
		}
		defer pod.Close()
		return fn(s, pod, host)
	})
}

// takePart does what ADD does. The flag keeps frames off the shortcut until both ends of it are there.
func takePart(s *xdp.Shortcut, rec *state.Attachment, pod *rtnl.Conn, host ns.NetNS, mode xdp.Mode) (err error) {
	if rec.XDP.NSID, err = pod.EnsureNetnsID(int(host.Fd())); err != nil {
		return fmt.Errorf("the host's %w", err)
	}
	part, err := participant(rec)
	if err != nil {
		return err
	}
	flagged := part.NoShortcut
	part.NoShortcut = true
	if err := s.Join(part); err != nil {
		return err
	}
	rec.XDP.Layout = s.Layout()
	if err := s.AddDevice(part.TAP); err != nil {
		return err
	}
	got, err := s.AttachTAP(rec.TAP.Index, mode)
	if err != nil {
		return err
	}
	if err := host.Do(func(ns.NetNS) error { return s.AttachHost(rec.Host.Index, xdp.Method(rec.Redirect)) }); err != nil {
		return err
	}
	if err := s.Publish(part.TAP); err != nil {
		return err
	}
	rec.XDP.Mode, rec.XDP.Why = string(got), ""
	if flagged {
		return nil
	}
	return s.SetNoShortcut(part.TAP, false)
}

// leavePart flags first, so that no flow is on the shortcut in one direction alone.
func leavePart(s *xdp.Shortcut, rec *state.Attachment, host ns.NetNS) error {
	tap := uint32(rec.TAP.Index)
	var errs []error
	if _, err := s.Participant(tap); err == nil {
		errs = append(errs, s.SetNoShortcut(tap, true))
	}
	errs = append(errs, s.Withdraw(tap, addressesOf(*rec)...))
	errs = append(errs, host.Do(func(ns.NetNS) error { return s.DetachHost(rec.Host.Index, xdp.Method(rec.Redirect)) }))
	errs = append(errs, s.DetachTAP(rec.TAP.Index), s.Leave(tap, uint32(rec.Host.Index)))
	if rec.XDP.Mode, rec.XDP.Why = "", ""; rec.XDP.Wanted != "" {
		rec.XDP.Why = turnedOff
	}
	return errors.Join(errs...)
}
