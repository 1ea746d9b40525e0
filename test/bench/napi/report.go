package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/tapir-cni/tapir/test/bench/goal"
	"github.com/tapir-cni/tapir/test/bench/napi/vhost"
)

// Report is what the benchmark measured; its JSON is the output of -json.
type Report struct {
	Rounds   int           `json:"rounds"`
	Duration time.Duration `json:"durationNanoseconds"`
	CPUs     int           `json:"cpus"`
	Rows     []*Row        `json:"rows"`
	Vhost    *vhost.Result `json:"vhostNet,omitempty"`
	Goals    []goal.Goal   `json:"goals"`
}

func newReport(o options) *Report {
	return &Report{Rounds: o.rounds, Duration: o.duration, CPUs: runtime.NumCPU()}
}

// The bounds of the project.
const (
	bestBound   = 1.3  // best setting against no NAPI, where the guest's frames are small
	chosenBound = 0.95 // chosen setting against no NAPI, everywhere
)

// judge fills in the goals that the measured rows allow.
func (r *Report) judge() {
	r.judgeBest()
	r.judgeChosen()
	if r.Vhost != nil {
		r.Goals = append(r.Goals, r.Vhost.Goals()...)
	}
}

func (r *Report) judgeBest() {
	for _, base := range r.Rows {
		if best := r.best(base); best != nil && base.load.small() && base.load.streams == 1 {
			r.Goals = append(r.Goals, goal.AtLeast("napi_best_"+base.Load, best.against(base), bestBound))
		}
	}
}

func (r *Report) judgeChosen() {
	for _, base := range r.Rows {
		if !base.base() || !base.measured() {
			continue
		}
		for _, row := range r.Rows {
			if row.load == base.load && row.chosen() && row.measured() {
				r.Goals = append(r.Goals, goal.AtLeast("napi_chosen_"+base.Load, row.against(base), chosenBound))
			}
		}
	}
}

// writeText writes all that was measured, and the goals at the end.
func (r *Report) writeText(w io.Writer) error {
	if len(r.Rows) > 0 {
		if err := r.writeRows(w); err != nil {
			return err
		}
		r.writeRemarks(w)
	}
	if r.Vhost != nil {
		if err := r.Vhost.WriteText(w); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	return goal.Write(w, r.Goals)
}

// best gives the row that stands best against the row without NAPI; nil where that is none or nothing was measured. Rows that
// differ from others by more than the setting do not count.
func (r *Report) best(base *Row) *Row {
	if !base.base() || !base.measured() {
		return nil
	}
	var best *Row
	for _, row := range r.Rows {
		if row.load != base.load || row == base || row.apart || !row.measured() {
			continue
		}
		if best == nil || row.against(base) > best.against(base) {
			best = row
		}
	}
	return best
}

func (r *Report) baseOf(row *Row) *Row {
	for _, base := range r.Rows {
		if base.base() && base.load == row.load && base.measured() {
			return base
		}
	}
	return nil
}

func (r *Report) writeJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(r)
}

func (r *Report) writeRows(w io.Writer) error {
	fmt.Fprintf(w, "TCP through a pump that stands in for the VMM, %d CPUs, %d rounds of %s a row in random order; medians, (quartiles).\n"+
		"\"of it\" is the median over the rounds of Gbit/s divided by that without NAPI; CPU is seconds per GB of payload.\n"+
		"into stack: bytes per frame after GRO.\n", r.CPUs, r.Rounds, r.Duration)
	load := ""
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range r.Rows {
		if row.Load != load {
			load = row.Load
			fmt.Fprintf(out, "\n%s\tGbit/s\t\tof it\treads/GB\tfrom guest\tinto stack\tCPU\treceiver\tpump\tNAPI thread\n", load)
		}
		r.writeRow(out, row)
	}
	return out.Flush()
}

func (r *Report) writeRow(w io.Writer, row *Row) {
	if !row.measured() {
		fmt.Fprintf(w, "  %s\tnot measured\t\t\t\t\t\t\t\t\t\n", row.Name)
		return
	}
	fmt.Fprintf(w, "  %s\t%.2f\t(%.2f-%.2f)\t%s\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f\n", row.Name,
		row.Gbits.Median(), row.Gbits.Quantile(0.25), row.Gbits.Quantile(0.75), r.times(row), row.Reads.Median(), row.Written.Median(),
		row.Received.Median(), row.CPU.Median(), row.Receiver.Median(), row.Pump.Median(), row.Poll.Median())
}

// writeRemarks says what the figures do not: rows that failed, and frames that the guest's TAP dropped.
func (r *Report) writeRemarks(w io.Writer) {
	fmt.Fprintln(w)
	for _, row := range r.Rows {
		switch {
		case row.Failed != "":
			fmt.Fprintf(w, "not measured: %s, %s: %s\n", row.Load, row.Name, row.Failed)
		case row.Dropped.Quantile(1) > 0:
			fmt.Fprintf(w, "the guest's TAP dropped up to %.0f frames in a round: %s, %s\n", row.Dropped.Quantile(1), row.Load, row.Name)
		}
	}
}
