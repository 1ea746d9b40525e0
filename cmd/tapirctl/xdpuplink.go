package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/agent/uplink"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/plugin"
	"github.com/tapir-cni/tapir/xdp"
)

func newXDPUplink(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "uplink",
		Short: "The node's NIC as an end of the shortcut",
		Long: `An uplink has a program on its XDP hook that leads frames from other nodes straight to TAPs, and routes (tapirctl xdp route) lead to
other nodes by it. What that costs the NIC is said when it is attached.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var mode string
	attach := &cobra.Command{
		Use: "attach DEV", Short: "Make a device an uplink, and say what it can do",
		Long: "Attach natively where the driver can, else generically, and say which and why. A program of other software is never replaced.",
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{string(xdp.ModeAuto), string(xdp.ModeNative), string(xdp.ModeGeneric)}, mode) {
				return usageError{fmt.Errorf("--mode: want auto, native or generic, got %q", mode)}
			}
			return attachUplink(cmd, o, args[0], xdp.Mode(mode))
		},
	}
	attach.Flags().StringVar(&mode, "mode", string(xdp.ModeAuto), "auto, native or generic")
	cmd.AddCommand(attach,
		&cobra.Command{
			Use: "detach DEV", Short: "Make a device no uplink any more; one that is none is no error",
			Args: usageArgs(cobra.ExactArgs(1)), RunE: func(cmd *cobra.Command, args []string) error { return detachUplink(cmd, o, args[0]) },
		},
		&cobra.Command{
			Use: "status [DEV]", Short: "Show the uplinks, or what a device could do as one",
			Args: usageArgs(cobra.MaximumNArgs(1)), RunE: func(cmd *cobra.Command, args []string) error { return uplinkStatus(cmd, o, args) },
		},
	)
	return cmd
}

// uplinkRow is what is known of a device as an uplink.
type uplinkRow struct {
	Name    string                 `json:"name"`
	Driver  string                 `json:"kind"` // of the link, such as veth; device: a NIC
	Mode    string                 `json:"mode"` // off, native, generic, foreign
	Current bool                   `json:"current"`
	MTU     int                    `json:"mtu"`
	MaxMTU  int                    `json:"maxMTU,omitempty"` // that the driver takes as it is now
	Native  *xdp.XDPFeatures       `json:"native,omitempty"` // what the driver can do in native mode, where the kernel tells
	Lost    []string               `json:"lost,omitempty"`   // offloads that attaching took away
	Notes   []string               `json:"notes,omitempty"`
	Frames  map[string]xdp.Counter `json:"counters,omitempty"`
}

// lookAtUplink reads what there is of a device. s may be nil.
func lookAtUplink(s *xdp.Shortcut, conn *rtnl.Conn, name string) (uplinkRow, error) {
	row := uplinkRow{Name: name, Mode: string(xdp.ModeOff)}
	link, err := conn.LinkByName(name)
	if err != nil {
		return row, fmt.Errorf("look up %q: %w", name, err)
	}
	row.Driver, row.MTU = link.Type(), link.Attrs().MTU
	if row.MaxMTU, err = conn.MaxMTU(link.Attrs().Index); err != nil {
		return row, err
	}
	features, err := xdp.FeaturesOf(link.Attrs().Index)
	if err != nil {
		row.Notes = append(row.Notes, "what the driver can do in native mode is not told: "+err.Error())
	} else {
		row.Native = &features
		row.Notes = append(row.Notes, featureNotes(features)...)
	}
	if s == nil {
		return row, nil
	}
	is, err := s.TAPState(link.Attrs().Index)
	if err != nil {
		return row, err
	}
	row.Mode, row.Current = string(is.Mode), is.Current
	if is.Foreign {
		row.Mode = "foreign"
		row.Notes = append(row.Notes, fmt.Sprintf("has XDP program %q of another software; detach it first", is.Name))
	}
	if counters, err := s.ShortcutCounters(uint32(link.Attrs().Index)); err == nil {
		row.Frames = map[string]xdp.Counter{}
		for reason, c := range counters {
			row.Frames[reason.String()] = c
		}
	}
	return row, nil
}

func featureNotes(f xdp.XDPFeatures) []string {
	var notes []string
	if !f.Native {
		notes = append(notes, "the driver has no native XDP: frames from it take the generic hook, after an skb is made")
	}
	if f.Native && !f.Redirect {
		notes = append(notes, "the driver's native XDP cannot redirect: attach it with --mode generic")
	}
	if !f.Transmit {
		notes = append(notes, "the driver takes no frames that XDP of a TAP sends to it: they go by the host end's tc program")
	}
	return notes
}

func attachUplink(cmd *cobra.Command, o *options, name string, mode xdp.Mode) error {
	s, err := xdp.EnsureShortcut(o.bpffs)
	if err != nil {
		return err
	}
	defer s.Close()
	conn, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	link, err := conn.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up %q: %w", name, err)
	}
	before, err := rtnl.Offloads(name)
	if err != nil {
		return err
	}
	limit, err := conn.MaxMTU(link.Attrs().Index)
	if err != nil {
		return err
	}
	u := xdp.Uplink{Index: link.Attrs().Index, MAC: link.Attrs().HardwareAddr, MTU: link.Attrs().MTU}
	notes, err := attachInMode(s, u, mode)
	if err != nil {
		return err
	}
	row, err := lookAtUplink(s, conn, name)
	if err != nil {
		return err
	}
	after, err := rtnl.Offloads(name)
	if err != nil {
		return err
	}
	for feature := range before {
		if !after[feature] {
			row.Lost = append(row.Lost, feature)
		}
	}
	slices.Sort(row.Lost)
	if row.Notes = append(notes, row.Notes...); row.MaxMTU != limit {
		row.Notes = append(row.Notes, fmt.Sprintf("the driver takes an MTU of %d at most from now on, before it took %d", row.MaxMTU, limit))
	}
	if row.Driver == "veth" && row.Mode == string(xdp.ModeNative) {
		row.Notes = append(row.Notes, "its peer sends no TSO frames any more and takes an MTU of some 3,500 at most, and GRO does not merge what goes on to the node's stack: bulk TCP to the node itself gets slower")
	}
	return errors.Join(uplink.Touch(o.bpffs), printUplinks(cmd, o, []uplinkRow{row}))
}

// attachInMode tries native first in mode auto, and notes what the driver said where it would not.
func attachInMode(s *xdp.Shortcut, u xdp.Uplink, mode xdp.Mode) (notes []string, err error) {
	var foreign *xdp.ForeignProgramError
	if mode != xdp.ModeAuto {
		_, err = s.AttachUplink(u, mode)
		return nil, err
	}
	_, native := s.AttachUplink(u, xdp.ModeNative)
	if native == nil || errors.As(native, &foreign) {
		return nil, native
	}
	if _, err = s.AttachUplink(u, xdp.ModeGeneric); err != nil {
		return nil, errors.Join(native, err)
	}
	return []string{"not native: " + native.Error()}, nil
}

func detachUplink(cmd *cobra.Command, o *options, name string) error {
	s, err := openMaps(o)
	if err != nil {
		return err
	}
	if s != nil {
		defer s.Close()
		conn, err := rtnl.Open()
		if err != nil {
			return err
		}
		defer conn.Close()
		link, err := conn.LinkByName(name)
		if err != nil {
			return fmt.Errorf("look up %q: %w", name, err)
		}
		if err := s.DetachUplink(link.Attrs().Index); err != nil {
			return err
		}
		if err := uplink.Touch(o.bpffs); err != nil {
			return err
		}
	}
	return say(cmd, o, map[string]string{"detached": name}, "%s: no uplink", name)
}

func uplinkStatus(cmd *cobra.Command, o *options, names []string) error {
	s, err := openMaps(o)
	if err != nil {
		return err
	}
	if s != nil {
		defer s.Close()
	}
	if len(names) == 0 && s != nil {
		devices, findErr := plugin.Uplinks(s)
		if findErr != nil {
			return findErr
		}
		for _, d := range devices {
			names = append(names, d.Name)
		}
	}
	conn, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	rows := []uplinkRow{}
	for _, name := range names {
		row, err := lookAtUplink(s, conn, name)
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	return printUplinks(cmd, o, rows)
}

func printUplinks(cmd *cobra.Command, o *options, rows []uplinkRow) error {
	out := cmd.OutOrStdout()
	if o.output == "json" {
		return printJSON(out, rows)
	}
	if len(rows) == 0 {
		fmt.Fprintln(out, "no uplink; \"tapirctl xdp uplink attach DEV\" makes one")
	}
	for _, r := range rows {
		limit := ""
		if r.MaxMTU != 0 {
			limit = fmt.Sprintf(" (at most %d)", r.MaxMTU)
		}
		fmt.Fprintf(out, "%s: %s, %s, MTU %d%s\n", r.Name, r.Driver, r.Mode, r.MTU, limit)
		if len(r.Lost) > 0 {
			fmt.Fprintf(out, "  lost: %s\n", strings.Join(r.Lost, ", "))
		}
		for _, n := range r.Notes {
			fmt.Fprintf(out, "  %s\n", n)
		}
		for _, reason := range slices.Sorted(maps.Keys(r.Frames)) {
			fmt.Fprintf(out, "  %s: %d frames, %d bytes\n", reason, r.Frames[reason].Frames, r.Frames[reason].Bytes)
		}
	}
	return nil
}
