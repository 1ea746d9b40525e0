package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/tapir-cni/tapir/test/bench/goal"
)

// A unit is how a metric is shown.
type unit struct {
	name    string
	divisor float64
	digits  int
}

var units = map[string]unit{
	accepted:   {"million frames a second", 1e6, 2},
	delivered:  {"million frames a second", 1e6, 2},
	discarded:  {"million frames a second", 1e6, 2},
	writerCPU:  {"ns a frame", 1, 0},
	throughput: {"Gbit/s", 1e9, 1},
	p50:        {"µs", 1e3, 1},
	p99:        {"µs", 1e3, 1},
}

func (u unit) show(v float64) string { return fmt.Sprintf("%.*f", u.digits, v/u.divisor) }

// cell is the median with quartiles.
func (u unit) cell(s goal.Summary) string {
	return fmt.Sprintf("%s (%s–%s)", u.show(s.Median), u.show(s.Low), u.show(s.High))
}

// write prints the report: aligned text, and a line a goal.
func (r *Report) write(w io.Writer) error {
	fmt.Fprintln(w, r.circumstances())
	for _, t := range r.tables() {
		fmt.Fprintf(w, "\n%s\n\n", t.title)
		out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, row := range t.rows {
			fmt.Fprintln(out, "  "+strings.Join(row, "\t"))
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	for _, line := range r.Paths {
		fmt.Fprintln(w, line)
	}
	for _, p := range r.Profiles {
		p.write(w)
	}
	fmt.Fprintln(w)
	return goal.Write(w, r.Goals)
}

// circumstances are what a reader must know of the run.
func (r *Report) circumstances() string {
	return fmt.Sprintf("Linux %s, %d CPUs, load %.1f before; rounds: %d, each measurement %s, in random order; medians (quartiles)",
		r.Kernel, r.CPUs, r.Load, r.Rounds, r.Duration)
}

// A table has a row a variant below its head.
type table struct {
	title string
	rows  [][]string
}

// tables are of what was measured: one a metric with a column a case, or for a test with one case one with a column a metric.
func (r *Report) tables() []table {
	var list []table
	for _, t := range tests {
		if len(t.cases) == 1 {
			c := t.cases[0]
			columns := make([]column, len(t.metrics))
			for i, metric := range t.metrics {
				columns[i] = column{metric + ", " + units[metric].name, c.name, metric}
			}
			list = append(list, r.table(t, t.title, columns))
			continue
		}
		for _, metric := range t.metrics {
			columns := make([]column, len(t.cases))
			for i, c := range t.cases {
				columns[i] = column{c.note, c.name, metric}
			}
			list = append(list, r.table(t, fmt.Sprintf("%s: %s, %s", t.title, metric, units[metric].name), columns))
		}
	}
	kept := list[:0]
	for _, t := range list {
		if len(t.rows) > 1 {
			kept = append(kept, t)
		}
	}
	return kept
}

// A column shows one metric of one case.
type column struct{ head, kase, metric string }

func (r *Report) table(of test, title string, columns []column) table {
	head := []string{""}
	for _, c := range columns {
		head = append(head, c.head)
	}
	t := table{title: title, rows: [][]string{head}}
	for _, variant := range of.variants {
		row, measured := []string{titles[variant]}, false
		for _, c := range columns {
			s, ok := r.summary(of.name, c.kase, variant, c.metric)
			if !ok {
				row = append(row, "")
				continue
			}
			row, measured = append(row, units[c.metric].cell(s)), true
		}
		if measured {
			t.rows = append(t.rows, row)
		}
	}
	return t
}
