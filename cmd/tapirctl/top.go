package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// topOptions are the flags of top.
type topOptions struct {
	interval time.Duration
	sort     string
	reverse  bool
	once     bool
}

func newTop(o *options) *cobra.Command {
	t := &topOptions{}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the traffic of all attachments",
		Long: `Show each attachment with its rates, drops, queues and the last minute, again and again. FROM is what the guest sends, TO what it gets, in bits
a second; DROPPED are frames since ADD that found no room in the ring, or were refused. It reads the kernel itself and needs no tapird.

Keys: n, f, t, d, u sort by name, from, to, drops, queues; r turns the order round; p pauses; arrows, PageUp and PageDown scroll; q ends.
Where the output is no terminal it is text, one table an interval; --once is one. -o json is for machines, one line each time.`,
		Example: "  tapirctl top --sort drops\n  tapirctl top --once -o json",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(sortNames(), t.sort) {
				return usageError{fmt.Errorf("--sort: want one of %s, got %q", strings.Join(sortNames(), ", "), t.sort)}
			}
			if t.interval < minTop {
				return usageError{fmt.Errorf("--interval: want %s or more, got %s", minTop, t.interval)}
			}
			return runTop(cmd, o, t)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&t.interval, "interval", time.Second, "time between two looks")
	f.StringVar(&t.sort, "sort", "from", "one of "+strings.Join(sortNames(), ", "))
	f.BoolVar(&t.reverse, "reverse", false, "the other way round")
	f.BoolVar(&t.once, "once", false, "look twice, an interval apart, print one table and end")
	return cmd
}

// minTop is the shortest interval: a sample is not taken more often.
const minTop = 300 * time.Millisecond

// plainWidth is that of a table that no terminal limits.
const plainWidth = 160

func runTop(cmd *cobra.Command, o *options, t *topOptions) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	s := startSampling(ctx, o)
	defer s.close()
	m := &topModel{sort: t.sort, reverse: t.reverse}
	look := func() error {
		sample, err := s.take()
		if err == nil {
			m.take(sample)
		}
		return err
	}
	if err := look(); err != nil {
		return err
	}
	file, isFile := out.(*os.File)
	if !t.once && o.output != "json" && isFile && isTerminal(file) {
		return runScreen(ctx, file, m, t.interval, look)
	}
	tick := time.NewTicker(t.interval)
	defer tick.Stop()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := look(); err != nil {
			return ended(ctx, err)
		}
		if err := m.print(out, o.output == "json", t.once, first); err != nil || t.once {
			return err
		}
	}
}

// ended is nil where it was ended, and not by its fault.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// print writes what the model has, once or as one of many.
func (m *topModel) print(out io.Writer, asJSON, once, first bool) error {
	if asJSON {
		v := struct {
			Time        time.Time `json:"time"`
			Attachments []topRow  `json:"attachments"`
			Problems    []string  `json:"problems,omitempty"`
		}{m.at, m.rows, m.problems}
		if v.Attachments == nil {
			v.Attachments = []topRow{}
		}
		if once {
			return printJSON(out, v)
		}
		return json.NewEncoder(out).Encode(v)
	}
	if !first {
		fmt.Fprintln(out)
	}
	lines := m.frame(plainWidth, 0, false)
	lines = slices.Delete(lines, 1, 2) // the keys
	for _, line := range lines {
		if _, err := fmt.Fprintln(out, strings.TrimRight(line, " ")); err != nil {
			return err
		}
	}
	return nil
}
