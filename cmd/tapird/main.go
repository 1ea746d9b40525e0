// Command tapird is the node agent (docs/tapird.md): it hands the open queues of attachments to VMMs that take descriptors, and watches and
// measures the attachments of the node. SIGTERM and SIGINT end it when the peers that it is answering have their answer, SIGHUP reads the
// configuration anew.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/agent"
	"github.com/tapir-cni/tapir/agent/install"
	"github.com/tapir-cni/tapir/agent/reconcile"
	"github.com/tapir-cni/tapir/agent/tuner"
	"github.com/tapir-cni/tapir/internal/version"
	"github.com/tapir-cni/tapir/tap"
	"golang.org/x/sys/unix"
)

// Exit codes, those of tapirctl.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is wrong usage.
type usageError struct{ error }

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "tapird: %v; see \"tapird --help\"\n", err)
		return exitUsage
	}
	fmt.Fprintln(os.Stderr, "tapird:", err)
	return exitFailed
}

func newRoot() *cobra.Command {
	var file string
	var check, dryRun, asJSON bool
	flags := defaults()
	cmd := &cobra.Command{
		Use:   "tapird",
		Short: "The node agent of tapir",
		Long: `Watch the attachments of this node, keep the shortcut's next hops as the kernel has them, and serve a unix socket: a peer names an attachment, and gets its queues as open descriptors, with NAPI on each. uid 0 may have every
attachment's; anybody else those of the TAPs that belong to them, with the token that the attachment's file holds. docs/tapird.md
has the protocol. A flag outdoes its key in the configuration file.

SIGTERM: end when the peers that are being answered have their answer. SIGHUP: read the configuration anew, and take
from it what can change meanwhile.`,
		Version: version.String(), SilenceErrors: true, SilenceUsage: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.NoArgs(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			load := func() (config, error) { return flags.over(file, cmd.PersistentFlags().Changed) }
			c, err := load()
			if err != nil {
				return err
			}
			switch {
			case asJSON && !dryRun:
				return usageError{errors.New("--json: want --dry-run with it")}
			case check:
				return checkNode(cmd.OutOrStdout(), c)
			case dryRun:
				return printPlan(cmd.Context(), cmd.OutOrStdout(), c, asJSON)
			}
			return serve(cmd.Context(), c, load)
		},
	}
	cmd.AddCommand(newUninstall(func() (config, error) { return flags.over(file, cmd.PersistentFlags().Changed) }))
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := cmd.PersistentFlags() // of uninstall too: it must be told what tapird was told
	f.StringVar(&file, "config", "", "configuration file, JSON")
	own := cmd.Flags()
	own.BoolVar(&check, "check", false, "check the configuration and whether this node can open queues, and end")
	own.BoolVar(&dryRun, "dry-run", false, "say what would be done on this node now, do nothing, and end")
	own.BoolVar(&asJSON, "json", false, "with --dry-run: print a sample of all attachments as JSON")
	f.StringVar(&flags.Socket, "socket", flags.Socket, "path of the socket")
	f.StringSliceVar(&flags.StateDirs, "state-dir", flags.StateDirs, "folder of attachments; give every one that a configuration of this node names")
	f.DurationVar((*time.Duration)(&flags.Timeout), "timeout", flags.Timeout.Std(), "of one connection")
	f.IntVar(&flags.MaxPeers, "max-peers", flags.MaxPeers, "connections at once; a user other than root may have a quarter of them")
	f.BoolVar(&flags.Uplink, "uplink", flags.Uplink, "keep the shortcut's routes to other nodes as the kernel's routing and neighbours are")
	f.StringVar(&flags.BPFFS, "bpffs", flags.BPFFS, "folder of the pinned programs")
	f.StringVar(&flags.MetricsBind, "metrics-bind-address", flags.MetricsBind, "address and port of /metrics, /healthz and /readyz; empty: none")
	f.StringVar(&flags.PageBind, "page-bind-address", flags.PageBind, "address and port of the status page and its JSON API; empty: none")
	f.StringSliceVar(&flags.MetricsUplinks, "metrics-uplink", nil, "device of the node whose queues and page pools are among the metrics; may be given more than once")
	f.BoolVar(&flags.PProf, "pprof", false, "serve /debug/pprof there too")
	f.StringVar(&flags.Tuner, "tuner", flags.Tuner, "on: tune TAPs by what their guests send; off: give back what was tuned; dry-run: say in the log what would be tuned")
	f.StringVar(&flags.Profile, "profile", flags.Profile, "of TAPs whose pods ask for none")
	f.StringVar(&flags.Reconcile, "reconcile", flags.Reconcile, "on: remove attachments that are dead and repair what was changed; off: do not look; dry-run: say in the log what would be done")
	f.StringVar(&flags.CRIEndpoint, "cri-endpoint", "", "socket of the container runtime: attachments of pods that it does not know are dead too")
	f.DurationVar((*time.Duration)(&flags.Grace), "grace", flags.Grace.Std(), "how long a thing must look dead before it is removed")
	f.StringVar(&flags.Install.From, "install-from", "", "folder of the programs to install on this node (docs/install-agent.md); empty: nothing is installed")
	f.StringVar(&flags.Install.Mode, "install-mode", "", "cluster, chained, runtimeclass or binaries")
	f.StringVar(&flags.Install.Template, "install-template", "", "the configuration list that is installed, as a person would write it")
	f.StringVar(&flags.LogLevel, "log-level", flags.LogLevel, "debug, info, warn or error")
	f.StringVar(&flags.LogFormat, "log-format", flags.LogFormat, "text or json")
	return cmd
}

// checkNode says what would keep tapird from its work. It changes nothing.
func checkNode(out io.Writer, c config) error {
	if err := tap.Usable(); err != nil {
		return err
	}
	for _, dir := range c.StateDirs {
		if st, err := os.Stat(dir); err == nil && !st.IsDir() {
			return fmt.Errorf("state folder %s: it is no folder", dir)
		}
	}
	if err := c.Install.Check(); err != nil {
		return err
	}
	fmt.Fprintf(out, "ok: socket %s, state in %v\n", c.Socket, c.StateDirs)
	return nil
}

// agentConfig is what the agent is made of.
func (c config) agentConfig(log *slog.Logger) agent.Config {
	return agent.Config{
		StateDirs: c.StateDirs, BPFFS: c.BPFFS, Socket: c.Socket, Timeout: c.Timeout.Std(), MaxPeers: c.MaxPeers, NoUplink: !c.Uplink, Logger: log,
		Install: install.Config{Options: c.Install},
		Metrics: agent.Metrics{Bind: c.MetricsBind, Profiles: c.PProf, Uplinks: c.MetricsUplinks}, Page: c.PageBind,
		Tuner: tuner.Options{Mode: tuner.Mode(c.Tuner), Profile: c.Profile, Profiles: c.Profiles, PodProfiles: c.PodProfiles, Uplinks: c.TuneUplinks},
		Reconcile: reconcile.Options{
			Mode: reconcile.Mode(c.Reconcile), CRIEndpoint: c.CRIEndpoint, Grace: c.Grace.Std(), Every: c.Every.Std(), Policies: c.Policies,
		},
	}
}

// newAgent is the agent with its parts of the cluster, where there are some.
func newAgent(c config, log *slog.Logger) (*agent.Agent, error) {
	made := c.agentConfig(log)
	j, err := join(c.Cluster, c.BPFFS, made.Tuner, log)
	if err != nil {
		return nil, err
	}
	made.Parts, made.Install.Ranges = j.parts, j.ranges
	a := agent.New(made)
	if j.use != nil {
		j.use(a)
	}
	return a, nil
}

// startIsOver is when the parts have done what they do once.
const startIsOver = 5 * time.Second

// serve serves until ctx ends. load reads the configuration anew.
func serve(ctx context.Context, c config, load func() (config, error)) error {
	var level slog.LevelVar
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return err
	}
	log := slog.New(handler(c.LogFormat, &level))
	a, err := newAgent(c, log)
	if err != nil {
		return err
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, unix.SIGHUP)
	defer signal.Stop(hangup)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func(now config) {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangup:
				now = reload(ctx, a, now, load, log, &level)
			}
		}
	}(c)
	var forgotten *time.Timer
	err = a.Run(ctx, func() {
		if err := agent.DropCapabilities(); err != nil {
			log.Warn("kept all capabilities", "error", err)
		}
		log.Info("serving", "socket", c.Socket, "stateDirs", c.StateDirs, "version", version.String(), "pid", os.Getpid())
		if err := agent.Notify("READY=1"); err != nil {
			log.Warn("nobody knows that it runs", "error", err)
		}
		forgotten = time.AfterFunc(startIsOver, func() {
			if err := agent.ForgetStart(); err != nil {
				log.Debug("kept the memory of the start", "error", err)
			}
		})
	})
	if forgotten != nil {
		forgotten.Stop()
	}
	if err != nil {
		return err
	}
	log.Info("ended")
	return nil
}

func handler(format string, level *slog.LevelVar) slog.Handler {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.NewJSONHandler(os.Stderr, o)
	}
	return slog.NewTextHandler(os.Stderr, o)
}

// reload takes what can change while tapird runs from a configuration that is right, and gives the one that counts from now on.
func reload(ctx context.Context, a *agent.Agent, was config, load func() (config, error), log *slog.Logger, level *slog.LevelVar) config {
	now, err := load()
	if err == nil {
		err = level.UnmarshalText([]byte(now.LogLevel))
	}
	if err != nil {
		log.Error("kept the log level", "reason", "the configuration is wrong, and all of it stays as it was", "error", err)
		return was
	}
	if kept := was.fixed(&now); len(kept) > 0 {
		log.Warn("these keys wait for a restart", "keys", kept)
	}
	if err := a.Reload(ctx, now.agentConfig(log)); err != nil {
		log.Error("kept the configuration", "error", err)
		return was
	}
	log.Warn("set the log level", "level", level.Level().String())
	return now
}

// printPlan says what tapird would do here now; asJSON, what it would see.
func printPlan(ctx context.Context, out io.Writer, c config, asJSON bool) error {
	var level slog.LevelVar
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return err
	}
	a, err := newAgent(c, slog.New(handler(c.LogFormat, &level)))
	if err != nil {
		return err
	}
	if !asJSON {
		return a.Plan(ctx, out)
	}
	sample, err := a.Sample(ctx)
	if err != nil {
		return err
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(sample)
}
