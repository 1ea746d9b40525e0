package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/agent/broker"
	"github.com/tapir-cni/tapir/agent/install"
	"github.com/tapir-cni/tapir/plugin"
)

// leaving is how tapir is taken off the node.
type leaving struct {
	force, keepSysctls bool
	wait               time.Duration
}

// waitStep is the time between two looks at what is left.
const waitStep = time.Second

func newUninstall(load func() (config, error)) *cobra.Command {
	var l leaving
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take off this node what tapird installed",
		Long: `Have no new pod get tapir, and where no attachment is left take everything away: the network configuration, what the cluster's part made, the programs, and what
attachments shared (nftables table, pinned programs, state, changed sysctls). Running pods keep their network.

The runtime needs configuration and programs for each DEL. While there are attachments tapir's own configuration stays, in a form that refuses ADD and STATUS and
serves DEL, so that the node is NotReady, and the programs stay; tapir is taken out of another network's configuration at once. Uninstall again when the pods
are gone, or give --wait.

It refuses while a tapird runs, which would bring everything back.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.NoArgs(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := load()
			if err != nil {
				return err
			}
			return uninstall(cmd.Context(), cmd.OutOrStdout(), c, l)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&l.force, "force", false, "remove the programs though attachments are left: their DELs fail until the programs are there again")
	f.DurationVar(&l.wait, "wait", 0, "how long to wait for the last attachment to go")
	f.BoolVar(&l.keepSysctls, "keep-sysctls", false, "leave forwarding on, for other software that relies on it by now")
	return cmd
}

func uninstall(ctx context.Context, out io.Writer, c config, l leaving) (err error) {
	if !c.Install.Enabled() {
		return usageError{errors.New(`uninstall: the configuration has no "install.from"; give the one that tapird had`)}
	}
	socket, err := broker.Listen(c.Socket)
	if err != nil {
		return fmt.Errorf("uninstall: %w; end tapird first, which would bring everything back", err)
	}
	defer func() {
		err = errors.Join(err, socket.Remove())
		_ = os.Remove(filepath.Dir(c.Socket)) // where nothing is left in it
	}()
	did, err := install.Retire(c.Install)
	say(out, did)
	if err != nil {
		return err
	}
	why, err := left(ctx, c, l.wait)
	if err != nil {
		return fmt.Errorf("see whether attachments are left: %w; the programs stay", err)
	}
	if why != "" && !l.force {
		fmt.Fprintf(out, "kept the programs in %s: %s, and the runtime calls them for each DEL; uninstall again when the pods are gone\n", c.Install.WithDefaults().CNIBinDir, why)
		return nil
	}
	did, err = install.RemoveConf(c.Install)
	say(out, did)
	if err = errors.Join(err, leave(c.Cluster, out)); err != nil {
		return err // the programs are still named in a configuration
	}
	if why == "" {
		if err = cleanUp(ctx, out, c, l.keepSysctls); err != nil {
			return fmt.Errorf("clean up: %w; the programs stay", err)
		}
	}
	did, err = install.RemovePrograms(c.Install)
	say(out, did)
	return err
}

// cleanUp removes what attachments shared.
func cleanUp(ctx context.Context, out io.Writer, c config, keepSysctls bool) error {
	report, err := plugin.Cleaner{StateDirs: c.StateDirs, BPFFS: c.BPFFS, KeepSysctls: keepSysctls}.Run(ctx)
	for _, r := range report.Removed {
		fmt.Fprintf(out, "removed %s %s: %s\n", r.Kind, r.Name, r.Why)
	}
	for _, r := range report.Kept {
		fmt.Fprintf(out, "kept %s %s: %s\n", r.Kind, r.Name, r.Why)
	}
	return err
}

func say(out io.Writer, did []string) {
	for _, what := range did {
		fmt.Fprintln(out, what)
	}
}

// left says what still needs the programs, or nothing, when that is gone or the wait is over. Dead attachments count, since the runtime may not have called
// DEL for them yet, but not where tapir was in another network's configuration: it is not called for them any more.
func left(ctx context.Context, c config, wait time.Duration) (string, error) {
	for until := time.Now().Add(wait); ; {
		r, err := plugin.Cleaner{StateDirs: c.StateDirs, BPFFS: c.BPFFS, DryRun: true}.Run(ctx)
		if err != nil {
			return "", err
		}
		dead := 0
		for _, one := range r.Removed {
			if one.Kind == "attachment" && c.Install.Mode != install.ModeChained {
				dead++
			}
		}
		why := ""
		switch {
		case r.Live+dead > 0:
			why = fmt.Sprintf("%d attachments are left, %d of them dead", r.Live+dead, dead)
		case len(r.Kept) > 0:
			why = r.Kept[0].Why
		}
		if why == "" || !time.Now().Before(until) {
			return why, nil
		}
		select {
		case <-ctx.Done():
			return why, ctx.Err()
		case <-time.After(waitStep):
		}
	}
}
