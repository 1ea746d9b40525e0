package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tapir-cni/tapir/test/bench/call"
	"github.com/tapir-cni/tapir/test/bench/node"
)

// warmUp rounds are made and not counted.
const warmUp = 2

// pause lets the kernel finish what a call left it to do later (RCU callbacks) before the next is timed.
const pause = 5 * time.Millisecond

// measureLatency runs the rounds: each calls every variant's ADD and DEL once, in random order, and deletes a TAP and
// a veth pair by hand.
func measureLatency(n *node.Node, o options, chosen variants, report *Report) error {
	undo, err := hold(n, o, chosen, report)
	if err != nil {
		return err
	}
	order := rand.New(rand.NewPCG(1, 2)) // the same order in every run
	for round := range warmUp + o.rounds {
		into := report
		if round < warmUp {
			into = &Report{Rows: make([]*Row, len(chosen))}
			for i := range into.Rows {
				into.Rows[i] = &Row{}
			}
		}
		if err := measureRound(n, chosen, fmt.Sprintf("bench-%d", round), order.Perm(len(chosen)+1), into); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	for _, c := range undo {
		if _, err := c.Do(); err != nil {
			return err
		}
	}
	return nil
}

// hold makes the attachments that stay meanwhile, as on a node that already runs pods, so that what the first ADD of a node
// sets up (tapir loads its BPF programs, bridge makes its bridge) and the last DEL takes down is not counted. It gives the
// calls that undo them.
func hold(n *node.Node, o options, chosen variants, report *Report) ([]call.Call, error) {
	var undo []call.Call
	for _, v := range chosen {
		row := &Row{Name: v.name}
		report.Rows = append(report.Rows, row)
		for i := range o.held {
			netns, err := n.NewNetns()
			if err != nil {
				return nil, err
			}
			c, took, err := addProven(v, fmt.Sprintf("held-%d", i), netns)
			if err != nil {
				return nil, err
			}
			if i == 0 {
				row.First = took
			}
			undo = append(undo, c)
		}
	}
	return undo, nil
}

// measureRound adds one sample of everything to the report. Its order has the variants' indexes, and one beyond for the
// kernel alone.
func measureRound(n *node.Node, chosen variants, id string, order []int, report *Report) error {
	sandboxes, err := n.NewNetnses(len(order))
	if err != nil {
		return err
	}
	time.Sleep(pause)
	for _, i := range order {
		if i == len(chosen) {
			err = report.Floor.take(func() (time.Duration, error) { return groupDelete(sandboxes[i]) })
		} else {
			err = once(chosen[i], id, sandboxes[i], report.Rows[i])
		}
		if err != nil {
			return err
		}
	}
	v, ok := chosen.find("tapir")
	if !ok {
		return nil
	}
	return report.Version.take(func() (time.Duration, error) {
		version, err := v.call("VERSION", "", "").Do()
		return version.Took, err
	})
}

// once times one ADD and one DEL in a fresh sandbox.
func once(v variant, id, netns string, row *Row) error {
	undo, add, err := addProven(v, id, netns)
	if err != nil {
		return err
	}
	time.Sleep(pause)
	deleted, err := undo.Do()
	if err != nil {
		return err
	}
	time.Sleep(pause)
	row.Add.Samples = append(row.Add.Samples, add)
	row.Del.Samples = append(row.Del.Samples, deleted.Took)
	return nil
}

// addProven times an ADD, proves that it did its work, and gives the DEL that undoes it. What is not tapir's must give an
// address; tapir's must carry frames.
func addProven(v variant, id, netns string) (undo call.Call, took time.Duration, err error) {
	c := v.call("ADD", id, netns)
	added, err := c.Do()
	if err != nil {
		return call.Call{}, 0, err
	}
	if v.ours {
		err = proveFrames(added.Stdout, netns, v.queues)
	} else {
		err = proveAddress(added.Stdout)
	}
	if err != nil {
		return call.Call{}, 0, fmt.Errorf("ADD of %s: %w", v.name, err)
	}
	c.Command, c.Prev = "DEL", added.Stdout
	return c, added.Took, nil
}
