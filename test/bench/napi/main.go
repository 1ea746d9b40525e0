// Command bench-napi measures what NAPI on the queues of a TAP of tapir's is worth, and whether the rules of tap.Choose choose well.
//
// The guest is a kernel's network stack of its own, in a netns with a TAP; a pump (another process of this program) stands in for the
// VMM and moves frames between that TAP and the pod's, which tapir's ADD made: one read and one write a frame, virtio-net headers
// passed through. The guest sends TCP into the node as fast as it can. A row is one setting under one load; all rows take turns
// in random order within each round, and what is compared is compared within a round; those that a goal compares closely several times, one
// right after the other. Before each, the kernel is asked
// whether the pump's queue runs NAPI as the row says (package queueiter).
//
// The second part is the package vhost: NAPI behind vhost-net.
//
// It prints medians and quartiles, and last one line a goal: "goal NAME VALUE OP BOUND met" or "short". The exit code is 0
// when it could measure, met or short; a row that it could not measure is named with the reason.
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
	"slices"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/test/bench/napi/vhost"
	"github.com/tapir-cni/tapir/test/bench/node"
	"golang.org/x/sys/unix"
)

type options struct {
	bin      string // folder of tapir
	rounds   int
	duration time.Duration // of one row in one round
	repeats  int           // of the rows that a goal compares closely, in each round
	only     string        // part of the names of the rows to measure
	parts    string
	pump     string
	update   string
	json     bool
}

// has says whether a part of the benchmark was asked for.
func (o *options) has(part string) bool { return slices.Contains(strings.Split(o.parts, ","), part) }

// The parts.
const (
	pumpPart  = "pump"
	vhostPart = "vhost"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == pumpCommand {
		exit(1, pumpMain())
		return
	}
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "`folder` of tapir")
	flag.IntVar(&o.rounds, "rounds", 5, "measured rounds; each has every row")
	flag.DurationVar(&o.duration, "duration", 600*time.Millisecond, "how long a row is measured in a round")
	flag.IntVar(&o.repeats, "repeats", 6, "how often a round measures the rows without NAPI and with the chosen setting, which a goal compares closely")
	flag.StringVar(&o.only, "only", "", "measure the loads alone whose `name` this is: "+strings.Join(loadNames(), ", "))
	flag.StringVar(&o.parts, "parts", pumpPart+","+vhostPart, "comma-separated `list` of what to measure: through the pump, behind vhost-net")
	flag.StringVar(&o.pump, "pump", "", "`command` that moves frames between its descriptors 3 and 4 until its stdin ends, in place of this program's own pump")
	flag.StringVar(&o.update, "update", "", "put the tables into this `file` too, between its marks")
	flag.BoolVar(&o.json, "json", false, "print JSON")
	flag.Parse()
	exit(2, o.check())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	exit(1, run(ctx, o))
}

// exit ends the program where there is an error.
func exit(code int, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-napi:", err)
		os.Exit(code)
	}
}

func loadNames() []string {
	var names []string
	for _, l := range loads() {
		names = append(names, l.String())
	}
	return names
}

func (o *options) check() error {
	var faults []error
	if flag.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	for name, n := range map[string]int{"rounds": o.rounds, "repeats": o.repeats} {
		if n < 1 {
			faults = append(faults, fmt.Errorf("-%s: want at least 1, got %d", name, n))
		}
	}
	if o.duration < 10*tick {
		faults = append(faults, fmt.Errorf("-duration: want at least %s, got %s", 10*tick, o.duration))
	}
	for part := range strings.SplitSeq(o.parts, ",") {
		if part != pumpPart && part != vhostPart {
			faults = append(faults, fmt.Errorf("-parts: unknown %q; known are %s, %s", part, pumpPart, vhostPart))
		}
	}
	if o.only != "" && len(o.rows()) == 0 {
		faults = append(faults, fmt.Errorf("-only: unknown %q; known are %s", o.only, strings.Join(loadNames(), ", ")))
	}
	var err error
	o.bin, err = filepath.Abs(o.bin)
	return errors.Join(append(faults, err)...)
}

// rows are those of the table that were asked for.
func (o *options) rows() []*Row {
	var rows []*Row
	for _, r := range table() {
		if o.only == "" || o.only == r.Load {
			rows = append(rows, r)
		}
	}
	return rows
}

// run measures the parts in a node of its own. What one of them gave is printed even where another fails.
func run(ctx context.Context, o options) error {
	behind := vhost.Config{Bin: o.bin, Rounds: o.rounds, Progress: func(step string) { progress(o, "vhost-net: %s", step) }}
	if !node.Inside() {
		if o.has(vhostPart) {
			if err := vhost.Prepare(ctx, behind); err != nil {
				return fmt.Errorf("prepare the part behind vhost-net (-parts=%s goes without): %w", pumpPart, err)
			}
		}
		return node.Reexec()
	}
	report := newReport(o)
	var errs []error
	if o.has(pumpPart) {
		errs = append(errs, measureAll(ctx, o, report))
	}
	if o.has(vhostPart) && ctx.Err() == nil {
		var err error
		report.Vhost, err = vhost.Run(ctx, behind)
		errs = append(errs, err)
	}
	report.judge()
	if o.update != "" {
		errs = append(errs, report.update(o.update))
	}
	write := report.writeText
	if o.json {
		write = report.writeJSON
	}
	return errors.Join(append(errs, write(os.Stdout))...)
}

// measureAll runs the rounds through the pump.
func measureAll(ctx context.Context, o options, report *Report) (err error) {
	n, err := node.New()
	if err != nil {
		return fmt.Errorf("set up the node: %w", err)
	}
	paths, err := n.NewNetnses(2)
	if err != nil {
		return err
	}
	b, err := newBench(o, paths[0], paths[1])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	report.Rows = choose(o.rows(), b.traffic)
	for round := range o.rounds {
		progress(o, "round %d of %d", round+1, o.rounds)
		if err := measureRound(ctx, report.Rows, o.repeats, b.measure); err != nil {
			return err
		}
	}
	return nil
}

func progress(o options, format string, args ...any) {
	out := io.Writer(os.Stderr)
	if o.json {
		out = io.Discard
	}
	fmt.Fprintf(out, format+"\n", args...)
}
