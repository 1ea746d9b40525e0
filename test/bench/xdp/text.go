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
	throughput: {"Gbit/s", 1e9, 1},
	p50:        {"µs", 1e3, 1},
	p99:        {"µs", 1e3, 1},
}

func (u unit) show(v float64) string { return fmt.Sprintf("%.*f", u.digits, v/u.divisor) }

// cell is the median with quartiles.
func (u unit) cell(s goal.Summary) string {
	return fmt.Sprintf("%s (%s–%s)", u.show(s.Median), u.show(s.Low), u.show(s.High))
}

// write prints the report, its tables as aligned text or in Markdown.
func (r *Report) write(w io.Writer, markdown bool) error {
	fmt.Fprintf(w, "Linux %s, %d CPUs, load %.1f before; %d rounds of %s a measurement, in random order; medians (quartiles)\n", r.Kernel, r.CPUs, r.Load, r.Rounds, r.Duration)
	for _, t := range tests {
		for _, metric := range t.metrics {
			rows := r.rows(t, metric)
			if len(rows) == 1 {
				continue
			}
			fmt.Fprintf(w, "\n%s: %s, %s\n\n", t.title, metric, units[metric].name)
			if err := writeTable(w, rows, markdown); err != nil {
				return err
			}
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

// rows are of one metric: the head, then a variant each.
func (r *Report) rows(t test, metric string) [][]string {
	head := []string{""}
	for _, c := range t.cases {
		head = append(head, c.note)
	}
	rows := [][]string{head}
	for _, variant := range t.variants {
		row, measured := []string{titles[variant]}, false
		for _, c := range t.cases {
			s, ok := r.summary(t.name, c.name, variant, metric)
			if !ok {
				row = append(row, "")
				continue
			}
			row, measured = append(row, units[metric].cell(s)), true
		}
		if measured {
			rows = append(rows, row)
		}
	}
	return rows
}

func writeTable(w io.Writer, rows [][]string, markdown bool) error {
	if markdown {
		for i, row := range rows {
			fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
			if i == 0 {
				fmt.Fprintf(w, "|%s\n", strings.Repeat(" --- |", len(row)))
			}
		}
		return nil
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(out, "  "+strings.Join(row, "\t"))
	}
	return out.Flush()
}
