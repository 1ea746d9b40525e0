package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// xdpRow is an attachment's part in the shortcut, as the kernel has it.
type xdpRow struct {
	state.Key
	TAP     string `json:"tap"`
	Ifindex int    `json:"ifindex"`
	Wanted  string `json:"wanted"` // by the configuration
	Mode    string `json:"mode"`   // off, native, generic; foreign: another software's program; unknown
	Why     string `json:"why,omitempty"`
	Version string `json:"version,omitempty"` // of the program, where it is pinned
	Current bool   `json:"current"`           // it is this tapirctl's
	Flagged bool   `json:"flagged"`
	Limited bool   `json:"limited"` // by bandwidth, and so flagged
	Native  uint64 `json:"native"`  // runs of the program on the TAP
	Generic uint64 `json:"generic"`
	Taken   uint64 `json:"taken"` // frames
	Passed  uint64 `json:"passed"`
	Dropped uint64 `json:"dropped"`

	Counters map[string]xdp.Counter `json:"counters"` // by hook and reason, those above 0
}

type namedCounter struct {
	name string
	xdp.Counter
}

// byReason are the counters, most frames first.
func (r xdpRow) byReason() []namedCounter {
	out := make([]namedCounter, 0, len(r.Counters))
	for name, c := range r.Counters {
		out = append(out, namedCounter{name, c})
	}
	slices.SortFunc(out, func(a, b namedCounter) int {
		if a.Frames != b.Frames {
			return map[bool]int{true: -1, false: 1}[a.Frames > b.Frames]
		}
		return strings.Compare(a.name, b.name)
	})
	return out
}

// openMaps opens the pinned maps of this version's layout; nil where there are none.
func openMaps(o *options) (*xdp.Shortcut, error) {
	s, err := xdp.OpenLayout(o.bpffs, xdp.ShortcutLayout())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return s, err
}

// xdpRows are those of the attachments that have a TAP.
func xdpRows(o *options, all []recorded) ([]xdpRow, error) {
	s, err := openMaps(o)
	if err != nil {
		return nil, err
	}
	if s != nil {
		defer s.Close()
	}
	rows := []xdpRow{}
	for _, a := range all {
		if a.TAP.Name != "" && a.Status == state.Ready {
			rows = append(rows, xdpRowOf(s, a))
		}
	}
	return rows, nil
}

func xdpRowOf(s *xdp.Shortcut, a recorded) xdpRow {
	r := xdpRow{
		Key: a.Key, TAP: a.TAP.Name, Ifindex: a.TAP.Index, Wanted: a.XDP.Wanted, Mode: string(xdp.ModeOff), Why: a.XDP.Why,
		Flagged: a.XDP.Flagged || a.XDP.Policy || a.Bandwidth != nil && a.XDP.Mode != "", Limited: a.Bandwidth != nil, Counters: map[string]xdp.Counter{},
	}
	if r.Wanted == "" {
		r.Wanted = string(xdp.ModeOff)
	}
	switch {
	case r.Why != "":
	case a.Chained:
		r.Why = "on another plugin's interface"
	case a.OnHost():
		r.Why = "its TAP is in the host's netns"
	case a.XDP.Mode == "":
		r.Why = "xdp.mode is off"
	case r.Limited:
		r.Why = "bandwidth limits keep it on the default path"
	}
	if s == nil || a.XDP.Mode == "" {
		return r
	}
	if a.XDP.Layout != s.Layout() {
		r.Mode, r.Why = "unknown", `it is in another version's maps; "tapirctl xdp upgrade" moves it`
		return r
	}
	r.readHook(s, a)
	if p, err := s.Participant(uint32(a.TAP.Index)); err == nil {
		r.Flagged = p.NoShortcut
	} else {
		r.Why = err.Error()
	}
	r.readCounters(s)
	return r
}

// readHook looks what is on the TAP.
func (r *xdpRow) readHook(s *xdp.Shortcut, a recorded) {
	netns, err := ns.GetNS(a.Netns)
	if err != nil {
		r.Mode, r.Why = "unknown", err.Error()
		return
	}
	defer netns.Close()
	var is xdp.DeviceState
	err = netns.Do(func(ns.NetNS) (err error) { is, err = s.TAPState(a.TAP.Index); return err })
	switch {
	case err != nil:
		r.Mode, r.Why = "unknown", err.Error()
	case is.Foreign:
		r.Mode, r.Why = "foreign", fmt.Sprintf("XDP program %q of another software", is.Name)
	case is.Mode == xdp.ModeOff:
		r.Mode, r.Why = string(is.Mode), "somebody took the program off"
	default:
		r.Mode, r.Version, r.Current = string(is.Mode), is.Version, is.Current
	}
}

func (r *xdpRow) readCounters(s *xdp.Shortcut) {
	counters, err := s.ShortcutCounters(uint32(r.Ifindex))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.Why = err.Error()
		return
	}
	var runs uint64
	for reason, c := range counters {
		r.Counters[reason.String()] = c
		atTAP := strings.HasPrefix(reason.String(), "xdp_")
		switch {
		case reason.Beside():
			continue
		case reason.Taken():
			r.Taken += c.Frames
		case reason.Dropped():
			r.Dropped += c.Frames
		case !atTAP: // what passes at the TAP is seen again on the host end
			r.Passed += c.Frames
		}
		if atTAP {
			runs += c.Frames
		}
	}
	if r.Mode == string(xdp.ModeGeneric) {
		r.Generic = runs
		return
	}
	r.Generic = counters[genericReason].Frames
	r.Native = runs - r.Generic
}

// genericReason is of frames whose run was a generic one: the program on the TAP leaves them to tc.
var genericReason = func() xdp.ShortcutReason {
	all := xdp.ShortcutReasons()
	return all[slices.IndexFunc(all, func(r xdp.ShortcutReason) bool { return r.String() == "xdp_pass_generic" })]
}()
