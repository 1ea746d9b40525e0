package main

import (
	"time"

	"github.com/tapir-cni/tapir/tap"
)

// timeouts are the gro_flush_timeouts that are measured.
var timeouts = []time.Duration{0, 20 * time.Microsecond, 50 * time.Microsecond}

// polling gives a setting for each timeout.
func polling(threaded, batch bool) []tap.Setting {
	var list []tap.Setting
	for _, timeout := range timeouts {
		s := tap.Setting{NAPI: true, Threaded: threaded, Batch: batch, GROFlushTimeout: timeout}
		if timeout > 0 {
			s.DeferHardIRQs = 1
		}
		list = append(list, s)
	}
	return list
}

// loads are all that is measured, those of one stream into the node first.
func loads() []load {
	var list []load
	for _, g := range []guest{bare, checksum, tso} {
		list = append(list, load{guest: g, streams: 1})
	}
	for _, g := range []guest{bare, tso} {
		list = append(list, load{guest: g, streams: 2}, load{guest: g, streams: 1, down: true})
	}
	return list
}

// table is every row but those of the chosen settings: with one stream into the node all settings, else the plain ones.
func table() []*Row {
	var rows []*Row
	for _, l := range loads() {
		rows = append(rows, newRow(l, tap.Setting{}))
		if l.streams > 1 || l.down {
			rows = append(rows, newRow(l, polling(false, false)[0]), newRow(l, polling(true, false)[0]), newRow(l, polling(true, true)[0]))
			continue
		}
		for _, s := range append(append(polling(false, false), polling(true, false)...), polling(true, true)...) {
			rows = append(rows, newRow(l, s))
		}
		apart := newRow(l, polling(true, false)[0])
		apart.apart = true
		apart.Name += ", a CPU each"
		rows = append(rows, apart)
	}
	return rows
}

// choose adds, behind the other rows of each load, one for the setting that the rules give for the traffic that look sees in the load's
// row without NAPI.
func choose(rows []*Row, look func(*Row) (tap.Traffic, error)) []*Row {
	var all []*Row
	var base *Row
	for i, r := range rows {
		all = append(all, r)
		if r.base() {
			base = r
		}
		if i+1 == len(rows) || rows[i+1].load != r.load {
			all = append(all, chosenRow(base, look))
		}
	}
	return all
}

func chosenRow(base *Row, look func(*Row) (tap.Traffic, error)) *Row {
	traffic, err := look(base)
	rule := tap.Choose(traffic)
	row := newRow(base.load, rule.Setting)
	row.Rule, row.Name = rule.Name, "rule "+rule.Name+": "+row.Name
	if err != nil {
		row.Rule, row.Name, row.Failed = "unknown", "what the rules choose", err.Error()
	}
	return row
}
