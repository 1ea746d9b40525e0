package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"github.com/tapir-cni/tapir/test/bench/goal"
)

// heldNumbers are the numbers of held addresses that one allocation is measured at.
var heldNumbers = []int{1, 1000, 60000}

// warmUp rounds are made and not counted.
const warmUp = 2

// pair makes both plugins with empty stores, and gives what takes the stores away.
func pair(o options) (plugins [2]plugin, remove func() error, err error) {
	dir, err := os.MkdirTemp("/run", "bench-ipam-*")
	if err != nil {
		return plugins, nil, err
	}
	return [2]plugin{ours(o, dir+"/ours"), theirs(o, dir+"/theirs")}, func() error { return os.RemoveAll(dir) }, nil
}

// measureHeld times one allocation after another with held addresses held, and releases each outside of the timing.
func measureHeld(o options, held int) (row Row, err error) {
	plugins, remove, err := pair(o)
	if err != nil {
		return row, err
	}
	row = Row{Held: held}
	for _, p := range plugins {
		if err := p.seed(0, held); err != nil {
			return row, fmt.Errorf("seed %s: %w", p.name, err)
		}
	}
	order := rand.New(rand.NewPCG(1, 2))
	for round := range warmUp + o.rounds {
		id := fmt.Sprintf("round-%d", round)
		for _, i := range order.Perm(2) {
			out, _, err := plugins[i].add(id)
			if err != nil {
				return row, err
			}
			if err := plugins[i].del(id); err != nil {
				return row, err
			}
			if round >= warmUp {
				row.sample(i, out.Took)
			}
		}
	}
	return row, remove()
}

func (r *Row) sample(i int, took time.Duration) {
	into := &r.Ours
	if i == 1 {
		into = &r.Theirs
	}
	*into = append(*into, milliseconds(took))
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// measureFill takes the first and the last addresses of a /16 from tapir-ipam, one by one, and proves that each address was given once and that
// the next is refused. Between them the store is filled in one transaction. host-local's time for its last ones stands beside it, of fewer calls.
func measureFill(o options) (*Fill, error) {
	plugins, remove, err := pair(o)
	if err != nil {
		return nil, err
	}
	f := &Fill{Taken: o.last}
	p := plugins[0]
	given := make(map[netip.Addr]bool)
	take := func(name string, n int) (goal.Sample, error) {
		var s goal.Sample
		for i := range n {
			out, addr, failed := p.add(fmt.Sprintf("%s-%d", name, i))
			if failed != nil {
				return nil, failed
			}
			if given[addr] {
				return nil, fmt.Errorf("%s was given twice", addr)
			}
			given[addr] = true
			s = append(s, milliseconds(out.Took))
		}
		return s, nil
	}
	if f.First, err = take("first", o.last); err != nil {
		return nil, err
	}
	if err := p.seed(0, usable-2*o.last); err != nil {
		return nil, err
	}
	if f.Last, err = take("last", o.last); err != nil {
		return nil, err
	}
	if _, addr, err := p.add("one-more"); err == nil {
		return nil, fmt.Errorf("a full /16 gave %s", addr)
	}
	other := plugins[1]
	calls := min(o.last, theirLast)
	if err := other.seed(0, usable-calls); err != nil {
		return nil, err
	}
	for i := range calls {
		out, _, err := other.add(fmt.Sprintf("last-%d", i))
		if err != nil {
			return nil, err
		}
		f.TheirLast = append(f.TheirLast, milliseconds(out.Took))
	}
	return f, remove()
}

// theirLast bounds the calls of host-local in a nearly full /16: each reads all its files.
const theirLast = 10
