package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/tapir-cni/tapir/test/bench/goal"
)

// Report is what was measured, in seconds.
type Report struct {
	Pods     int         `json:"pods"`
	Rounds   int         `json:"rounds"`
	Networks [2]Network  `json:"networks"`
	Answered goal.Sample `json:"guestAnswered"` // from the creation of a microVM pod to the guest's first answer
	Booted   goal.Sample `json:"guestBooted"`   // the guest's own part of that, from its power-on
	Kernel   goal.Sample `json:"guestKernel"`   // of that, by the guest's own clock, until it had its address
	Beyond   goal.Sample `json:"guestBeyond"`   // the rest
	Goals    []goal.Goal `json:"goals"`
}

// Network is one side: for each round the pods' times.
type Network struct {
	Name   string        `json:"name"`
	Rounds []goal.Sample `json:"rounds"`
}

// all are the times of all rounds.
func (n Network) all() goal.Sample { return slices.Concat(n.Rounds...) }

// medians are the rounds' medians.
func (n Network) medians() (s goal.Sample) {
	for _, r := range n.Rounds {
		s = append(s, r.Quantile(0.5))
	}
	return s
}

// bound is what a pod may take with tapir, of bridge's time: the median over rounds of the rounds' medians.
const bound = 1.05

// beyondBound is what a microVM pod may take beyond its guest's own boot, in seconds.
const beyondBound = 1

func (r *Report) judge() {
	var ratios goal.Sample // of rounds beside each other
	theirs, ours := r.Networks[0].medians(), r.Networks[1].medians()
	for i := range ours {
		ratios = append(ratios, ours[i]/theirs[i])
	}
	r.Goals = append(r.Goals, goal.AtMost("pod_start_vs_bridge", ratios.Quantile(0.5), bound))
	r.Goals = append(r.Goals, goal.AtMost("microvm_pod_beyond_boot_seconds", r.Beyond.Quantile(0.5), beyondBound))
}

func (r *Report) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "%d pods on two nodes at once, from creation to Running, seconds, %d rounds\n", r.Pods, r.Rounds)
	fmt.Fprintf(t, "\tmedian\tp99\tmedians of the rounds\n")
	for _, n := range r.Networks {
		all := n.all()
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.2f\n", n.Name, all.Quantile(0.5), all.Quantile(0.99), n.medians())
	}
	fmt.Fprintf(t, "\nmicroVM pods, one after the other, seconds, median of %d\n", len(r.Answered))
	fmt.Fprintf(t, "creation to the guest's first answer\t%.2f\n", r.Answered.Quantile(0.5))
	fmt.Fprintf(t, "of that its own boot, from power-on\t%.2f\n", r.Booted.Quantile(0.5))
	fmt.Fprintf(t, "of that its kernel's, by the guest's clock\t%.2f\n", r.Kernel.Quantile(0.5))
	fmt.Fprintf(t, "the pod beyond its boot\t%.2f\n", r.Beyond.Quantile(0.5))
	fmt.Fprintln(t)
	if err := t.Flush(); err != nil {
		return err
	}
	return goal.Write(w, r.Goals)
}
