package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// Verdicts of a check.
const (
	good    = "ok"
	limited = "limited" // works, with less than it could be
	bad     = "bad"     // does not work
)

// finding is what doctor says of one thing.
type finding struct {
	Check   string `json:"check"`
	Verdict string `json:"verdict"`
	Detail  string `json:"detail"`
	Advice  string `json:"advice,omitempty"` // what to do about it
}

func newDoctor(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor [CONTAINER-ID[/IFNAME]]",
		Short: "Tell what this kernel and node can and cannot do, and why a pod has no network",
		Long: `Check what tapir needs of this kernel and node, then every attachment, or the one named, against the kernel: devices,
flags, owner, MACs, MTU, addresses, routes, neighbours, programs; and which open queues run NAPI. Each finding says what to do about it.
Exits 3 when something does not work.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			list := nodeFindings(cmd.Context(), o)
			only := ""
			if len(args) == 1 {
				only = args[0]
			}
			more, err := attachmentFindings(cmd.Context(), o, only)
			if err != nil {
				return err
			}
			list = append(list, more...)
			if more, err = queueFindings(cmd.Context(), o, only); err != nil {
				more = []finding{{"queues", limited, err.Error(), ""}}
			}
			list = append(list, more...)
			if more, err = shortcutFindings(cmd.Context(), o, only); err != nil {
				more = append(more, finding{"shortcut", limited, err.Error(), ""})
			}
			list = append(list, more...)
			if err := printFindings(cmd, o, list); err != nil {
				return err
			}
			for _, f := range list {
				if f.Verdict == bad {
					return errFindings
				}
			}
			return nil
		},
	}
}

// nodeFindings runs the checks of the node, in the order in which an ADD would meet them.
func nodeFindings(ctx context.Context, o *options) []finding {
	var list []finding
	for _, check := range []func(context.Context, *options) finding{
		checkKernel, checkPrivileges, checkTun, checkPrograms, checkHook, checkNftables, checkIPv4, checkIPv6, checkMTU, checkState, checkShortcut, checkVhost, checkKVM,
	} {
		list = append(list, check(ctx, o))
	}
	return list
}

func printFindings(cmd *cobra.Command, o *options, list []finding) error {
	out := cmd.OutOrStdout()
	if o.output == "json" {
		return printJSON(out, list)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.Verdict, f.Check, f.Detail)
		if f.Advice != "" {
			fmt.Fprintf(w, "\t\t→ %s\n", f.Advice)
		}
	}
	return w.Flush()
}
