package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/plugin"
	"github.com/tapir-cni/tapir/xdp"
)

func newXDP(o *options) *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "xdp [CONTAINER-ID[/IFNAME]]",
		Short: "Show the shortcut between guests: modes, counters and why frames did not take it",
		Long: `Show of each attachment with a TAP what is on its XDP hook, and why nothing is, then what became of its guest's frames: TAKEN went the
short way, PASSED the default one, and the second table says why. NATIVE and GENERIC are the runs of the program on the TAP. docs/xdp.md
explains each reason. With --watch RATE is frames a second since the last look.`,
		Example: "  tapirctl xdp 7f3a/eth0 --watch 1s\n  tapirctl xdp flag 7f3a\n  tapirctl xdp route add 10.9.1.0/24 via 192.168.0.2",
		Args:    usageArgs(cobra.MaximumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			args, watch, err := oneWatched(cmd, args, &every)
			if err != nil {
				return err
			}
			if !watch {
				return showXDP(cmd, o, args, nil)
			}
			return watchXDP(cmd, o, args, every)
		},
	}
	watchFlag(cmd, &every)
	cmd.AddCommand(newXDPOn(o), newXDPOff(o), newXDPFlag(o, true), newXDPFlag(o, false), newXDPRoute(o), newXDPUplink(o), newXDPUpgrade(o))
	return cmd
}

func watchXDP(cmd *cobra.Command, o *options, args []string, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := &look{}
	for first := true; ; first = false {
		err := showXDP(cmd, o, args, last)
		if err != nil && first {
			return err
		}
		if err != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "tapirctl:", err)
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}

// look is what was seen at a time.
type look struct {
	at   time.Time
	rows []xdpRow
}

// showXDP shows once; against last, which it replaces, where that is given.
func showXDP(cmd *cobra.Command, o *options, args []string, last *look) error {
	all, err := chosen(cmd.Context(), o, args)
	if err != nil {
		return err
	}
	rows, err := xdpRows(o, all)
	if err != nil {
		return err
	}
	now := look{time.Now(), rows}
	out := cmd.OutOrStdout()
	switch {
	case o.output == "json" && last != nil:
		err = json.NewEncoder(out).Encode(rows)
	case o.output == "json":
		err = printJSON(out, rows)
	default:
		err = printXDP(out, now, last)
	}
	if last != nil {
		*last = now
	}
	return err
}

func printXDP(out io.Writer, now look, last *look) error {
	if last != nil {
		fmt.Fprintln(out, now.at.Format(time.RFC3339))
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CONTAINER\tIFNAME\tTAP\tMODE\tFLAG\tNATIVE\tGENERIC\tTAKEN\tPASSED\tDROPPED\tNOTE")
	for _, r := range now.rows {
		flag := "-"
		if r.Flagged {
			flag = "no shortcut"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", short(r.ContainerID), r.IfName, r.TAP, r.Mode, flag,
			r.Native, r.Generic, r.Taken, r.Passed, r.Dropped, dash(r.Why))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := "\nCONTAINER\tIFNAME\tREASON\tFRAMES\tBYTES"
	if last != nil {
		head += "\tRATE"
	}
	fmt.Fprintln(w, head)
	for _, r := range now.rows {
		for _, c := range r.byReason() {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d", short(r.ContainerID), r.IfName, c.name, c.Frames, c.Bytes)
			if last != nil {
				fmt.Fprintf(w, "\t%s", last.rate(now.at, r, c))
			}
			fmt.Fprintln(w)
		}
	}
	return w.Flush()
}

// rate is frames a second since the last look, "-" where there was none.
func (l *look) rate(now time.Time, r xdpRow, c namedCounter) string {
	i := slices.IndexFunc(l.rows, func(o xdpRow) bool { return o.Key == r.Key && o.Ifindex == r.Ifindex })
	if i < 0 || c.Frames < l.rows[i].Counters[c.name].Frames {
		return "-"
	}
	return strconv.FormatFloat(float64(c.Frames-l.rows[i].Counters[c.name].Frames)/now.Sub(l.at).Seconds(), 'f', 0, 64)
}

func newXDPOn(o *options) *cobra.Command {
	var mode string
	cmd := &cobra.Command{
		Use:   "on CONTAINER-ID[/IFNAME]",
		Short: "Give a running attachment its part in the shortcut",
		Long: `Attach the programs to a running attachment and make its addresses targets. Flows that conntrack knows keep the default path. What the
configuration wants is not changed.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{string(xdp.ModeAuto), string(xdp.ModeNative), string(xdp.ModeGeneric)}, mode) {
				return usageError{fmt.Errorf("--mode: want auto, native or generic, got %q", mode)}
			}
			return setXDP(cmd, o, args[0], xdp.Mode(mode))
		},
	}
	cmd.Flags().StringVar(&mode, "mode", string(xdp.ModeAuto), "auto, native or generic")
	return cmd
}

func newXDPOff(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "off CONTAINER-ID[/IFNAME]",
		Short: "Take a running attachment out of the shortcut",
		Long:  "Take the programs off a running attachment. Its flows go on by the default path, where conntrack picks them up.",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE:  func(cmd *cobra.Command, args []string) error { return setXDP(cmd, o, args[0], xdp.ModeOff) },
	}
}

func setXDP(cmd *cobra.Command, o *options, name string, mode xdp.Mode) error {
	a, err := find(cmd.Context(), o, name)
	if err != nil {
		return err
	}
	now, err := plugin.Shortcuts{StateDir: a.dir, BPFFS: o.bpffs}.Set(cmd.Context(), a.Key, mode)
	if err != nil {
		return err
	}
	if now.Mode == "" {
		now.Mode = string(xdp.ModeOff)
	}
	return say(cmd, o, map[string]string{"attachment": a.Key.String(), "mode": now.Mode}, "%s: %s", a.Key, now.Mode)
}

func newXDPFlag(o *options, flag bool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "flag CONTAINER-ID[/IFNAME]",
		Short: "Keep an attachment's frames off the shortcut: for pods that a policy selects",
		Long: `Flag an attachment "no shortcut": from the next frame on, in the middle of flows, all it sends and all it gets takes the default path,
where policies hold. The programs stay where they are.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := find(cmd.Context(), o, args[0])
			if err != nil {
				return err
			}
			if err := (plugin.Shortcuts{StateDir: a.dir, BPFFS: o.bpffs}).Flag(cmd.Context(), a.Key, flag); err != nil {
				return err
			}
			return say(cmd, o, map[string]any{"attachment": a.Key.String(), "flagged": flag}, "%s: flagged: %t", a.Key, flag)
		},
	}
	if !flag {
		cmd.Use, cmd.Short = "unflag CONTAINER-ID[/IFNAME]", "Let an attachment's frames take the shortcut again"
		cmd.Long = "Take the flag away. Flows that conntrack knows by now keep the default path. Bandwidth limits keep an attachment off the shortcut all the same."
	}
	return cmd
}

func newXDPUpgrade(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "upgrade",
		Short: "Put this version's programs onto all devices of the shortcut",
		Long: `Replace the shortcut's programs of other versions on every TAP, host end and uplink, each in one step: no frame meets a device without
its program. What has this version's already is left alone.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			changed, err := upgradeXDP(cmd.Context(), o)
			return errors.Join(err, say(cmd, o, map[string]any{"changed": changed}, "%d attachments and uplinks got this version's programs: %v", len(changed), changed))
		},
	}
}

// upgradeXDP gives the names of what it changed.
func upgradeXDP(ctx context.Context, o *options) ([]string, error) {
	changed := []string{}
	all, err := attachments(ctx, o)
	errs := []error{err}
	for _, a := range all {
		if a.XDP.Mode == "" {
			continue
		}
		did, didErr := plugin.Shortcuts{StateDir: a.dir, BPFFS: o.bpffs}.Upgrade(ctx, a.Key)
		if errs = append(errs, didErr); did {
			changed = append(changed, a.Key.String())
		}
	}
	s, err := openMaps(o)
	if s == nil {
		return changed, errors.Join(append(errs, err)...)
	}
	defer s.Close()
	devices, err := plugin.Uplinks(s)
	if errs = append(errs, err); len(devices) == 0 {
		return changed, errors.Join(errs...)
	}
	own, err := xdp.EnsureShortcut(o.bpffs)
	if err != nil {
		return changed, errors.Join(append(errs, err)...)
	}
	defer own.Close()
	for _, d := range devices {
		did, err := own.Upgrade(d.Index)
		if errs = append(errs, err); did {
			changed = append(changed, d.Name)
		}
	}
	return changed, errors.Join(errs...)
}

// say prints what a command did, for people or for machines.
func say(cmd *cobra.Command, o *options, v any, format string, args ...any) error {
	if o.output == "json" {
		return printJSON(cmd.OutOrStdout(), v)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...)
	return err
}
