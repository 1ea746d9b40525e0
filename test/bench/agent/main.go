// Command bench-agent measures tapird. Its parts:
//
//   - choose: with the traffic of bench-napi, what tapird chooses by itself against the best setting that was made by hand;
//   - follow: a guest that changes from frames of the MTU's size to TSO and back: how long tapird takes to follow, and what it costs
//     against no tuner, phase by phase;
//   - crowd: what a thousand TAPs cost it: memory, idling, a scrape, the last beside node_exporter's.
//
// Guests, streams and the pump that stands in for the VMM are those of package test/bench/guest; tapird is the real one, in a process of its own.
//
// It prints what it measured, and last one line a goal: "goal NAME VALUE OP BOUND met" or "short". The exit code is 0 when it could
// measure, met or short.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/test/bench/goal"
	"github.com/tapir-cni/tapir/test/bench/node"
	"golang.org/x/sys/unix"
)

type options struct {
	bin      string // folder of tapir and tapird
	parts    string
	only     string // load of the part choose
	rounds   int
	duration time.Duration // of one row
	phase    time.Duration // of one kind of traffic in the part follow
}

// A part measures something in the node, writes what people want to read, and gives its goals.
type part struct {
	name string
	run  func(ctx context.Context, n *node.Node, o options, out io.Writer) ([]goal.Goal, error)
}

// parts are all there are, in the order in which they run; each has a file.
var parts = []part{
	{"choose", runChoose},
	{"follow", runFollow},
	{"crowd", runCrowd},
}

func main() {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "`folder` of tapir and tapird")
	flag.StringVar(&o.parts, "parts", strings.Join(names, ","), "comma-separated `list` of what to measure")
	flag.StringVar(&o.only, "only", "", "in the part choose, measure the load of that `name` alone")
	flag.IntVar(&o.rounds, "rounds", 5, "measured rounds")
	flag.DurationVar(&o.duration, "duration", time.Second, "how long a row of the part choose is measured in a round")
	flag.DurationVar(&o.phase, "phase", 15*time.Second, "how long the guest of the part follow sends one kind of frames")
	crowdFlags()
	flag.Parse()
	exit(2, o.check(names))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	exit(1, measure(ctx, o))
}

// exit ends the program where there is an error.
func exit(code int, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-agent:", err)
		os.Exit(code)
	}
}

func (o *options) check(names []string) error {
	var faults []error
	if flag.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	for p := range strings.SplitSeq(o.parts, ",") {
		if !slices.Contains(names, p) {
			faults = append(faults, fmt.Errorf("-parts: unknown %q; known are %s", p, strings.Join(names, ", ")))
		}
	}
	if o.rounds < 1 || o.duration < 100*time.Millisecond || o.phase < 6*time.Second {
		faults = append(faults, fmt.Errorf("want -rounds of at least 1, -duration of 100ms and -phase of 6s, got %d, %s and %s", o.rounds, o.duration, o.phase))
	}
	var err error
	o.bin, err = filepath.Abs(o.bin)
	return errors.Join(append(faults, err)...)
}

func measure(ctx context.Context, o options) error {
	if !node.Inside() {
		return node.Reexec()
	}
	// Raw system calls of pumps and streams must not wait for each other.
	runtime.GOMAXPROCS(max(8, runtime.NumCPU()))
	n, err := node.New()
	if err != nil {
		return fmt.Errorf("set up the node: %w", err)
	}
	var goals []goal.Goal
	var errs []error
	for _, p := range parts {
		if !slices.Contains(strings.Split(o.parts, ","), p.name) || ctx.Err() != nil {
			continue
		}
		some, err := p.run(ctx, n, o, os.Stdout)
		if goals = append(goals, some...); err != nil {
			errs = append(errs, fmt.Errorf("part %s: %w", p.name, err))
		}
	}
	return errors.Join(append(errs, ctx.Err(), goal.Write(os.Stdout, goals))...)
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
