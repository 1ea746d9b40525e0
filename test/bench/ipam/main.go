// Command bench-ipam measures what one allocation of tapir-ipam costs beside host-local, by the number of addresses that are held already.
//
// Both plugins are called the same way, by exec with the configuration on standard input, on one node: a network and mount namespace of its own
// whose /run is a tmpfs that both keep their state on. They take turns in random order. What is held is put there beforehand: by package ipam in one
// transaction for tapir-ipam, by files as host-local itself writes them for host-local. Then the last addresses of the /16 are taken, and
// compared with the first.
//
// It prints medians and ratios, and last one line a goal: "goal NAME VALUE OP BOUND met" or "short". The exit code is 0 when everything could be
// measured, met or short.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tapir-cni/tapir/test/bench/node"
)

type options struct {
	bin        string // folder of tapir-ipam
	refplugins string // folder of the reference plugins
	rounds     int
	last       int // addresses of the /16 that are taken one by one at its end, and at its beginning
	output     string
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "`folder` of tapir-ipam")
	flag.StringVar(&o.refplugins, "refplugins", "bin/refplugins", "`folder` of the reference plugins")
	flag.IntVar(&o.rounds, "rounds", 40, "measured allocations of each plugin for each number of held addresses")
	flag.IntVar(&o.last, "last", 100, "addresses taken one by one when a /16 is empty, and when it is nearly full")
	flag.StringVar(&o.output, "o", "text", "output format: text or json")
	flag.Parse()
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, "bench-ipam:", err)
		os.Exit(2)
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-ipam:", err)
		os.Exit(1)
	}
}

func (o *options) check() error {
	var faults []error
	if flag.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	if o.rounds < 1 {
		faults = append(faults, fmt.Errorf("-rounds: want at least 1, got %d", o.rounds))
	}
	if o.last < 1 || o.last > 10000 {
		faults = append(faults, fmt.Errorf("-last: want 1 to 10000, got %d", o.last))
	}
	if o.output != "text" && o.output != "json" {
		faults = append(faults, fmt.Errorf("-o: want text or json, got %q", o.output))
	}
	for _, folder := range []*string{&o.bin, &o.refplugins} {
		absolute, err := filepath.Abs(*folder)
		if err != nil {
			faults = append(faults, err)
		}
		*folder = absolute
	}
	return errors.Join(faults...)
}

func run(o options) error {
	if !node.Inside() {
		return node.Reexec()
	}
	if _, err := node.New(); err != nil {
		return fmt.Errorf("set up the node: %w", err)
	}
	report := &Report{Rounds: o.rounds}
	for _, held := range heldNumbers {
		row, err := measureHeld(o, held)
		if err != nil {
			return fmt.Errorf("%d addresses held: %w", held, err)
		}
		report.Rows = append(report.Rows, row)
	}
	fill, err := measureFill(o)
	if err != nil {
		return fmt.Errorf("fill a /16: %w", err)
	}
	report.Fill = fill
	report.judge()
	if o.output == "json" {
		return report.writeJSON(os.Stdout)
	}
	return report.writeText(os.Stdout)
}
