package main

import (
	"fmt"
	"strings"
)

// Goal is one bound that the project set itself.
type Goal struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Op    string  `json:"op"`
	Bound float64 `json:"bound"`
	Met   bool    `json:"met"`
}

// String is the line that scripts read.
func (g Goal) String() string {
	verdict := "short"
	if g.Met {
		verdict = "met"
	}
	return fmt.Sprintf("goal %s %.3f %s %g %s", g.Name, g.Value, g.Op, g.Bound, verdict)
}

// atMost is a goal whose value may not be above the bound.
func atMost(name string, value, bound float64) Goal {
	return Goal{Name: name, Value: value, Op: "<=", Bound: bound, Met: value <= bound}
}

// judge fills in the goals that the measured rows allow.
func (r *Report) judge() {
	ours := r.row("tapir")
	bounds := []struct {
		peer     string
		add, del float64
	}{{"bridge", 0.6, 0.85}, {"ptp", 0.6, 0.7}, {"tap", 0.6, 0.7}}
	var dels []Goal
	for _, b := range bounds {
		if row := r.row(b.peer); row != nil && ours != nil {
			r.Goals = append(r.Goals, atMost("add_vs_"+b.peer, ratio(ours.Add, row.Add), b.add))
			dels = append(dels, atMost("del_vs_"+b.peer, ratio(ours.Del, row.Del), b.del))
		}
	}
	r.Goals = append(r.Goals, dels...)
	if m := r.Memory; m != nil {
		r.Goals = append(r.Goals, atMost("slab_vs_tap", m.TapirKB/m.TapKB, 0.1))
	}
}

func ratio(ours, theirs Series) float64 {
	return float64(ours.median()) / float64(theirs.median())
}

func masqueraded(name string) bool { return strings.HasSuffix(name, masq) }
