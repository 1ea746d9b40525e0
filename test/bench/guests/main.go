// Command bench-guests measures what a fixed identity inside the guest costs.
//
// Two pairs of pods stand side by side on each path, the default one and the shortcut by XDP: one whose guests have the pods' own addresses,
// one of clones, all with the same MAC and address inside. Pairs take turns in random order at TCP, with and without the guests' segmentation
// offload, and at small frames. Then the node is filled with clones, and further ones are added in turns: by ADD of tapir, and as
// Firecracker's guide for network-for-clones does it, with a netns, a TAP, a veth and rules of iptables for each.
//
// It prints medians with quartiles, and last one line a goal: "goal NAME VALUE OP BOUND met" or "short". The exit code is 0 when everything
// could be measured, met or short.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tapir-cni/tapir/test/bench/node"
)

type options struct {
	bin      string // folder of tapir
	rounds   int
	duration time.Duration // of one measurement
	clones   int           // there before the first that is measured
	adds     int           // measured
	parts    string
	output   string
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "`folder` of tapir")
	flag.IntVar(&o.rounds, "rounds", 7, "measured rounds of traffic")
	flag.DurationVar(&o.duration, "duration", 2*time.Second, "how long one measurement of traffic takes")
	flag.IntVar(&o.clones, "clones", 990, "clones of each kind that are there before the first that is measured")
	flag.IntVar(&o.adds, "adds", 20, "measured clones of each kind")
	flag.StringVar(&o.parts, "parts", "all", "what to measure: traffic, add or all")
	flag.StringVar(&o.output, "o", "text", "output format: text or json")
	flag.Parse()
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, "bench-guests:", err)
		os.Exit(2)
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-guests:", err)
		os.Exit(1)
	}
}

func (o *options) check() error {
	var faults []error
	if flag.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	if o.rounds < 1 || o.adds < 1 {
		faults = append(faults, fmt.Errorf("-rounds and -adds: want at least 1, got %d and %d", o.rounds, o.adds))
	}
	if o.duration < 10*time.Millisecond {
		faults = append(faults, fmt.Errorf("-duration: want at least 10ms, got %s", o.duration))
	}
	if o.clones < 0 || o.clones+o.adds > maxClones {
		faults = append(faults, fmt.Errorf("-clones and -adds: want 0 to %d together, got %d", maxClones, o.clones+o.adds))
	}
	if o.parts != "traffic" && o.parts != "add" && o.parts != "all" {
		faults = append(faults, fmt.Errorf("-parts: want traffic, add or all, got %q", o.parts))
	}
	if o.output != "text" && o.output != "json" {
		faults = append(faults, fmt.Errorf("-o: want text or json, got %q", o.output))
	}
	absolute, err := filepath.Abs(o.bin)
	o.bin = absolute
	return errors.Join(append(faults, err)...)
}

func run(o options) error {
	if !node.Inside() {
		return node.Reexec()
	}
	n, err := node.New()
	if err != nil {
		return fmt.Errorf("set up the node: %w", err)
	}
	if err := forward(); err != nil {
		return err
	}
	report := &Report{Rounds: o.rounds, Duration: o.duration}
	if o.parts != "add" {
		if err := measureTraffic(o, n, report); err != nil {
			return err
		}
	}
	if o.parts != "traffic" {
		if err := measureAdds(o, n, report); err != nil {
			return err
		}
	}
	report.judge()
	if o.output == "json" {
		return json.NewEncoder(os.Stdout).Encode(report)
	}
	return report.write(os.Stdout)
}

// forward makes the node route, as its administrator would have.
func forward() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return fmt.Errorf("turn forwarding on: %w", err)
	}
	return nil
}
