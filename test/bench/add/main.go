// Command bench-add measures what one CNI ADD and one DEL of tapir cost beside the reference plugins bridge, ptp and tap,
// each with host-local.
//
// Every plugin is called the same way, by exec with its configuration on standard input, on a fresh network namespace,
// on one node: a network and mount namespace of its own, which the kernel takes apart when the command ends. The plugins
// take turns in random order within each round, so that whatever else the machine does meets all of them alike. Nothing
// but the plugin's process is timed, from before fork to after wait. An ADD of tapir counts only if a guest's frames then
// pass from the TAP to the node and back.
//
// It prints medians and ratios, the kernel's floor for DEL, kernel memory per 4-queue TAP, a trace of where tapir's time
// goes, and last one line a goal: "goal NAME VALUE OP BOUND met" or "short". The exit code is 0 when everything could be
// measured, met or short.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tapir-cni/tapir/test/bench/node"
)

type options struct {
	bin        string // folder of tapir
	refplugins string // folder of the reference plugins
	rounds     int
	held       int // attachments of each plugin that stay during the rounds
	traced     int // rounds of the trace
	devices    int // TAPs made for the measurement of kernel memory
	variants   string
	redirect   string // tapir's key "redirect"
	output     string // text | json
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "`folder` of tapir")
	flag.StringVar(&o.refplugins, "refplugins", "bin/refplugins", "`folder` of the reference plugins")
	flag.IntVar(&o.rounds, "rounds", 60, "measured rounds; each calls every plugin once")
	flag.IntVar(&o.held, "held", 1, "attachments of each plugin that stay during the rounds; 0: each round is a node's first ADD and last DEL")
	flag.IntVar(&o.traced, "traced", 20, "rounds of the trace")
	flag.IntVar(&o.devices, "devices", 12, "TAPs made by each plugin for the measurement of kernel memory")
	flag.StringVar(&o.variants, "variants", "", "comma-separated `list` of what to measure; empty: everything")
	flag.StringVar(&o.redirect, "redirect", "auto", "tapir's `method` of attaching programs: auto, tcx or clsact")
	flag.StringVar(&o.output, "o", "text", "output format: text or json")
	flag.Parse()
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, "bench-add:", err)
		os.Exit(2)
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-add:", err)
		os.Exit(1)
	}
}

func (o *options) check() error {
	var faults []error
	if flag.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	for name, n := range map[string]int{"rounds": o.rounds, "traced": o.traced, "devices": o.devices} {
		if n < 1 {
			faults = append(faults, fmt.Errorf("-%s: want at least 1, got %d", name, n))
		}
	}
	if o.held < 0 {
		faults = append(faults, fmt.Errorf("-held: want at least 0, got %d", o.held))
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
	n, err := node.New()
	if err != nil {
		return fmt.Errorf("set up the node: %w", err)
	}
	chosen, err := choose(o)
	if err != nil {
		return err
	}
	report := &Report{Rounds: o.rounds}
	if err := measureLatency(n, o, chosen, report); err != nil {
		return err
	}
	if chosen.has("tapir") {
		if err := measureTrace(n, o, report); err != nil {
			return fmt.Errorf("trace: %w", err)
		}
	}
	if chosen.has("tapir") && chosen.has("tap") {
		if err := measureMemory(n, o, report); err != nil {
			return fmt.Errorf("kernel memory: %w", err)
		}
	}
	report.judge()
	if o.output == "json" {
		return report.writeJSON(os.Stdout)
	}
	return report.writeText(os.Stdout)
}

// choose gives the variants that -variants names, in the order of the table.
func choose(o options) (variants, error) {
	all := allVariants(o)
	if o.variants == "" {
		return all, nil
	}
	var chosen variants
	for name := range strings.SplitSeq(o.variants, ",") {
		v, ok := all.find(name)
		if !ok {
			return nil, fmt.Errorf("-variants: unknown %q; known are %s", name, strings.Join(all.names(), ", "))
		}
		chosen = append(chosen, v)
	}
	return chosen, nil
}
