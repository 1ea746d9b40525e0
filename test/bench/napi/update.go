package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// The lines between which a document has the tables.
const (
	beginMark = "<!-- bench-napi: begin -->\n"
	endMark   = "<!-- bench-napi: end -->\n"
)

// update puts the tables into the file at path in place of those that it has.
func (r *Report) update(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(data), beginMark)
	_, after, ends := strings.Cut(rest, endMark)
	if !begins || !ends {
		return fmt.Errorf("update %s: want the lines %q and %q in it", path, strings.TrimSpace(beginMark), strings.TrimSpace(endMark))
	}
	var tables strings.Builder
	r.writeMarkdown(&tables)
	return os.WriteFile(path, []byte(before+beginMark+tables.String()+endMark+after), 0o644)
}

// writeMarkdown writes a table a load, then the goals of this part.
func (r *Report) writeMarkdown(w io.Writer) {
	fmt.Fprintf(w, "%d rounds of %s a row.\n", r.Rounds, r.Duration)
	load := ""
	for _, row := range r.Rows {
		if row.Load != load {
			load = row.Load
			fmt.Fprintf(w, "\n| %s | Gbit/s | times no NAPI | reads/GB | bytes a frame into the stack | CPU s/GB: all | receiver | VMM's | NAPI thread |\n", load)
			fmt.Fprintln(w, "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
		}
		if !row.measured() {
			fmt.Fprintf(w, "| %s | not measured: %s | | | | | | | |\n", row.Name, strings.ReplaceAll(row.Failed, "|", "/"))
			continue
		}
		fmt.Fprintf(w, "| %s | %.1f (%.1f–%.1f) | %s | %.0f | %.0f | %.2f | %.2f | %.2f | %.2f |\n", row.Name, row.Gbits.Median(),
			row.Gbits.Quantile(0.25), row.Gbits.Quantile(0.75), r.times(row), row.Reads.Median(), row.Received.Median(), row.CPU.Median(),
			row.Receiver.Median(), row.Pump.Median(), row.Poll.Median())
	}
	fmt.Fprint(w, "\n| goal | value | bound | |\n| --- | --- | --- | --- |\n")
	for _, g := range r.Goals {
		verdict := "short"
		if g.Met {
			verdict = "met"
		}
		fmt.Fprintf(w, "| `%s` | %.2f | %s %g | %s |\n", g.Name, g.Value, g.Op, g.Bound, verdict)
	}
}

// times is the row's throughput in those of its load's row without NAPI; empty for that row itself.
func (r *Report) times(row *Row) string {
	base := r.baseOf(row)
	if base == nil || base == row {
		return ""
	}
	return fmt.Sprintf("%.2f", row.against(base))
}
