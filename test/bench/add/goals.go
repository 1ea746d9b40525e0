package main

import (
	"strings"

	"github.com/tapir-cni/tapir/test/bench/goal"
)

// judge fills in the goals that the measured rows allow.
func (r *Report) judge() {
	ours := r.row("tapir")
	bounds := []struct {
		peer     string
		add, del float64
	}{{"bridge", 0.6, 0.85}, {"ptp", 0.6, 0.7}, {"tap", 0.6, 0.7}}
	var dels []goal.Goal
	for _, b := range bounds {
		if row := r.row(b.peer); row != nil && ours != nil {
			r.Goals = append(r.Goals, goal.AtMost("add_vs_"+b.peer, ratio(ours.Add, row.Add), b.add))
			dels = append(dels, goal.AtMost("del_vs_"+b.peer, ratio(ours.Del, row.Del), b.del))
		}
	}
	r.Goals = append(r.Goals, dels...)
	if m := r.Memory; m != nil {
		r.Goals = append(r.Goals, goal.AtMost("slab_vs_tap", m.TapirKB/m.TapKB, 0.1))
	}
}

func ratio(ours, theirs Series) float64 {
	return float64(ours.median()) / float64(theirs.median())
}

func masqueraded(name string) bool { return strings.HasSuffix(name, masq) }
