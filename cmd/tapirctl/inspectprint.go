package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/tapir-cni/tapir/agent/page"
	"github.com/tapir-cni/tapir/internal/links"
)

// print writes for people: what is wrong first.
func (v *inspected) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	section := func(name string) { fmt.Fprintf(w, "\n%s\n", strings.ToUpper(name)) }
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	r := v.Record
	fmt.Fprintf(w, "%s\n", r.Key)
	section("what looks wrong")
	for _, f := range v.Wrong {
		line(f.Verdict, "%s: %s", f.Check, f.Detail)
		if f.Advice != "" {
			line("", "→ %s", f.Advice)
		}
	}
	if len(v.Wrong) == 0 {
		fmt.Fprintln(w, "  nothing")
	}
	section("record")
	line("status", "%s, %s old", r.Status, age(r.Created))
	if r.PodName != "" {
		line("pod", "%s/%s", r.PodNamespace, r.PodName)
	}
	line("sandbox", "%s", dash(r.Netns))
	line("kind", "%s, for %s, placement %s", page.KindOf(r), r.VMM, r.Placement)
	line("guest", "MAC %s, MTU %d, queues %d", r.GuestMAC, r.MTU, r.Queues)
	for _, a := range r.Addresses {
		line("address", "%s, gateway %s", a.Prefix, a.Gateway)
	}
	for _, a := range r.Guest {
		line("inside", "%s, gateway %s, in place of the address of that family", a.Prefix, a.Gateway)
	}
	if v.Lease != nil {
		line("lease", "since %s, rests for %s", v.Lease.Acquired.Format("2006-01-02 15:04:05"), v.Lease.ReuseDelay)
	}
	line("redirect", "%s, programs %s, spoof check %s", dash(r.Redirect), dash(r.Programs), yesNo(r.SpoofCheck))
	if len(v.DAN) > 0 {
		line("DAN file", "%s: %s", r.DAN, strings.Join(strings.Fields(string(v.DAN)), " "))
	}
	section("devices")
	for _, role := range slices.Sorted(maps.Keys(v.Devices)) {
		d := v.Devices[role]
		line(role, "%s (%d) in %s: MAC %s, MTU %d, up %s; qdiscs %s; addresses %s; routes %s; neighbours %s", d.Name, d.Index, or(d.Netns, "the host's netns"), d.MAC, d.MTU, yesNo(d.Up),
			list(d.Qdiscs), list(d.Addresses), list(d.Routes), list(d.Neighbours))
	}
	v.printCounters(section, line)
	section("map entries")
	for _, name := range slices.Sorted(maps.Keys(v.Entries)) {
		e := v.Entries[name]
		called := ""
		if len(e.Outside) > 0 {
			called = fmt.Sprintf(", outside %v", e.Outside)
		}
		line(name, "role %s, redirect %s to %d, spoof check %s, guest %s %v%s", e.Role, e.Redirect, e.Peer, yesNo(e.SpoofCheck), e.GuestMAC, e.Addresses, called)
	}
	section("settings that tapird changed")
	for _, c := range v.Changes {
		line(c.Setting, "%s → %s, by %s: %s", c.Before, c.After, c.Part, c.Why)
	}
	section("decisions")
	line("tapird", "%s", v.Tapird)
	for _, d := range v.Decisions {
		line(d.Time.Format("15:04:05"), "%s %s → %s: %s [%s]", d.Kind, dash(d.From), d.To, d.Why, d.Result)
	}
	if len(v.Problems) > 0 {
		section("could not be looked at")
		for _, p := range v.Problems {
			line("", "%s", strings.ReplaceAll(p, "\n", " "))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nQUEUES")
	return printQueues(out, v.Queues)
}

// printCounters writes counters, settings and the path.
func (v *inspected) printCounters(section func(string), line func(name, format string, args ...any)) {
	section("counters and settings")
	for _, d := range []*links.Link{v.TAP, v.PodEnd, v.HostEnd} {
		if d != nil {
			s := d.Stats
			line(d.Name, "received %d frames, %d bytes, dropped %d; sent %d frames, %d bytes, dropped %d", s.RxFrames, s.RxBytes, s.RxDropped, s.TxFrames, s.TxBytes, s.TxDropped)
		}
	}
	if v.NAPI != nil && v.TAP != nil {
		text, err := json.Marshal(v.NAPI)
		if err == nil {
			line("NAPI", "%s, ring %d", text, v.TAP.TxQueueLen)
		}
	}
	if v.Shortcut != nil {
		line("shortcut", "%s, wanted %s; %d frames took it, %d passed, %d dropped; %s", v.Shortcut.Mode, v.Shortcut.Wanted, v.Shortcut.Taken, v.Shortcut.Passed, v.Shortcut.Dropped, dash(v.Shortcut.Why))
	}
	if v.Path == nil {
		return
	}
	section("path")
	for _, way := range []struct {
		name string
		hops []page.Hop
	}{{"to the node", v.Path.ToNode}, {"to the guest", v.Path.ToGuest}, {"shortcut out", v.Path.ShortcutOut}, {"shortcut in", v.Path.ShortcutIn}} {
		var parts []string
		for _, h := range way.hops {
			parts = append(parts, hopText(h))
		}
		if len(parts) > 0 {
			line(way.name, "%s", strings.Join(parts, " → "))
		}
	}
}

func hopText(h page.Hop) string {
	text := h.Name
	if h.Counts {
		text += fmt.Sprintf(" [%d]", h.Frames)
	}
	for _, r := range h.Reasons {
		if r.Dropped {
			text += fmt.Sprintf(" (%s %d)", r.Name, r.Frames)
		}
	}
	if h.Dropped > 0 && len(h.Reasons) == 0 {
		text += fmt.Sprintf(" (dropped %d)", h.Dropped)
	}
	return text
}

func or(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

func list(all []string) string { return dash(strings.Join(all, ", ")) }
