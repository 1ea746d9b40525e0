package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// The lines of a document between which the results stand.
const (
	docBegin = "<!-- bench-xdp: begin -->"
	docEnd   = "<!-- bench-xdp: end -->"
)

// document puts the report's tables and goals between the two marks of the file.
func (r *Report) document(path string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(old), docBegin)
	_, after, ends := strings.Cut(rest, docEnd)
	if !begins || !ends {
		return fmt.Errorf("put the results into %s: want the lines %q and %q in it", path, docBegin, docEnd)
	}
	return os.WriteFile(path, []byte(before+docBegin+"\n"+r.markdown()+docEnd+after), 0o644)
}

// markdown gives tables and goals, and where the time goes in those that are short.
func (r *Report) markdown() string {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s.\n", r.circumstances())
	for _, t := range r.tables() {
		fmt.Fprintf(&out, "\n%s:\n\n", t.title)
		for i, row := range t.rows {
			fmt.Fprintf(&out, "| %s |\n", strings.Join(row, " | "))
			if i == 0 {
				fmt.Fprintf(&out, "|%s\n", strings.Repeat(" --- |", len(row)))
			}
		}
	}
	out.WriteString("\n| goal | value | bound | |\n| --- | --- | --- | --- |\n")
	for _, g := range r.Goals {
		verdict := "short"
		if g.Met {
			verdict = "met"
		}
		fmt.Fprintf(&out, "| `%s` | %.2f | %s %g | %s |\n", g.Name, g.Value, g.Op, g.Bound, verdict)
	}
	r.explain(&out)
	return out.String()
}
