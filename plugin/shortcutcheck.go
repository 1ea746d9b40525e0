package plugin

import (
	"fmt"
	"net/netip"
	"reflect"

	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// openForCheck opens the maps that the attachment has entries in; nil where it takes no part, or where that is a finding.
func (k *inspection) openForCheck(bpffs string) *xdp.Shortcut {
	if k.rec.XDP.Mode == "" {
		return nil
	}
	s, err := xdp.OpenLayout(bpffs, k.rec.XDP.Layout)
	if err != nil {
		k.add("shortcut: %v", err)
		return nil
	}
	k.shortcut = s
	if k.rec.XDP.Layout == xdp.ShortcutLayout() {
		k.shortcutEntries()
	}
	return s
}

// shortcutEntries compares the attachment's entries. A flag may have been set since: it is no difference.
func (k *inspection) shortcutEntries() {
	s, tap := k.shortcut, uint32(k.rec.TAP.Index)
	want, err := participant(&k.rec)
	if err != nil {
		k.add("shortcut: %v", err)
		return
	}
	got, err := s.Participant(tap)
	if err != nil {
		k.add("shortcut: %v", err)
		return
	}
	want.NoShortcut = got.NoShortcut || k.rec.Bandwidth != nil // beside the limits it would go
	want.GatewayMAC = xdp.GatewayMAC
	for i, a := range want.Addresses {
		want.Addresses[i] = single(a.Addr())
	}
	if !reflect.DeepEqual(want, got) {
		k.add("shortcut: entry of %s: want %+v, got %+v", k.rec.TAP.Name, want, got)
	}
	if has, err := s.HasDevice(tap); err != nil || !has {
		k.add("shortcut: %s is not among the devices that frames can go to (%v)", k.rec.TAP.Name, err)
	}
	targets, err := s.Published()
	if err != nil {
		k.add("shortcut: %v", err)
		return
	}
	for _, a := range k.rec.Addresses {
		if got := targets[a.Prefix.Addr()]; got != tap {
			k.add("shortcut: %s leads to the tap with ifindex %d, want %d", a.Prefix.Addr(), got, tap)
		}
	}
}

// xdpOnTap compares what is on the TAP's XDP hook, on a thread in its netns. Another version's program is no difference.
func (k *inspection) xdpOnTap(dev state.Device) {
	if k.shortcut == nil {
		return
	}
	is, err := k.shortcut.TAPState(dev.Index)
	switch {
	case err != nil:
		k.add("%s: %v", dev.Name, err)
	case is.Foreign:
		k.add("%s: has XDP program %q, which is not tapir's", dev.Name, is.Name)
	default:
		k.differ(dev.Name+": XDP mode", k.rec.XDP.Mode, string(is.Mode))
	}
	k.current = err == nil && is.Current
}

// hostShortcut wants the other program on the host end, on a thread in the host's netns. Of a TAP with another version's nothing is
// said: its host end has that version's too.
func (k *inspection) hostShortcut() {
	if k.shortcut == nil || !k.current {
		return
	}
	ok, err := k.shortcut.HostAttached(k.rec.Host.Index, xdp.Method(k.rec.Redirect))
	if err != nil {
		k.add("%s: %v", k.rec.Host.Name, err)
	} else if !ok {
		k.add("%s: the shortcut's program is not attached", k.rec.Host.Name)
	}
}

// staleTargets are addresses in the shortcut whose TAP nobody has, with that TAP.
func staleTargets(s *xdp.Shortcut, known map[uint32]bool) (map[netip.Addr]uint32, error) {
	all, err := s.Published()
	if err != nil {
		return nil, fmt.Errorf("targets of the shortcut: %w", err)
	}
	for addr, tap := range all {
		if known[tap] {
			delete(all, addr)
		}
	}
	return all, nil
}
