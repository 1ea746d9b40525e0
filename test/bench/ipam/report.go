package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/tapir-cni/tapir/test/bench/goal"
)

// Report is everything that was measured, in milliseconds.
type Report struct {
	Rounds int         `json:"rounds"`
	Rows   []Row       `json:"rows"`
	Fill   *Fill       `json:"fill"`
	Goals  []goal.Goal `json:"goals"`
}

// Row is one allocation with a number of addresses held.
type Row struct {
	Held   int         `json:"held"`
	Ours   goal.Sample `json:"tapirIPAM"`
	Theirs goal.Sample `json:"hostLocal"`
}

// Fill is a /16 from empty to full.
type Fill struct {
	Taken     int         `json:"taken"` // of first and last
	First     goal.Sample `json:"first"`
	Last      goal.Sample `json:"last"`
	TheirLast goal.Sample `json:"hostLocalLast"`
}

// bounds are the goals by heldNumbers' elements.
var bounds = map[int]float64{1: 0.9, 1000: 0.4, 60000: 0.01}

// lastBound is what "as cheap as the first" allows for noise.
const lastBound = 1.2

func (r *Report) judge() {
	for _, row := range r.Rows {
		r.Goals = append(r.Goals, goal.AtMost(fmt.Sprintf("add_with_%d_held", row.Held), row.Ours.Quantile(0.5)/row.Theirs.Quantile(0.5), bounds[row.Held]))
	}
	r.Goals = append(r.Goals, goal.AtMost("last_of_16_vs_first", r.Fill.Last.Quantile(0.5)/r.Fill.First.Quantile(0.5), lastBound))
}

func (r *Report) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

func (r *Report) writeText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "One allocation, milliseconds, median (quartiles) of %d\n", r.Rounds)
	fmt.Fprintf(t, "held\ttapir-ipam\thost-local\ttapir-ipam is\n")
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%d\t%s\t%s\t%.4f of it\n", row.Held, text(row.Ours), text(row.Theirs), row.Ours.Quantile(0.5)/row.Theirs.Quantile(0.5))
	}
	fmt.Fprintf(t, "\nA /16, the first %d and the last %d addresses\n", r.Fill.Taken, r.Fill.Taken)
	fmt.Fprintf(t, "\ttapir-ipam\thost-local\n")
	fmt.Fprintf(t, "first\t%s\t\n", text(r.Fill.First))
	fmt.Fprintf(t, "last\t%s\t%s, of %d\n", text(r.Fill.Last), text(r.Fill.TheirLast), len(r.Fill.TheirLast))
	fmt.Fprintln(t)
	if err := t.Flush(); err != nil {
		return err
	}
	return goal.Write(w, r.Goals)
}

func text(s goal.Sample) string {
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Quantile(0.5), s.Quantile(0.25), s.Quantile(0.75))
}
