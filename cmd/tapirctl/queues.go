package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// watchEvery is how often --watch looks where no interval is given, minWatch the most often that it looks.
const (
	watchEvery = 2 * time.Second
	minWatch   = 10 * time.Millisecond
)

func newQueues(o *options) *cobra.Command {
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "queues [CONTAINER-ID[/IFNAME]]",
		Short: "Show who has opened each queue of each TAP, and whether it runs NAPI",
		Long: `Show each open queue of the TAPs of this node, or of the attachment that is named: who holds it, how it was opened, and whether
it runs NAPI. NAPI belongs to each open file of a TAP, and what is shown is read from the kernel's own structures at this moment,
not from what tapir recorded; where the kernel cannot be asked it is "unknown" (docs/queues.md). THREADED and DROPPED are of the
whole device. -o json has more; with --watch it is one line each time.`,
		Example: "  tapirctl queues 7f3a/eth0\n  tapirctl queues --watch 500ms",
		Args:    usageArgs(cobra.MaximumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			args, watch, err := oneWatched(cmd, args, &every)
			if err != nil {
				return err
			}
			reader := newQueueReader()
			defer reader.close() //nolint:errcheck // it was only read
			if reader.why != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "tapirctl: NAPI is unknown:", reader.why)
			}
			if !watch {
				return showQueues(cmd, o, reader, args, printJSON)
			}
			return watchQueues(cmd, o, reader, args, every)
		},
	}
	watchFlag(cmd, &every)
	return cmd
}

// watchFlag gives a command the flag --watch, which may stand without an interval.
func watchFlag(cmd *cobra.Command, every *time.Duration) {
	f := cmd.Flags()
	f.DurationVar(every, "watch", 0, "look again every interval, until interrupted")
	f.Lookup("watch").NoOptDefVal = watchEvery.String()
}

// oneWatched takes the interval of --watch off the arguments, of which one at most may be left: an attachment.
func oneWatched(cmd *cobra.Command, args []string, every *time.Duration) (left []string, watch bool, err error) {
	watch = cmd.Flags().Changed("watch")
	if watch {
		args = interval(args, every)
	}
	switch {
	case len(args) > 1:
		return nil, false, usageError{fmt.Errorf("want one attachment, got %q", args)}
	case watch && *every < minWatch:
		return nil, false, usageError{fmt.Errorf("--watch: want %s or more, got %s", minWatch, *every)}
	}
	return args, watch, nil
}

// interval takes an interval that stands apart, as in "--watch 500ms", off the arguments: a flag that may stand alone leaves it there. No
// container id is one: those are hexadecimal, and of the units only "h", "m", "s" end an interval.
func interval(args []string, every *time.Duration) []string {
	if len(args) == 0 {
		return args
	}
	last := args[len(args)-1]
	d, err := time.ParseDuration(last)
	if err != nil || !strings.ContainsAny(last, "hms") {
		return args
	}
	*every = d
	return args[:len(args)-1]
}

// watchQueues shows again and again. An attachment that is named may go and come back meanwhile; it must be there at first.
func watchQueues(cmd *cobra.Command, o *options, reader *queueReader, args []string, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for first := true; ; first = false {
		if o.output != "json" {
			fmt.Fprintf(cmd.OutOrStdout(), "%s\n", time.Now().Format(time.RFC3339))
		}
		err := showQueues(cmd, o, reader, args, printLine)
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

func printLine(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

func showQueues(cmd *cobra.Command, o *options, reader *queueReader, args []string, printJSON func(io.Writer, any) error) error {
	all, err := chosen(cmd.Context(), o, args)
	if err != nil {
		return err
	}
	rows, err := reader.rows(all)
	if err != nil {
		return err
	}
	if o.output == "json" {
		return printJSON(cmd.OutOrStdout(), rows)
	}
	return printQueues(cmd.OutOrStdout(), rows)
}

// chosen is the attachment that is named, or all.
func chosen(ctx context.Context, o *options, args []string) ([]recorded, error) {
	if len(args) == 0 {
		return attachments(ctx, o)
	}
	one, err := find(ctx, o, args[0])
	if err != nil {
		return nil, err
	}
	return []recorded{one}, nil
}

func printQueues(out io.Writer, rows []queueRow) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CONTAINER\tIFNAME\tTAP\tQUEUE\tSTATE\tPID\tPROGRAM\tOPENED\tNAPI\tVNET-HDR\tMULTI-QUEUE\tTHREADED\tRING\tDROPPED\tNOTE")
	for _, r := range rows {
		queue, pid, header, dropped := "-", "-", "-", "-"
		if r.Queue != nil {
			queue, header = strconv.Itoa(*r.Queue), strconv.Itoa(r.VnetHdr)
		}
		if r.PID != 0 {
			pid = strconv.Itoa(r.PID)
		}
		if r.Dropped != nil {
			dropped = strconv.FormatUint(*r.Dropped, 10)
		}
		opened, napi := r.Opened, r.NAPI
		switch {
		case r.State == notOpen:
			opened, napi = "-", "-"
		case r.Opener != 0 && r.Opener != r.PID:
			opened += fmt.Sprintf(" (by %d)", r.Opener)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", short(r.ContainerID), r.IfName, r.TAP, queue, r.State, pid,
			dash(r.Program), opened, napi, header, yesNo(r.MultiQueue), r.Threaded, r.Ring, dropped, r.Note)
	}
	return w.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
