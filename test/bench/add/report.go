package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/tapir-cni/tapir/test/bench/goal"
)

// Report is what the benchmark measured; its JSON is the output of -o json, durations in microseconds.
type Report struct {
	Rounds  int         `json:"rounds"`
	Rows    []*Row      `json:"plugins"`
	Floor   Series      `json:"kernelDelFloor"`
	Version Series      `json:"tapirVersion"`
	Memory  *Memory     `json:"kernelMemory,omitempty"`
	Trace   *Trace      `json:"trace,omitempty"`
	Goals   []goal.Goal `json:"goals"`
}

// Row is one plugin's latencies.
type Row struct {
	Name  string        `json:"name"`
	First time.Duration `json:"-"` // the node's first ADD; 0 where none is held
	Add   Series        `json:"add"`
	Del   Series        `json:"del"`
}

// Memory is what the kernel's unreclaimable slab grew by for each TAP, in kB.
type Memory struct {
	Queues  int     `json:"queues"`
	Devices int     `json:"devices"`
	TapirKB float64 `json:"tapirKB"`
	TapKB   float64 `json:"tapKB"`
}

// Trace is where the time of tapir's ADD and DEL goes.
type Trace struct {
	Add []*Phase `json:"add"`
	Del []*Phase `json:"del"`
}

// Phase is one phase of a call.
type Phase struct {
	Name string `json:"name"`
	Series
}

// Series is the samples of one duration.
type Series struct {
	Samples []time.Duration
}

// take adds the sample that measure gives.
func (s *Series) take(measure func() (time.Duration, error)) error {
	d, err := measure()
	if err == nil {
		s.Samples = append(s.Samples, d)
	}
	return err
}

// MarshalJSON gives the quartiles in microseconds, and how many samples there were.
func (s Series) MarshalJSON() ([]byte, error) { return json.Marshal(s.summary()) }

// MarshalJSON gives the name beside the quartiles.
func (p *Phase) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Name string `json:"name"`
		summary
	}{p.Name, p.summary()})
}

type summary struct {
	Count  int   `json:"count"`
	Low    int64 `json:"p25us"`
	Median int64 `json:"medianus"`
	High   int64 `json:"p75us"`
}

func (s Series) summary() summary {
	return summary{len(s.Samples), s.quantile(0.25).Microseconds(), s.quantile(0.5).Microseconds(), s.quantile(0.75).Microseconds()}
}

// quantile is the q-quantile of the samples by linear interpolation; 0 where there are none.
func (s Series) quantile(q float64) time.Duration {
	values := make(goal.Sample, len(s.Samples))
	for i, d := range s.Samples {
		values[i] = float64(d)
	}
	return time.Duration(values.Quantile(q))
}

func (s Series) median() time.Duration { return s.quantile(0.5) }

func (r *Report) row(name string) *Row {
	for _, row := range r.Rows {
		if row.Name == name {
			return row
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

func (r *Report) writeText(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "%d rounds, plugins in random order; milliseconds, median (quartiles)\n\n", r.Rounds)
	fmt.Fprintf(out, "plugin\tADD\t\ttapir is\tDEL\t\ttapir is\tfirst ADD\t\n")
	for _, row := range r.Rows {
		add, del := r.ratios(row)
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", row.Name, milli(row.Add.median()), row.Add.spread(), add,
			milli(row.Del.median()), row.Del.spread(), del, first(row))
	}
	fmt.Fprintf(out, "kernel alone\t\t\t\t%s\t%s\t\t\t\n", milli(r.Floor.median()), r.Floor.spread())
	if err := out.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nkernel alone: one request that deletes a TAP and a veth pair, no process started.\n")
	if len(r.Version.Samples) > 0 {
		fmt.Fprintf(w, "tapir VERSION, a process that starts and ends: %s ms.\n", milli(r.Version.median()))
	}
	if m := r.Memory; m != nil {
		fmt.Fprintf(w, "kernel slab per %d-queue TAP (%d of them): tapir %.0f kB with its veth pair, tap %.0f kB.\n", m.Queues, m.Devices, m.TapirKB, m.TapKB)
	}
	if r.Trace != nil {
		if err := errors.Join(writeTrace(w, "ADD", r.Trace.Add), writeTrace(w, "DEL", r.Trace.Del)); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	return goal.Write(w, r.Goals)
}

// ratios are tapir's medians over the row's, of tapir with masquerade for a row with it; empty for tapir itself.
func (r *Report) ratios(row *Row) (add, del string) {
	ours := r.row("tapir")
	if masqueraded(row.Name) {
		ours = r.row("tapir" + masq)
	}
	if ours == nil || ours == row {
		return "", ""
	}
	return fmt.Sprintf("%.2f of it", ratio(ours.Add, row.Add)), fmt.Sprintf("%.2f of it", ratio(ours.Del, row.Del))
}

func writeTrace(w io.Writer, verb string, list []*Phase) error {
	fmt.Fprintf(w, "\nwhere the time of tapir's %s goes, ms (TAPIR_TRACE):\n", verb)
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, phase := range list {
		fmt.Fprintf(out, "  %s\t%s\t%s\n", phase.Name, milli(phase.median()), phase.spread())
	}
	return out.Flush()
}

// first is the node's first ADD, where it was made apart from the rounds.
func first(row *Row) string {
	if row.First == 0 {
		return ""
	}
	return milli(row.First)
}

func milli(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }

func (s Series) spread() string {
	return fmt.Sprintf("(%s-%s)", milli(s.quantile(0.25)), milli(s.quantile(0.75)))
}
