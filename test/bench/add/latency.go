package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// warmUp rounds are made and not counted: the first ADD of tapir after boot loads the BPF programs, the first of bridge
// makes the bridge.
const warmUp = 2

// pause lets the kernel finish what a call left it to do later (RCU callbacks) before the next is timed.
const pause = 5 * time.Millisecond

// measureLatency runs the rounds: each calls every variant's ADD and DEL once, in random order, and deletes a TAP and
// a veth pair by hand.
func measureLatency(n *node, o options, chosen variants, report *Report) error {
	rows := make(map[string]*Row)
	for _, v := range chosen {
		rows[v.name] = &Row{Name: v.name}
	}
	order := rand.New(rand.NewPCG(1, 2)) // the same order in every run
	for round := range warmUp + o.rounds {
		sandboxes, err := n.newNetnses(len(chosen) + 1)
		if err != nil {
			return err
		}
		time.Sleep(pause)
		for _, i := range order.Perm(len(chosen) + 1) {
			if i == len(chosen) {
				took, err := groupDelete(sandboxes[i])
				if err != nil {
					return fmt.Errorf("kernel's floor for DEL: %w", err)
				}
				if round >= warmUp {
					report.Floor.Samples = append(report.Floor.Samples, took)
				}
				continue
			}
			row := rows[chosen[i].name]
			add, del, err := once(chosen[i], fmt.Sprintf("bench-%d", round), sandboxes[i])
			switch {
			case err != nil:
				return fmt.Errorf("round %d: %w", round, err)
			case round == 0:
				row.First = add
			case round >= warmUp:
				row.Add.Samples = append(row.Add.Samples, add)
				row.Del.Samples = append(row.Del.Samples, del)
			}
		}
		if round >= warmUp && chosen.has("tapir") {
			version, err := call{variant: chosen[slices.Index(chosen.names(), "tapir")], command: "VERSION"}.do()
			if err != nil {
				return err
			}
			report.Version.Samples = append(report.Version.Samples, version.took)
		}
	}
	for _, v := range chosen {
		report.Rows = append(report.Rows, rows[v.name])
	}
	return nil
}

// once times one ADD and one DEL in a fresh sandbox. What is not tapir's must give an address; tapir's must carry frames.
func once(v variant, id, netns string) (add, del time.Duration, err error) {
	c := call{variant: v, command: "ADD", id: id, netns: netns}
	added, err := c.do()
	if err != nil {
		return 0, 0, err
	}
	if err = proveAdd(v, added.stdout, netns); err != nil {
		return 0, 0, fmt.Errorf("ADD of %s: %w", v.name, err)
	}
	time.Sleep(pause)
	c.command, c.prev = "DEL", added.stdout
	deleted, err := c.do()
	if err != nil {
		return 0, 0, err
	}
	time.Sleep(pause)
	return added.took, deleted.took, nil
}

func proveAdd(v variant, stdout []byte, netns string) error {
	if v.ours {
		return proveFrames(stdout, netns, v.queues)
	}
	return proveAddress(stdout)
}
