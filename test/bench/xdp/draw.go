package main

import (
	"os"
	"path/filepath"
)

// A plot is one bar chart of a report: a group a case, a bar a variant.
type plot struct {
	file, title string
	test        string
	groups      []plotGroup
}

// A plotGroup is one case and what is shown of it.
type plotGroup struct {
	label, kase, metric string
	instead             string // metric of variants that do not have the first
}

// plots are what draw draws. They show what the tables show.
var plots = []plot{
	{
		file: "bench-xdp-frames.svg", title: "UDP frames from one TAP to the other on one node", test: "frames",
		groups: []plotGroup{
			{"64 bytes", small, delivered, accepted}, {"64 bytes, 1024 flows", "64 x 1024", delivered, accepted},
			{"512 bytes", "512", delivered, accepted}, {"1514 bytes", "1514", delivered, accepted},
			{"1514 bytes, partial", "1514 partial", delivered, accepted},
		},
	},
	{
		file: "bench-xdp-tcp.svg", title: "TCP between two guests of one node", test: "tcp",
		groups: []plotGroup{{"no offload", noOffload, throughput, ""}, {"checksum offload", checksumOff, throughput, ""}, {"checksum offload, TSO", tso, throughput, ""}},
	},
	{
		file: "bench-xdp-rtt.svg", title: "Round trip of a 64-byte UDP frame", test: "rtt",
		groups: []plotGroup{{"median", small, p50, ""}, {"99th percentile", small, p99, ""}},
	},
	{
		file: "bench-xdp-spoof.svg", title: "Frames from a foreign address, dropped", test: "spoof",
		groups: []plotGroup{{"64 bytes", small, discarded, ""}},
	},
}

// draw writes the plots of what the report has into the folder.
func (r *Report) draw(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, p := range plots {
		c := r.chart(p)
		if len(c.Groups) == 0 {
			continue
		}
		if err := os.WriteFile(filepath.Join(folder, p.file), c.svg(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// chart fills the plot with the report's numbers.
func (r *Report) chart(p plot) chart {
	var of test
	for _, t := range tests {
		if t.name == p.test {
			of = t
		}
	}
	c := chart{Title: p.title, Unit: units[p.groups[0].metric].name, Digits: units[p.groups[0].metric].digits}
	seen := make(map[string]bool)
	for _, g := range p.groups {
		group := group{Label: g.label}
		for _, variant := range of.variants {
			s, ok := r.summary(p.test, g.kase, variant, g.metric)
			if !ok && g.instead != "" {
				s, ok = r.summary(p.test, g.kase, variant, g.instead)
			}
			if !ok {
				continue
			}
			by := units[g.metric].divisor
			group.Bars = append(group.Bars, bar{Class: variant, Value: s.Median / by, Low: s.Low / by, High: s.High / by})
			if !seen[variant] {
				seen[variant] = true
				c.Legend = append(c.Legend, legend{Class: variant, Label: titles[variant]})
			}
		}
		if len(group.Bars) > 0 {
			c.Groups = append(c.Groups, group)
		}
	}
	return c
}
