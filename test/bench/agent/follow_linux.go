package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/tapir-cni/tapir/test/bench/goal"
	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/tapir-cni/tapir/test/bench/node"
)

// The bounds of the part: how long tapird may take to follow, and what a phase must reach of the same without a tuner.
const (
	followBound = 5.0 // seconds
	costBound   = 0.95
)

// A phase is one kind of frames. threaded is what tapird is to make of it.
type phase struct {
	name     string
	offload  int
	threaded int
}

var phases = []phase{
	{"small", guest.OffloadNone, 1},
	{"tso", guest.OffloadTSO, 0},
	{"small-again", guest.OffloadNone, 1},
}

func runFollow(ctx context.Context, n *node.Node, o options, out io.Writer) (goals []goal.Goal, err error) {
	s, err := newSandbox(n, o.bin, "follow")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	ratios := make([]goal.Sample, len(phases))
	rates := [2][]goal.Sample{make([]goal.Sample, len(phases)), make([]goal.Sample, len(phases))}
	var followed goal.Sample
	var story []line
	for round := range o.rounds {
		progress("follow: round %d of %d", round+1, o.rounds)
		var got [2][]float64 // without, with
		for _, with := range rand.Perm(2) {
			if ctx.Err() != nil {
				return nil, nil
			}
			var took goal.Sample
			if got[with], took, story, err = s.follow(o, with == 1, story); err != nil {
				return nil, err
			}
			followed = append(followed, took...)
		}
		for i := range phases {
			ratios[i] = append(ratios[i], got[1][i]/got[0][i])
			for with := range got {
				rates[with][i] = append(rates[with][i], got[with][i])
			}
		}
	}
	fmt.Fprintf(out, "\nA guest that changes what it sends; %d rounds, phases of %s; Gbit/s over the whole phase, medians.\n", o.rounds, o.phase)
	for i, p := range phases {
		fmt.Fprintf(out, "  %-12s without a tuner %.2f, with %.2f, times %.2f (%.2f-%.2f)\n", p.name, rates[0][i].Median(), rates[1][i].Median(),
			ratios[i].Median(), ratios[i].Quantile(0.25), ratios[i].Quantile(0.75))
		goals = append(goals, goal.AtLeast("agent_follow_cost_"+p.name, ratios[i].Median(), costBound))
	}
	fmt.Fprintf(out, "  followed a change after %.1f s (%.1f-%.1f, at most %.1f)\n\nThe last round as tapird's log tells it:\n",
		followed.Median(), followed.Quantile(0.25), followed.Quantile(0.75), followed.Quantile(1))
	for _, l := range story {
		fmt.Fprintf(out, "  %s %s → %s: %s %v\n", l.Kind, l.From, l.To, l.Why, l.Settings)
	}
	return append(goals, goal.AtMost("agent_follow_seconds", followed.Quantile(1), followBound)), nil
}

// follow lets the guest go through the phases once, with a tuner or without, and gives the throughput of each phase from its beginning to its
// end, and how long the tuner took to follow each change. The first phase is one that it knows already.
func (s *sandbox) follow(o options, with bool, story []line) (rates []float64, took goal.Sample, _ []line, err error) {
	mode := "--tuner=off"
	if with {
		mode = "--tuner=on"
	}
	d, err := startTapird(o.bin, "--uplink=false", mode)
	if err != nil {
		return nil, nil, story, err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	running, err := s.start(load{"follow", phases[0].offload, 1, false}, true)
	if err != nil {
		return nil, nil, story, err
	}
	defer func() { err = errors.Join(err, s.reset(true), running.close()) }()
	if _, err = s.await(phases[0].threaded, with, decideIn); err != nil {
		return nil, nil, story, fmt.Errorf("%w; tapird said %s", err, d.log.String())
	}
	for i, p := range phases {
		if err = s.offload(running, p.offload); err != nil {
			return nil, nil, story, err
		}
		followed := make(chan time.Duration, 1)
		failed := make(chan error, 1)
		go func() {
			after, awaitErr := s.await(p.threaded, with, o.phase)
			followed <- after
			failed <- awaitErr
		}()
		rate, rateErr := running.rate(o.phase)
		after := <-followed
		if err = errors.Join(rateErr, <-failed); err != nil {
			return nil, nil, story, fmt.Errorf("phase %s: %w; tapird said %s", p.name, err, d.log.String())
		}
		rates = append(rates, rate)
		if with && i > 0 {
			took = append(took, after.Seconds())
		}
	}
	if with {
		story = d.lines("tuned")
	}
	return rates, took, story, nil
}

// await waits until the TAP's threads are on or off, as a tuner makes them.
func (s *sandbox) await(threaded int, with bool, patience time.Duration) (time.Duration, error) {
	began := time.Now()
	if !with {
		return 0, nil
	}
	for time.Since(began) < patience {
		if now, err := s.tap.Number("threaded"); err != nil || now == threaded {
			return time.Since(began), err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return 0, fmt.Errorf("threaded: want %d, got no change in %s", threaded, patience)
}
