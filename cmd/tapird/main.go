// Command tapird is the node agent. Today it hands the open queues of attachments to VMMs that take descriptors
// (docs/tapird.md). SIGTERM and SIGINT end it when the peers that it is answering have their answer, SIGHUP reads the log level
// anew from the configuration file.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/agent/broker"
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
	var check bool
	flags := defaults()
	cmd := &cobra.Command{
		Use:   "tapird",
		Short: "Hand the open queues of tapir's TAPs to VMMs",
		Long: `Serve a unix socket: a peer names an attachment, and gets its queues as open descriptors, with NAPI on each. uid 0 may have every
attachment's; anybody else those of the TAPs that belong to them, with the token that the attachment's file holds. docs/tapird.md
has the protocol. A flag outdoes its key in the configuration file.

SIGTERM: end when the peers that are being answered have their answer. SIGHUP: read the log level from the configuration file.`,
		Version: version.String(), SilenceErrors: true, SilenceUsage: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.NoArgs(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := flags.over(file, cmd.Flags().Changed)
			if err != nil {
				return err
			}
			if check {
				return checkNode(cmd.OutOrStdout(), c)
			}
			return serve(cmd.Context(), c, file, cmd.Flags().Changed("log-level"))
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := cmd.Flags()
	f.StringVar(&file, "config", "", "configuration file, JSON")
	f.BoolVar(&check, "check", false, "check the configuration and whether this node can open queues, and end")
	f.StringVar(&flags.Socket, "socket", flags.Socket, "path of the socket")
	f.StringSliceVar(&flags.StateDirs, "state-dir", flags.StateDirs, "folder of attachments; give every one that a configuration of this node names")
	f.DurationVar((*time.Duration)(&flags.Timeout), "timeout", flags.Timeout.Std(), "of one connection")
	f.IntVar(&flags.MaxPeers, "max-peers", flags.MaxPeers, "connections at once; a user other than root may have a quarter of them")
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
	fmt.Fprintf(out, "ok: socket %s, state in %v\n", c.Socket, c.StateDirs)
	return nil
}

// serve serves until ctx ends.
func serve(ctx context.Context, c config, file string, fixedLevel bool) error {
	var level slog.LevelVar
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return err
	}
	log := slog.New(handler(c.LogFormat, &level))
	socket, err := broker.Listen(c.Socket)
	if err != nil {
		return err
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, unix.SIGHUP)
	defer signal.Stop(hangup)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangup:
				reload(log, &level, file, fixedLevel)
			}
		}
	}()
	log.Info("serving", "socket", c.Socket, "stateDirs", c.StateDirs, "version", version.String(), "pid", os.Getpid())
	s := broker.New(broker.Config{StateDirs: c.StateDirs, Timeout: c.Timeout.Std(), MaxPeers: c.MaxPeers, Logger: log})
	if err := s.Serve(ctx, socket); err != nil {
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

// reload sets the log level that the file has. A level that a flag gave stays.
func reload(log *slog.Logger, level *slog.LevelVar, file string, fixed bool) {
	if file == "" || fixed {
		log.Warn("kept the log level", "reason", "no configuration file, or the level is a flag's", "level", level.Level().String())
		return
	}
	c, err := read(file)
	if err == nil {
		err = level.UnmarshalText([]byte(c.LogLevel))
	}
	if err != nil {
		log.Error("kept the log level", "config", file, "error", err)
		return
	}
	log.Warn("set the log level", "level", level.Level().String())
}
