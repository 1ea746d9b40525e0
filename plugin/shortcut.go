package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
	"golang.org/x/sys/unix"
)

// validateShortcut checks the key "xdp".
func (c *Config) validateShortcut(fs *faults) {
	const why = `: there is no veth whose way could be cut short`
	on := c.XDP.Mode != string(xdp.ModeOff)
	switch {
	case on && c.Placement == PlacementHost:
		fs.Add("xdp.mode", `want "off" with placement "host": what the guest sends is in the host's stack at once`)
	case on && c.scannedByKata():
		fs.Add("xdp.mode", `want "off" with "vmm": "kata" and placement "pod"`+why+`: Kata makes a TAP of its own`)
	}
	if c.XDP.Uplink == "" {
		return
	}
	checkDeviceName(fs, "xdp.uplink", c.XDP.Uplink)
	if !on {
		fs.Add("xdp.uplink", fmt.Sprintf("want none with xdp.mode %q, got %q", c.XDP.Mode, c.XDP.Uplink))
	}
}

// shortcutUsable reports why no ADD could have the part in the shortcut that the configuration insists on, or nil.
func (c *Config) shortcutUsable(bpffs string) error {
	if m := xdp.Mode(c.XDP.Mode); m != xdp.ModeNative && m != xdp.ModeGeneric {
		return nil
	}
	s, err := xdp.OpenShortcut(bpffs)
	if errors.Is(err, fs.ErrNotExist) { // only then is the kernel asked: that takes it tens of milliseconds
		return xdp.HaveShortcut()
	}
	if err != nil {
		return err
	}
	return s.Close()
}

// planShortcut takes the key "xdp" and the pod's own word. A pod without a TAP has no part in the shortcut.
func (p *Plan) planShortcut(cfg *Config, ch choices) {
	mode := cmp.Or(ch.xdp, xdp.Mode(cfg.XDP.Mode))
	if p.Plain || mode == xdp.ModeOff {
		return
	}
	p.XDP, p.Uplink = mode, cfg.XDP.Uplink
}

// openShortcut opens the shortcut where the plan wants it. In mode auto a kernel that lacks something is no error: why says what.
func (a *apply) openShortcut(bpffs string) (err error) {
	if a.plan.XDP == "" {
		return nil
	}
	a.shortcut, err = xdp.EnsureShortcut(bpffs)
	var lacks *xdp.UnsupportedError
	if errors.As(err, &lacks) && a.plan.XDP == xdp.ModeAuto {
		a.noShortcut = err.Error()
		return nil
	}
	a.trace.Mark("open shortcut")
	return err
}

func (a *apply) closeShortcut() {
	if a.shortcut != nil {
		_ = a.shortcut.Close()
	}
}

// recordShortcut records what is wanted and where there may soon be entries.
func (a *apply) recordShortcut(rec *state.Attachment) {
	rec.Bandwidth = a.plan.Bandwidth
	if a.plan.XDP == "" {
		return
	}
	rec.XDP = state.XDP{Wanted: string(a.plan.XDP), Uplink: a.plan.Uplink, Why: a.noShortcut}
	if a.shortcut != nil {
		rec.XDP.Layout = a.shortcut.Layout()
	}
}

// joinShortcut makes the attachment a participant and puts the program on its TAP, which is down. It runs on a thread in the
// pod's netns, where the map of devices looks the TAP up.
func (a *apply) joinShortcut(hostNS ns.NetNS) error {
	if a.shortcut == nil {
		return nil
	}
	id, err := a.pod.EnsureNetnsID(int(hostNS.Fd()))
	if err != nil {
		return fmt.Errorf("the host's %w, in netns %q", err, a.plan.Netns)
	}
	a.rec.XDP.NSID = id
	part, err := participant(a.rec)
	if err != nil {
		return err
	}
	s := a.shortcut
	a.undo.push("part in the shortcut", func() error { return s.Leave(part.TAP, part.Host) })
	if err := s.Join(part); err != nil {
		return err
	}
	if err := s.AddDevice(part.TAP); err != nil {
		return err
	}
	mode, err := s.AttachTAP(a.rec.TAP.Index, a.plan.XDP)
	if errors.Is(err, unix.EOPNOTSUPP) {
		if a.plan.XDP != xdp.ModeAuto {
			return withCode(CodeUnsupported, fmt.Errorf("xdp.mode %q: %w; set it to \"auto\" or \"off\"", a.plan.XDP, err))
		}
		a.rec.XDP.Why = err.Error()
		return s.Leave(part.TAP, part.Host)
	}
	if err != nil {
		return err
	}
	a.rec.XDP.Mode, a.joined = string(mode), true
	a.trace.Mark("join shortcut")
	return nil
}

// participant is the attachment's entry in the shortcut.
func participant(rec *state.Attachment) (xdp.Participant, error) {
	mac, err := net.ParseMAC(rec.GuestMAC)
	if err != nil {
		return xdp.Participant{}, fmt.Errorf("guest MAC: %w", err)
	}
	return xdp.Participant{
		TAP: uint32(rec.TAP.Index), Host: uint32(rec.Host.Index), HostNSID: int32(rec.XDP.NSID), MAC: mac, Addresses: prefixesOf(rec), Inside: insideOf(rec),
		MTU: rec.MTU, SpoofCheck: rec.SpoofCheck, NoShortcut: offShortcut(rec), Counters: uint32(rec.TAP.Index),
	}, nil
}

// insideOf are the addresses that the guest has in place of the pod's, in the order of the pod's.
func insideOf(rec *state.Attachment) []netip.Addr {
	var out []netip.Addr
	for _, a := range rec.Addresses {
		if inside, ok := rec.Inside(a.Prefix.Addr().Is4()); ok {
			out = append(out, inside.Prefix.Addr())
		}
	}
	return out
}

func prefixesOf(rec *state.Attachment) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(rec.Addresses))
	for _, a := range rec.Addresses {
		out = append(out, a.Prefix)
	}
	return out
}

func addressesOf(rec state.Attachment) []netip.Addr {
	out := make([]netip.Addr, 0, len(rec.Addresses))
	for _, a := range rec.Addresses {
		out = append(out, a.Prefix.Addr())
	}
	return out
}

// attachHostShortcut puts the shortcut's other program on the host end, which is down.
func (a *apply) attachHostShortcut() error {
	if !a.joined {
		return nil
	}
	return a.shortcut.AttachHost(a.rec.Host.Index, xdp.Method(a.rec.Redirect))
}

// publish makes the attachment's addresses targets of the shortcut, or sees to it that they are not another one's. It comes
// last.
func (a *apply) publish(bpffs string) error {
	if !a.joined {
		return xdp.DropStale(bpffs, prefixesOf(a.rec))
	}
	if err := a.ensureUplink(); err != nil {
		return err
	}
	// What it pushes on the undo stack it has pushed with Join.
	err := a.shortcut.Publish(uint32(a.rec.TAP.Index))
	a.trace.Mark("publish")
	return err
}

// ensureUplink makes the device that the configuration names an uplink, where it is none yet: it is shared, and stays.
func (a *apply) ensureUplink() error {
	name := a.plan.Uplink
	if name == "" {
		return nil
	}
	link, err := a.host.LinkByName(name)
	if rtnl.Gone(err) {
		return withCode(codeConfig, fmt.Errorf("xdp.uplink: the node has no device %q", name))
	}
	if err != nil {
		return fmt.Errorf("xdp.uplink: look up %q: %w", name, err)
	}
	at := link.Attrs()
	if at.Xdp != nil && at.Xdp.Attached {
		is, lookErr := a.shortcut.TAPState(at.Index)
		if lookErr != nil {
			return fmt.Errorf("xdp.uplink: %q: %w", name, lookErr)
		}
		// A program that is of no pinned version reads maps that no later ADD writes to.
		if !is.Foreign && is.Version != "" {
			return nil
		}
	}
	mode, err := a.shortcut.AttachUplink(xdp.Uplink{Index: at.Index, MAC: at.HardwareAddr, MTU: at.MTU}, xdp.ModeAuto)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY) {
		return nil // another ADD was first
	}
	var foreign *xdp.ForeignProgramError
	if errors.As(err, &foreign) {
		return withCode(CodeBusy, fmt.Errorf("xdp.uplink: %q: %w", name, err))
	}
	if err != nil {
		return fmt.Errorf("xdp.uplink: %q: %w", name, err)
	}
	fmt.Fprintf(os.Stderr, "tapir: %q is an uplink of the shortcut now, in mode %s; see \"tapirctl xdp uplink status\"\n", name, mode)
	return nil
}

// withdraw takes the attachment's addresses out of the shortcut, before its devices go.
func (p *plugin) withdraw(rec state.Attachment, recorded bool) error {
	return p.inShortcut(rec, recorded, func(s *xdp.Shortcut) error {
		if tap := tapIndex(rec); tap != 0 {
			return s.Withdraw(tap, addressesOf(rec)...)
		}
		return nil
	})
}

// leave removes the attachment's entries in the shortcut, after its devices are gone.
func (p *plugin) leave(rec state.Attachment, recorded bool, indexes []uint32) error {
	if tap := tapIndex(rec); tap != 0 {
		indexes = append(indexes, tap)
	}
	return p.inShortcut(rec, recorded, func(s *xdp.Shortcut) error { return s.Leave(indexes...) })
}

// inShortcut calls fn with the maps that the attachment may have entries in: none where it never had a part, else those of all
// layouts, since who moved it from one to another may have been killed between them.
func (p *plugin) inShortcut(rec state.Attachment, recorded bool, fn func(*xdp.Shortcut) error) error {
	if recorded && !rec.Rebuilt && rec.XDP.Layout == "" {
		return nil
	}
	layouts, err := xdp.Layouts(p.bpffs)
	if err != nil {
		return err
	}
	var errs []error
	for _, layout := range layouts {
		s, err := xdp.OpenLayout(p.bpffs, layout)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = errors.Join(fn(s), s.Close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// tapIndex is the TAP's ifindex; a record that was rebuilt knows that of the host end, in the same block.
func tapIndex(rec state.Attachment) uint32 {
	if rec.TAP.Index == 0 && rec.Host.Index != 0 {
		return uint32(rec.Host.Index) - offsetHost + offsetTAP
	}
	return uint32(rec.TAP.Index)
}
