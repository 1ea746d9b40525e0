package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/internal/supervise"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"golang.org/x/sys/unix"
)

// execChild is the hidden command that [supervise.Run] starts.
const execChild = "__exec-child"

// execOptions are the flags of exec.
type execOptions struct {
	queues     int
	attachment string
	logFile    string
}

func newExec(o *options) *cobra.Command {
	e := &execOptions{}
	cmd := &cobra.Command{
		Use:   "exec [flags] -- VMM [ARG...]",
		Short: "Run a VMM that opens its TAP by name, with NAPI on each queue",
		Long: `Start VMM and answer its TUNSETIFF on TAPs of tapir: with IFF_NAPI added, and with IFF_MULTI_QUEUE as the TAP was made,
whatever the VMM says. Each other device and each other system call is left alone. What the VMM starts is supervised as well.
Signals and the exit status pass through; 127 means that there is no such program, 126 that it is not executable.
docs/exec.md has what it costs and what it cannot do.`,
		Example: `  ip netns exec sandbox tapirctl exec -- firecracker --config-file vm.json
  tapirctl exec --queues 2 --attachment 7f3a/eth0 -- qemu-system-x86_64 -netdev tap,id=n0,ifname=tap-eth0,script=no,queues=2 …`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if e.queues < 0 || e.queues > tap.MaxQueues {
				return usageError{fmt.Errorf("--queues: want 1 to %d, or 0 for no limit, got %d", tap.MaxQueues, e.queues)}
			}
			return runExec(cmd, o, e, args)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows VMM is VMM's
	f.IntVar(&e.queues, "queues", 0, "queues of a TAP that may be open at once; one more is E2BIG for the VMM (0: as many as the kernel takes)")
	f.StringVar(&e.attachment, "attachment", "", "supervise the TAP of this attachment alone: CONTAINER-ID[/IFNAME]")
	f.StringVar(&e.logFile, "log-file", "", "append the log to this file (default: standard error)")
	return cmd
}

func newExecChild() *cobra.Command {
	return &cobra.Command{
		Use:                execChild + " SOCKET VMM [ARG...]",
		Hidden:             true,
		DisableFlagParsing: true,
		Args:               usageArgs(cobra.MinimumNArgs(2)),
		Run: func(_ *cobra.Command, args []string) {
			supervise.Child(args)
			os.Exit(exitFailed) // the parent has been told why
		},
	}
}

// runExec returns only where the VMM did not start; else it ends this process as the VMM ended.
func runExec(cmd *cobra.Command, o *options, e *execOptions, argv []string) error {
	// The first interrupt cancels the command's context; the VMM decides what it means, and may open queues after it.
	ctx := context.WithoutCancel(cmd.Context())
	log, err := openLog(cmd.ErrOrStderr(), e.logFile)
	if err != nil {
		return err
	}
	p := &execPolicy{ctx: ctx, o: o, queues: e.queues, log: log}
	if e.attachment != "" {
		if p.only, err = attachmentWithTAP(ctx, o, e.attachment); err != nil {
			return err
		}
	}
	status, err := supervise.Run(supervise.Config{Decide: p.decide, Logger: log, ChildArgs: []string{execChild}}, argv)
	if failed, ok := errors.AsType[*supervise.StartError](err); ok {
		fmt.Fprintln(cmd.ErrOrStderr(), "tapirctl:", err)
		os.Exit(failed.Code)
	}
	if err != nil {
		return err
	}
	endAs(status)
	return nil
}

func attachmentWithTAP(ctx context.Context, o *options, name string) (*state.Key, error) {
	rec, err := find(ctx, o, name)
	if err != nil {
		return nil, err
	}
	if rec.TAP.Index == 0 {
		return nil, fmt.Errorf("attachment %q has no TAP", rec.Key)
	}
	return &rec.Key, nil
}

func openLog(w io.Writer, path string) (*slog.Logger, error) {
	if path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
		if err != nil {
			return nil, fmt.Errorf("--log-file: %w", err)
		}
		w = f // open until the process ends
	}
	return slog.New(slog.NewTextHandler(w, nil)), nil
}

// endAs ends this process as another one ended, by the same signal where it was one. Go turns some signals into a dump of its
// own stacks, and a second core file would hide the first: those end with 128 and the signal's number, as in a shell.
func endAs(status syscall.WaitStatus) {
	if !status.Signaled() {
		os.Exit(status.ExitStatus())
	}
	s := status.Signal()
	switch s {
	case unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGKILL, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGPIPE:
		signal.Reset(s)
		_ = unix.Kill(os.Getpid(), s)
		time.Sleep(time.Second) // it may be delivered to another thread, a little later
	}
	os.Exit(128 + int(s))
}
