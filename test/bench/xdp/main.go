// Command bench-xdp measures frames, TCP, round trips and spoof floods between two pods of one node: over bridge, veth and
// tc mirred (what the tc-redirect-tap plugin sets up), over tapir's default path and over its XDP shortcut, and beside them
// the limit, XDP_DROP at the writer's TAP.
//
// The built commands and the reference plugins make the pods, in network namespaces of a node of the benchmark's own; the
// guests are stand-ins that write and read the TAPs as a VMM does. All variants stand side by side and take turns in
// random order, so that whatever else the machine does meets all of them alike. Counters of the kernel must agree, at each
// flood, that frames went the way of their variant.
//
// It prints medians with quartiles, and last one line a goal: "goal NAME VALUE OP BOUND met" or "short". The exit code is 0
// when everything could be measured, met or short.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/test/bench/node"
)

type options struct {
	bin        string // folder of tapir
	refplugins string // folder of the reference plugins
	rounds     int
	duration   time.Duration // of one measurement
	tests      string
	variants   string
	conntrack  bool
	spin       bool
	profile    bool
	progress   bool
	json       string // file, "-" for standard output in place of the text
	images     string // folder for the plots
	redraw     string // file
	doc        string // file
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "`folder` of tapir")
	flag.StringVar(&o.refplugins, "refplugins", "bin/refplugins", "`folder` of the reference plugins")
	flag.IntVar(&o.rounds, "rounds", 5, "measured rounds")
	flag.DurationVar(&o.duration, "duration", 2*time.Second, "how long one measurement takes")
	flag.StringVar(&o.tests, "tests", "", "comma-separated `list` of tests: "+strings.Join(testNames(), ", ")+"; empty: all")
	flag.StringVar(&o.variants, "variants", "", "comma-separated `list` of variants: "+strings.Join(variantNames(), ", ")+"; empty: all")
	flag.BoolVar(&o.conntrack, "conntrack", false, "have the node track connections, as one with kube-proxy does; without, its stack is as fast as it can be")
	flag.BoolVar(&o.spin, "spin", false, "have the reader of a flood never sleep: a writer that is slower than it then pays for no wake-ups, which cost a virtual machine much")
	flag.BoolVar(&o.profile, "profile", false, "after the rounds, profile each variant: time per run of each BPF program and, where perf is installed, the kernel's functions")
	flag.BoolVar(&o.progress, "progress", false, "tell on standard error when a round is done")
	flag.StringVar(&o.json, "json", "", "`file` to write the results to as JSON; -: standard output, in place of the text")
	flag.StringVar(&o.images, "images", "", "`folder` to draw the plots in, as SVG")
	flag.StringVar(&o.redraw, "redraw", "", "measure nothing: print and draw what -json wrote to that `file`")
	flag.StringVar(&o.doc, "doc", "", "Markdown `file` to put tables and goals into, between its two marks")
	flag.Parse()
	chosen, err := o.check()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-xdp:", err)
		os.Exit(2)
	}
	if err := run(o, chosen); err != nil {
		fmt.Fprintln(os.Stderr, "bench-xdp:", err)
		os.Exit(1)
	}
}

// check refuses what cannot be measured and gives the tests that the options choose.
func (o *options) check() ([]test, error) {
	var faults []error
	if flag.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	if o.rounds < 1 {
		faults = append(faults, fmt.Errorf("-rounds: want at least 1, got %d", o.rounds))
	}
	if o.duration < 10*time.Millisecond {
		faults = append(faults, fmt.Errorf("-duration: want at least 10ms, got %s", o.duration))
	}
	for _, folder := range []*string{&o.bin, &o.refplugins} {
		absolute, err := filepath.Abs(*folder)
		if err != nil {
			faults = append(faults, err)
		}
		*folder = absolute
	}
	names, err := pick("-tests", o.tests, testNames())
	faults = append(faults, err)
	variants, err := pick("-variants", o.variants, variantNames())
	faults = append(faults, err)
	var chosen []test
	for _, t := range tests {
		if t = t.only(variants); slices.Contains(names, t.name) && len(t.variants) > 0 {
			chosen = append(chosen, t)
		}
	}
	if err := errors.Join(faults...); err != nil || len(chosen) > 0 {
		return chosen, err
	}
	return nil, errors.New("-tests and -variants: no test has one of these variants")
}

// pick gives the names of a comma-separated list, all where it is empty.
func pick(option, list string, known []string) ([]string, error) {
	if list == "" {
		return known, nil
	}
	names := strings.Split(list, ",")
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%s: unknown %q; known are %s", option, name, strings.Join(known, ", "))
		}
	}
	return names, nil
}

func testNames() []string {
	var names []string
	for _, t := range tests {
		names = append(names, t.name)
	}
	return names
}

func variantNames() []string { return []string{bridged, guarded, routed, shortcut, dropped} }

func run(o options, chosen []test) error {
	if o.redraw != "" {
		report, err := readReport(o.redraw)
		if err != nil {
			return err
		}
		if o.images == "" {
			o.images = filepath.Join("docs", "img")
		}
		return publish(o, report)
	}
	if !node.Inside() {
		return node.Reexec()
	}
	n, err := node.New()
	if err != nil {
		return fmt.Errorf("set up the node: %w", err)
	}
	if o.conntrack {
		if err := trackConnections(); err != nil {
			return err
		}
	}
	report, err := measure(o, n, chosen)
	if err != nil {
		return err
	}
	return publish(o, report)
}

// publish writes the report in every form that was asked for.
func publish(o options, report *Report) (err error) {
	if o.images != "" {
		if err := report.draw(o.images); err != nil {
			return fmt.Errorf("draw: %w", err)
		}
	}
	if o.json == "-" {
		return report.writeJSON(os.Stdout)
	}
	if o.json != "" {
		f, err := os.Create(o.json)
		if err != nil {
			return err
		}
		if err := errors.Join(report.writeJSON(f), f.Close()); err != nil {
			return fmt.Errorf("write %s: %w", o.json, err)
		}
	}
	if o.doc != "" {
		if err := report.document(o.doc); err != nil {
			return err
		}
	}
	return report.write(os.Stdout)
}
