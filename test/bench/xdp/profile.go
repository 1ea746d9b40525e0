package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Profile is where the time of one measurement goes.
type Profile struct {
	Test      string          `json:"test"`
	Case      string          `json:"case"`
	Variant   string          `json:"variant"`
	Programs  []ProgramTime   `json:"programs"`
	Functions []FunctionShare `json:"functions,omitempty"` // none where perf is not installed
}

// ProgramTime is what the kernel counted of one BPF program.
type ProgramTime struct {
	Name        string  `json:"name"`
	Runs        uint64  `json:"runs"`
	Nanoseconds float64 `json:"nsPerRun"` // with what the counting itself costs
}

// FunctionShare is a kernel or user function's part of this process's time, all threads together.
type FunctionShare struct {
	Name  string  `json:"name"`
	Share float64 `json:"share"`
}

func (p *Profile) write(w io.Writer) {
	fmt.Fprintf(w, "\nprofile of %s, %s, %s:\n", p.Test, p.Case, titles[p.Variant])
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, one := range p.Programs {
		fmt.Fprintf(out, "  BPF program %s\t%.0f ns\t%d runs\n", one.Name, one.Nanoseconds, one.Runs)
	}
	for _, one := range p.Functions {
		fmt.Fprintf(out, "  %s\t%.1f %%\t\n", one.Name, 100*one.Share)
	}
	_ = out.Flush() // to w, whose errors show at the end
}
