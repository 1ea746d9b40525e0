package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"text/tabwriter"
	"time"

	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"github.com/tapir-cni/tapir/test/bench/goal"
	"github.com/tapir-cni/tapir/test/bench/node"
	"golang.org/x/sys/unix"
)

// chooseBound is what tapird's own choice must reach of the best row that was set by hand.
const chooseBound = 0.9

// warmUp is how long streams run before they are measured: TCP finds its window.
const warmUp = 300 * time.Millisecond

// decideIn is how long tapird may take to decide at first.
const decideIn = 30 * time.Second

// A row is one setting under one load. auto is tapird's.
type row struct {
	name    string
	setting tap.Setting
	auto    bool
	rates   goal.Sample // Gbit/s, one a round
	rule    string      // that tapird chose last
}

func newRows() []*row {
	return []*row{
		{name: "no NAPI"},
		{name: "NAPI", setting: tap.Setting{NAPI: true}},
		{name: "NAPI, threaded", setting: tap.Setting{NAPI: true, Threaded: true}},
		{name: "NAPI, threaded batch", setting: tap.Setting{NAPI: true, Threaded: true, Batch: true}},
		{name: "NAPI, threaded batch, 50 us", setting: tap.Setting{NAPI: true, Threaded: true, Batch: true, GROFlushTimeout: 50 * time.Microsecond, DeferHardIRQs: 1}},
		{name: "tapird", setting: tap.Setting{NAPI: true}, auto: true},
	}
}

func runChoose(ctx context.Context, n *node.Node, o options, out io.Writer) (goals []goal.Goal, err error) {
	s, err := newSandbox(n, o.bin, "choose")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	fmt.Fprintf(out, "What tapird chooses against what was set by hand; %d rounds of %s a row, in random order; Gbit/s, medians (quartiles).\n", o.rounds, o.duration)
	for _, l := range loads {
		if o.only != "" && o.only != l.name {
			continue
		}
		rows := newRows()
		for round := range o.rounds {
			progress("choose: %s, round %d of %d", l.name, round+1, o.rounds)
			for _, i := range rand.Perm(len(rows)) {
				if ctx.Err() != nil {
					return goals, nil
				}
				rate, err := s.measureRow(rows[i], l, o)
				if err != nil {
					return goals, fmt.Errorf("%s, %s: %w", l.name, rows[i].name, err)
				}
				rows[i].rates = append(rows[i].rates, rate)
			}
		}
		best, value := judge(rows)
		if err := writeRows(out, l, rows, best); err != nil {
			return goals, err
		}
		goals = append(goals, goal.AtLeast("agent_choice_"+l.name, value, chooseBound))
	}
	return goals, nil
}

// judge gives the best row that was set by hand, by its median, and tapird's part of it: the median over the rounds.
func judge(rows []*row) (best *row, value float64) {
	var auto *row
	for _, r := range rows {
		switch {
		case r.auto:
			auto = r
		case best == nil || r.rates.Median() > best.rates.Median():
			best = r
		}
	}
	var ratios goal.Sample
	for i := range auto.rates {
		ratios = append(ratios, auto.rates[i]/best.rates[i])
	}
	return best, ratios.Median()
}

func writeRows(out io.Writer, l load, rows []*row, best *row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n%s\tGbit/s\t\t\n", l.name)
	for _, r := range rows {
		note := ""
		if r == best {
			note = "best by hand"
		}
		if r.auto {
			note = "rule " + r.rule
		}
		fmt.Fprintf(w, "  %s\t%.2f\t(%.2f-%.2f)\t%s\n", r.name, r.rates.Median(), r.rates.Quantile(0.25), r.rates.Quantile(0.75), note)
	}
	return w.Flush()
}

// measureRow measures one row once. Each begins with a device on which nothing is set.
func (s *sandbox) measureRow(r *row, l load, o options) (rate float64, err error) {
	var d *daemon
	if r.auto {
		if d, err = startTapird(o.bin, "--uplink=false"); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, d.stop()) }()
	}
	running, err := s.start(l, r.setting.NAPI)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.reset(r.setting.NAPI), running.close()) }()
	if r.auto {
		rule, err := d.rule(0, decideIn)
		if err != nil {
			return 0, err
		}
		r.rule = rule.To
		time.Sleep(time.Second) // the threads of the rule have their policy by then
	} else if err := s.set(r.setting); err != nil {
		return 0, err
	}
	time.Sleep(warmUp)
	return running.rate(o.duration)
}

// set makes a setting by hand.
func (s *sandbox) set(setting tap.Setting) error {
	if err := setting.Apply(s.pod, tapName); err != nil || !setting.Batch {
		return err
	}
	all, err := queueiter.Read()
	if err != nil {
		return err
	}
	var netns unix.Stat_t // others on the machine may have a TAP of that name
	if err := unix.Stat(s.pod, &netns); err != nil {
		return err
	}
	threads := 0
	for _, q := range all {
		if q.Device.Netns == uint32(netns.Ino) && q.Thread != 0 {
			threads++
			err = errors.Join(err, setting.ApplyThread(q.Thread))
		}
	}
	if threads != 1 {
		err = errors.Join(err, fmt.Errorf("NAPI threads of the pod's TAP: want 1, got %d", threads))
	}
	return err
}

// reset takes a setting back while a queue is there; without NAPI nothing is set.
func (s *sandbox) reset(napi bool) error {
	if !napi {
		return nil
	}
	return tap.Setting{}.Apply(s.pod, tapName)
}
