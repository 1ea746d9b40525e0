package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tapir-cni/tapir/test/bench/goal"
)

// Row is one number of one variant.
type Row struct {
	Test    string      `json:"test"`
	Variant string      `json:"variant"`
	Unit    string      `json:"unit"`
	Values  goal.Sample `json:"values"`
}

// Report is what a run measured.
type Report struct {
	Rounds   int           `json:"rounds"`
	Duration time.Duration `json:"durationNs"` // of one measurement of traffic
	Rows     []*Row        `json:"rows"`
	Goals    []goal.Goal   `json:"goals"`
}

func (r *Report) row(test, variant string) *Row {
	for _, row := range r.Rows {
		if row.Test == test && row.Variant == variant {
			return row
		}
	}
	return nil
}

func (r *Report) add(test, variant, unit string, value float64) {
	row := r.row(test, variant)
	if row == nil {
		row = &Row{Test: test, Variant: variant, Unit: unit}
		r.Rows = append(r.Rows, row)
	}
	row.Values = append(row.Values, value)
}

// ratio is of medians; false where one was not measured.
func (r *Report) ratio(test, variant, to string) (float64, bool) {
	a, b := r.row(test, variant), r.row(test, to)
	if a == nil || b == nil || b.Values.Median() == 0 {
		return 0, false
	}
	return a.Values.Median() / b.Values.Median(), true
}

// judge puts the rows in order, clones behind what they are compared with, and fills in the goals that were measured.
func (r *Report) judge() {
	slices.SortStableFunc(r.Rows, func(a, b *Row) int {
		return cmp.Or(cmp.Compare(a.Test, b.Test), cmp.Compare(a.Variant, b.Variant))
	})
	for _, path := range []string{"default", "xdp"} {
		for _, test := range []string{"tcp-tso", "tcp", "frames-64"} {
			if v, ok := r.ratio(test, path+"-clones", path); ok {
				name := strings.ReplaceAll("clones_"+test+"_"+path, "-", "_")
				r.Goals = append(r.Goals, goal.AtLeast(name, v, 0.95))
			}
		}
	}
	if v, ok := r.ratio("add", byTapir, byGuide); ok {
		r.Goals = append(r.Goals, goal.AtMost("clone_add_vs_iptables", v, 0.2))
	}
}

func (r *Report) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TEST\tVARIANT\tMEDIAN\tQUARTILES\tUNIT")
	for _, row := range r.Rows {
		s, unit, scale := row.Values.Summary(), row.Unit, 1.0
		switch unit {
		case "bit/s":
			unit, scale = "Gbit/s", 1e9
		case "frames/s":
			unit, scale = "Mpps", 1e6
		}
		fmt.Fprintf(table, "%s\t%s\t%.3f\t%.3f to %.3f\t%s\n", row.Test, row.Variant, s.Median/scale, s.Low/scale, s.High/scale, unit)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return goal.Write(w, r.Goals)
}
