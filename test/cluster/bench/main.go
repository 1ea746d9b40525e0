// Command bench-cluster measures how long pods take from their creation to Running with tapir beside bridge + host-local, on the same
// real two-node cluster (package harness) in one run.
//
// Both networks are there at once: the nodes' default is bridge + host-local with both families, and pods of the RuntimeClass tapir get a TAP, both
// families from ranges of tapir's own, with tapird running. Everything else of a pod is the same. A round creates the pods of one network all at once, waits
// until each is Running, and deletes them; the networks take turns, and who begins changes each time. A pod's time is from before the request that creates it
// to the watch's word that it is Running, by this process' clock.
//
// Then it starts microVM pods, one after the other: from a pod's creation to the guest's first answer to HTTP, and of that the guest's own boot, from the
// start of QEMU; beside it how long its kernel had been up, by its own clock, when it got its address.
//
// It prints medians, 99th percentiles and ratios, and last a line a goal.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/tapir-cni/tapir/test/bench/node"
	"github.com/tapir-cni/tapir/test/cluster/harness"
	"golang.org/x/sys/unix"
)

type options struct {
	harness.Options
	tapir  string // folder of tapir's programs
	pods   int
	rounds int
	guests int
	output string
}

func main() {
	var o options
	flag.StringVar(&o.Bin, "k8s", "bin/k8s", "`folder` that \"make k8s\" made")
	flag.StringVar(&o.Images, "images", "bin/images", "`folder` of image archives")
	flag.StringVar(&o.Plugins, "refplugins", "bin/refplugins", "`folder` of the reference plugins")
	flag.StringVar(&o.tapir, "bin", "bin", "`folder` of tapir's programs")
	flag.IntVar(&o.pods, "pods", 60, "pods of a round, over all nodes")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of each network; one more is made first and not counted")
	flag.IntVar(&o.guests, "guests", 5, "microVM pods, one after the other; one more is made first and not counted")
	flag.StringVar(&o.output, "o", "text", "output format: text or json")
	flag.Parse()
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, "bench-cluster:", err)
		os.Exit(2)
	}
	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench-cluster:", err)
		os.Exit(1)
	}
}

func (o *options) check() error {
	var faults []error
	if flag.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	for name, n := range map[string]int{"pods": o.pods, "rounds": o.rounds, "guests": o.guests} {
		if n < 1 || n > 100 {
			faults = append(faults, fmt.Errorf("-%s: want 1 to 100, got %d", name, n))
		}
	}
	if o.output != "text" && o.output != "json" {
		faults = append(faults, fmt.Errorf("-o: want text or json, got %q", o.output))
	}
	for _, folder := range []*string{&o.Bin, &o.Images, &o.Plugins, &o.tapir} {
		absolute, err := filepath.Abs(*folder)
		if err != nil {
			faults = append(faults, err)
		}
		*folder = absolute
	}
	return errors.Join(faults...)
}

func (o *options) run() (err error) {
	if !node.Inside() {
		return node.Reexec()
	}
	if _, err := node.New(); err != nil {
		return fmt.Errorf("set up the namespaces: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	fmt.Fprintln(os.Stderr, "bench-cluster: starting a cluster of two nodes")
	o.Prepare = o.prepare
	c, err := harness.Up(ctx, o.Options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Down()) }()
	if err := o.networks(ctx, c); err != nil {
		return err
	}
	report := &Report{Pods: o.pods, Rounds: o.rounds}
	if err := o.measure(ctx, c, report); err != nil {
		return err
	}
	if err := o.measureGuests(ctx, c, report); err != nil {
		return err
	}
	report.judge()
	if o.output == "json" {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(report)
	}
	return report.write(os.Stdout)
}
