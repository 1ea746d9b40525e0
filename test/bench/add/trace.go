package main

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/tapir-cni/tapir/test/bench/call"
	"github.com/tapir-cni/tapir/test/bench/node"
)

// traceLine is one phase on tapir's standard error under TAPIR_TRACE; see package internal/trace.
var traceLine = regexp.MustCompile(`(?m)^tapir trace: (.+) (\d+)us$`)

// measureTrace runs ADD and DEL of tapir with the trace on, apart from the timed rounds.
func measureTrace(n *node.Node, o options, report *Report) error {
	v, _ := allVariants(o).find("tapir")
	stay, err := n.NewNetns()
	if err != nil {
		return err
	}
	undo, _, err := addProven(v, "stays", stay)
	if err != nil {
		return err
	}
	report.Trace, err = traceRounds(n, v, o.traced)
	if err != nil {
		return err
	}
	_, err = undo.Do()
	return err
}

func traceRounds(n *node.Node, v variant, rounds int) (*Trace, error) {
	var add, del phases
	for round := range warmUp + rounds {
		netns, err := n.NewNetns()
		if err != nil {
			return nil, err
		}
		added, deleted, err := traceOnce(v, fmt.Sprintf("trace-%d", round), netns)
		if err != nil {
			return nil, err
		}
		if round < warmUp {
			continue
		}
		if err := add.read(added); err != nil {
			return nil, fmt.Errorf("ADD: %w", err)
		}
		if err := del.read(deleted); err != nil {
			return nil, fmt.Errorf("DEL: %w", err)
		}
	}
	return &Trace{Add: add.list, Del: del.list}, nil
}

func traceOnce(v variant, id, netns string) (added, deleted call.Outcome, err error) {
	c := v.call("ADD", id, netns)
	c.Trace = true
	if added, err = c.Do(); err != nil {
		return call.Outcome{}, call.Outcome{}, err
	}
	time.Sleep(pause)
	c.Command, c.Prev = "DEL", added.Stdout
	if deleted, err = c.Do(); err != nil {
		return call.Outcome{}, call.Outcome{}, err
	}
	time.Sleep(pause)
	return added, deleted, nil
}

// phases collects the samples of each phase, in the order in which the plugin printed them first.
type phases struct {
	list []*Phase
}

func (p *phases) add(name string, d time.Duration) {
	for _, phase := range p.list {
		if phase.Name == name {
			phase.Samples = append(phase.Samples, d)
			return
		}
	}
	p.list = append(p.list, &Phase{Name: name, Series: Series{Samples: []time.Duration{d}}})
}

// totalPhase is the plugin's own name for the sum of its phases.
const totalPhase = "total"

// afterPhase is what the plugin cannot see: from its last line to the end of its process, as the caller waits for it.
const afterPhase = "process end"

// read takes one call's trace.
func (p *phases) read(o call.Outcome) error {
	lines := traceLine.FindAllStringSubmatch(o.Stderr, -1)
	if len(lines) == 0 {
		return fmt.Errorf("want lines \"tapir trace: PHASE NUMBERus\" on stderr, got %q", o.Stderr)
	}
	seen := make(map[string]time.Duration) // a phase that comes several times in a call is added up
	var order []string
	for _, line := range lines {
		us, err := strconv.ParseInt(line[2], 10, 64)
		if err != nil {
			return fmt.Errorf("trace line %q: %w", line[0], err)
		}
		if _, again := seen[line[1]]; !again {
			order = append(order, line[1])
		}
		seen[line[1]] += time.Duration(us) * time.Microsecond
	}
	for _, name := range order {
		p.add(name, seen[name])
	}
	if total, ok := seen[totalPhase]; ok {
		p.add(afterPhase, o.Took-total)
	}
	return nil
}
