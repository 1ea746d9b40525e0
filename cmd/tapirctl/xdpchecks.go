package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// checkShortcut says whether "xdp.mode" could be other than off here.
func checkShortcut(_ context.Context, o *options) finding {
	const name = "shortcut"
	s, err := xdp.OpenShortcut(o.bpffs)
	if err == nil {
		_ = s.Close()
		return finding{name, good, "this version's programs are pinned under " + o.bpffs, ""}
	}
	err = xdp.HaveShortcut()
	var lacks *xdp.UnsupportedError
	switch {
	case err == nil:
		return finding{name, good, "the kernel has what its programs call; no attachment uses them yet", ""}
	case errors.As(err, &lacks):
		return finding{name, limited, err.Error(), `xdp.mode "auto" is off here, "native" and "generic" fail with code 101`}
	}
	return finding{name, limited, "whether the kernel has what its programs call: " + err.Error(), ""}
}

// shortcutFindings say of attachments whose configuration wants the shortcut what they have of it, and of routes why they are not usable.
func shortcutFindings(ctx context.Context, o *options, only string) ([]finding, error) {
	var args []string
	if only != "" {
		args = append(args, only)
	}
	all, err := chosen(ctx, o, args)
	if err != nil {
		return nil, err
	}
	rows, err := xdpRows(o, all)
	if err != nil {
		return nil, err
	}
	var list []finding
	for _, r := range rows {
		if r.Wanted == string(xdp.ModeOff) && r.Mode == string(xdp.ModeOff) {
			continue
		}
		list = append(list, shortcutFinding(r))
	}
	if only != "" {
		return list, nil
	}
	s, err := openMaps(o)
	if s == nil || err != nil {
		return list, err
	}
	defer s.Close()
	routes, err := xdpRoutes(o, s)
	if err != nil {
		return list, err
	}
	for _, r := range routes {
		if !r.Usable {
			list = append(list, finding{"shortcut to " + r.Prefix.String(), limited, "is not usable: " + r.Why, "its frames take the default path"})
		}
	}
	return list, nil
}

func shortcutFinding(r xdpRow) finding {
	name := "shortcut of " + r.Key.String()
	switch {
	case r.Mode == "foreign":
		return finding{name, limited, r.Why, "detach that program; \"tapirctl xdp on\" then attaches tapir's"}
	case r.Mode == string(xdp.ModeOff), r.Mode == "unknown":
		return finding{name, limited, fmt.Sprintf("wanted %s, is %s: %s", r.Wanted, r.Mode, r.Why), "its frames take the default path"}
	case r.Flagged:
		return finding{name, good, r.Mode + ", flagged: all its frames take the default path", ""}
	case !r.Current:
		return finding{name, limited, r.Mode + ", by another version's program", `"tapirctl xdp upgrade" replaces it`}
	}
	return finding{name, good, fmt.Sprintf("%s: %d frames took it, %d did not", r.Mode, r.Taken, r.Passed), ""}
}

// addRefused adds what XDP dropped before the programs that the counters are of.
func (l *listed) addRefused(o *options, a state.Attachment) {
	if a.XDP.Mode == "" {
		return
	}
	s, err := openMaps(o)
	if s == nil || err != nil {
		return
	}
	defer s.Close()
	refused, err := s.Refused(uint32(a.TAP.Index))
	if err != nil {
		return
	}
	for reason, c := range refused {
		sum := l.Counters[reason.String()]
		l.Counters[reason.String()] = xdp.Counter{Frames: sum.Frames + c.Frames, Bytes: sum.Bytes + c.Bytes}
		l.Dropped += c.Frames
	}
}
