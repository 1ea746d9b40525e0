package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/plugin"
)

func newCleanup(o *options) *cobra.Command {
	var yes, keepSysctls bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what dead attachments left, and all of tapir where none is alive",
		Long: `Remove attachments whose sandbox is gone or whose ADD did not finish. Where no attachment is left, also remove the
nftables table, the pinned programs and the state, and put back every sysctl that tapir changed.

Without --yes nothing is done: the command prints what it would do.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := plugin.Cleaner{StateDirs: o.stateDirs, BPFFS: o.bpffs, DryRun: !yes, KeepSysctls: keepSysctls}
			report, err := c.Run(cmd.Context())
			return printCleaned(cmd, o, report, "cleanup", err)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	cmd.Flags().BoolVar(&keepSysctls, "keep-sysctls", false, "leave forwarding on, for other software that relies on it by now")
	return cmd
}

// printCleaned prints what a cleaning command did, or would do, and then gives back its error.
func printCleaned(cmd *cobra.Command, o *options, report plugin.Report, command string, err error) error {
	if o.output == "json" {
		return errors.Join(printJSON(cmd.OutOrStdout(), report), err)
	}
	return errors.Join(printReport(cmd, report, command), err)
}

func printReport(cmd *cobra.Command, r plugin.Report, command string) error {
	out := cmd.OutOrStdout()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, l := range r.Removed {
		verb := map[bool]string{false: "removed", true: "would remove"}[r.DryRun]
		if l.Kind == "sysctl" {
			verb = map[bool]string{false: "set back", true: "would set back"}[r.DryRun]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", verb, l.Kind, l.Name, l.Why)
	}
	for _, l := range r.Kept {
		fmt.Fprintf(w, "kept\t%s\t%s\t%s\n", l.Kind, l.Name, l.Why)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	switch {
	case len(r.Removed) == 0 && len(r.Kept) == 0:
		fmt.Fprintln(out, "nothing to clean up")
	case r.DryRun && len(r.Removed) > 0:
		fmt.Fprintf(out, "nothing was done; \"tapirctl %s --yes\" does it\n", command)
	}
	return nil
}
