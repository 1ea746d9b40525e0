package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// Report is what the benchmark measured; its JSON is the output of -json.
type Report struct {
	Rounds  int               `json:"rounds"`
	Slice   string            `json:"slice"`
	Kernel  string            `json:"kernel"`
	Sockets map[string]string `json:"socketCalls"`         // on a TAP's descriptor: what the kernel answered
	NoRing  string            `json:"noIOURing,omitempty"` // why io_uring was not measured
	Rows    []*Row            `json:"rows"`
}

func (r *Report) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// writeText is Markdown, as docs/benchmarks.md has it, and after it a line a result for scripts.
func (r *Report) writeText(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s\n%s", r.markdown(), r.results())
	return err
}

// markdown is a table for each direction, sink, size and number of queues.
func (r *Report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Linux %s, %d rounds of %s a row in random order: thousands of frames a second, median (quartiles); CPU is ns a frame, the process's own /\n"+
		"the whole machine's (in steps of %d ms a slice).\n", r.Kernel, r.Rounds, r.Slice, tick.Milliseconds())
	var done []string
	for _, row := range r.Rows {
		if table := row.table(); !slices.Contains(done, table) {
			done = append(done, table)
			r.writeTable(&b, row)
		}
	}
	b.WriteString("\nOn a TAP's descriptor")
	for i, call := range slices.Sorted(maps.Keys(r.Sockets)) {
		fmt.Fprintf(&b, "%s %s is: %s", []string{"", ","}[min(i, 1)], call, r.Sockets[call])
	}
	b.WriteString(".\n")
	if r.NoRing != "" {
		fmt.Fprintf(&b, "io_uring was not measured: %s.\n", r.NoRing)
	}
	return b.String()
}

// writeTable writes the table that first is in, a line a method and three columns a NAPI.
func (r *Report) writeTable(b *strings.Builder, first *Row) {
	var names, napis []string
	for _, row := range r.Rows {
		if row.table() != first.table() {
			continue
		}
		if !slices.Contains(names, row.Method) {
			names = append(names, row.Method)
		}
		if !slices.Contains(napis, row.NAPI) {
			napis = append(napis, row.NAPI)
		}
	}
	fmt.Fprintf(b, "\n| %s |", title(first))
	last := "times " + first.Op
	if first.Sink == sinkGRO {
		last = "frames an skb"
	}
	for _, napi := range napis {
		fmt.Fprintf(b, " NAPI %s | CPU | %s |", napi, last)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- | --- | --- |", len(napis)) + "\n")
	for _, name := range names {
		fmt.Fprintf(b, "| %s |", name)
		for _, napi := range napis {
			b.WriteString(r.cells(r.find(first, name, napi), r.find(first, first.Op, napi)))
		}
		b.WriteByte('\n')
	}
}

func title(r *Row) string {
	queues := "1 queue"
	if r.Queues > 1 {
		queues = fmt.Sprintf("%d queues", r.Queues)
	}
	if r.Op == opReadFrames {
		return fmt.Sprintf("read, %d bytes, %s", r.Size, queues)
	}
	sink := map[string]string{sinkDrop: "dropped at clsact ingress", sinkStack: "to a full UDP socket", sinkXDP: "dropped by native XDP", sinkGRO: "one TCP stream"}[r.Sink]
	return fmt.Sprintf("write, %d bytes, %s, %s", r.Size, queues, sink)
}

// cells are rate, CPU and how many times the rate of one call a frame it is, or what GRO made of the frames.
func (r *Report) cells(row, base *Row) string {
	if row == nil {
		return " | | |"
	}
	s := row.Rate.Summary()
	cpu := fmt.Sprintf("%.0f", row.Own.Median())
	if len(row.Machine) > 0 {
		cpu += fmt.Sprintf(" / %.0f", row.Machine.Median())
	}
	times := ""
	if len(row.Merged) > 0 {
		times = fmt.Sprintf("%.1f", row.Merged.Median())
	} else if base != nil && base != row {
		times = fmt.Sprintf("%.2f×", s.Median/base.Rate.Median())
	}
	return fmt.Sprintf(" %.0f (%.0f–%.0f) | %s | %s |", s.Median/1e3, s.Low/1e3, s.High/1e3, cpu, times)
}

// find is the row of like's table with that method and NAPI.
func (r *Report) find(like *Row, name, napi string) *Row {
	for _, row := range r.Rows {
		if row.table() == like.table() && row.Method == name && row.NAPI == napi {
			return row
		}
	}
	return nil
}

// results are informative lines, "result NAME FRAMES-PER-SECOND CPU-NS-PER-FRAME": this benchmark has no goals.
func (r *Report) results() string {
	var b strings.Builder
	for _, row := range r.Rows {
		fmt.Fprintf(&b, "result %s %.0f %.0f\n", strings.ReplaceAll(row.String(), " ", "_"), row.Rate.Median(), row.Own.Median())
	}
	return b.String()
}

// The lines between which docs/benchmarks.md has what markdown writes.
const (
	beginMark = "<!-- bench-tapio: begin -->\n"
	endMark   = "<!-- bench-tapio: end -->\n"
)

// update puts the tables into the file at path in place of those that it has.
func (r *Report) update(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(text, []byte(beginMark))
	_, after, ok2 := bytes.Cut(rest, []byte(endMark))
	if !ok || !ok2 {
		return fmt.Errorf("update %s: want the lines %q and %q in it", path, strings.TrimSpace(beginMark), strings.TrimSpace(endMark))
	}
	return os.WriteFile(path, slices.Concat(before, []byte(beginMark+"\n"+r.markdown()+"\n"+endMark), after), 0o644)
}
