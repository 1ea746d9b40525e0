package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/internal/microvm"
	"github.com/tapir-cni/tapir/internal/quickstart"
	"github.com/tapir-cni/tapir/plugin"
)

func newQuickstart(o *options) *cobra.Command {
	var q quickstart.Options
	var kernel string
	cmd := &cobra.Command{
		Use:   "quickstart",
		Short: "Boot two microVMs on two TAPs on this machine, with no cluster, and show that they work",
		Long: `Make two sandboxes through the CNI protocol, boot a microVM in each on its TAP, configure the guests from the CNI
result alone, ping and move data between guests, node and an outside world over IPv4 and IPv6, print what was made and
measured, delete everything and prove that nothing is left.

It runs in network and mount namespaces of its own: this machine's interfaces, sysctls, /run and bpffs are not touched.
Missing Debian packages are installed. Ctrl-C cleans up at any moment.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			q.Out, q.Err, q.JSON = cmd.OutOrStdout(), cmd.ErrOrStderr(), o.output == "json"
			q.Kernel = microvm.Series(kernel)
			// On the quick start's own node, where the folders are the usual ones.
			q.Cleanup = func(ctx context.Context) error {
				_, err := plugin.Cleaner{StateDirs: o.stateDirs, BPFFS: o.bpffs}.Run(ctx)
				return err
			}
			return quickstart.Run(cmd.Context(), q)
		},
	}
	f := cmd.Flags()
	f.IntVar(&q.Queues, "queues", 2, "queue pairs of each TAP")
	f.BoolVar(&q.Keep, "keep", false, "leave all running until Ctrl-C")
	f.DurationVar(&q.Timeout, "timeout", 3*time.Minute, "time for everything after the downloads")
	f.StringVar(&q.BinDir, "bin-dir", "", "where tapir, tapir-ipam and tapir-guest are (default: beside tapirctl)")
	f.StringVar(&q.CacheDir, "cache-dir", "", "of kernels and images (default: the user's cache folder)")
	f.StringVar(&kernel, "kernel", "", "series of the guest's Debian kernel: 6.1 or 6.12 (default 6.1)")
	return cmd
}
