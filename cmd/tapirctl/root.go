package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/internal/version"
	"github.com/tapir-cni/tapir/plugin"
	"github.com/tapir-cni/tapir/xdp"
)

// options are the flags of every command.
type options struct {
	stateDirs []string
	bpffs     string
	output    string
}

func newRoot() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:           "tapirctl",
		Short:         "See, explain and clean up what tapir does on this node",
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usageArgs(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if formats := []string{"table", "json"}; !slices.Contains(formats, o.output) {
				return usageError{fmt.Errorf("--output: want one of %s, got %q", strings.Join(formats, ", "), o.output)}
			}
			return nil
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := root.PersistentFlags()
	f.StringSliceVar(&o.stateDirs, "state-dir", []string{plugin.DefaultStateDir}, "folder of attachments and leases; give every one that a configuration of this node names")
	f.StringVar(&o.bpffs, "bpffs", xdp.DefaultDir, "folder of the pinned programs")
	f.StringVarP(&o.output, "output", "o", "table", "table or json")
	root.AddCommand(newList(o), newQueues(o), newDoctor(o), newGuestConfig(o), newQuickstart(o), newGC(o), newCleanup(o),
		newExec(o), newExecChild(), newFDs(o), newXDP(o), newTrace(o), newTop(o), newInspect(o), newBundle(o))
	return root
}

// printJSON writes v for machines.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
