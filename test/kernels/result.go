package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Result is what the tests said on one kernel.
type Result struct {
	Kernel   string // the series that was asked for
	Release  string
	Packages []Package
}

// Package is what one test binary said. Tests are counted with their subtests.
type Package struct {
	Name    string
	Status  int // exit status of the binary; 124 where it did not end in time
	Passed  int
	Failed  []string
	Skipped map[string][]string // tests by what they said they need
	Seconds float64
}

// Failed says whether a test failed, a binary ended badly or nothing ran.
func (r Result) Failed() bool {
	return len(r.Packages) == 0 || slices.ContainsFunc(r.Packages, Package.bad)
}

func (p Package) bad() bool {
	return p.Status != 0 || len(p.Failed) > 0 || p.Passed+len(p.Skipped) == 0
}

func (p Package) skips() (n int) {
	for _, tests := range p.Skipped {
		n += len(tests)
	}
	return n
}

// Markers stand on lines of their own between the binaries' output.
const (
	markBegin = "@@ begin "
	markEnd   = "@@ end "
)

var verdict = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+) \(`)

// parser reads the binaries' output, that of "go test -v", line by line.
type parser struct {
	out      io.Writer    // gets each line; may be nil
	progress func(string) // told of each package's end
	result   *Result
	rest     []byte
	now      *Package
	began    time.Time
	tail     []string // what it printed since
}

func (p *parser) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		line, rest, ok := bytes.Cut(p.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		p.rest = rest
		if p.out != nil {
			fmt.Fprintf(p.out, "%s\n", line)
		}
		if err := p.line(strings.TrimRight(string(line), "\r")); err != nil {
			return 0, err
		}
	}
}

func (p *parser) line(s string) error {
	if name, ok := strings.CutPrefix(s, markBegin); ok {
		p.now, p.began, p.tail = &Package{Name: name, Skipped: make(map[string][]string)}, time.Now(), nil
		return nil
	}
	if p.now == nil {
		return nil
	}
	if status, ok := strings.CutPrefix(s, markEnd); ok {
		n, err := strconv.Atoi(status)
		if err != nil {
			return fmt.Errorf("want an exit status, got %q", s)
		}
		p.end(n)
		return nil
	}
	before := ""
	if len(p.tail) > 0 {
		before = p.tail[len(p.tail)-1]
	}
	p.tail = append(p.tail, s)
	m := verdict.FindStringSubmatch(s)
	if m == nil {
		return nil
	}
	switch m[1] {
	case "PASS":
		p.now.Passed++
	case "FAIL":
		p.now.Failed = append(p.now.Failed, m[2])
	case "SKIP":
		p.now.skip(m[2], before)
	}
	return nil
}

func (p *parser) end(status int) {
	p.now.Status, p.now.Seconds = status, time.Since(p.began).Seconds()
	p.result.Packages = append(p.result.Packages, *p.now)
	p.progress(fmt.Sprintf("%s on %s: %s", p.now.Name, p.result.Kernel, p.now.summary()))
	if p.now.bad() && p.out == nil {
		for _, line := range p.tail {
			p.progress("\t" + line)
		}
	}
	p.now = nil
}

// skipReason is the line that t.Skip writes before the verdict: file, line, reason.
var skipReason = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)$`)

func (p *Package) skip(test, said string) {
	reason := "it does not say why"
	if m := skipReason.FindStringSubmatch(said); m != nil {
		reason = m[1]
	}
	p.Skipped[reason] = append(p.Skipped[reason], test)
}

func (p Package) summary() string {
	s := fmt.Sprintf("%d passed, %d failed, %d skipped, %.0f s", p.Passed, len(p.Failed), p.skips(), p.Seconds)
	if p.Status != 0 {
		s += fmt.Sprintf(", exit status %d", p.Status)
	}
	return s
}

func (r Result) print(w io.Writer) {
	fmt.Fprintf(w, "\nLinux %s\n", r.Release)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, p := range r.Packages {
		fmt.Fprintf(t, "%s\t%s\n", p.Name, p.summary())
		for _, test := range p.Failed {
			fmt.Fprintf(t, "  FAIL\t%s\n", test)
		}
		for _, reason := range slices.Sorted(maps.Keys(p.Skipped)) {
			fmt.Fprintf(t, "  %d skipped\t%s\n", len(p.Skipped[reason]), reason)
		}
	}
	_ = t.Flush() // what the writer under it does with an error is its business
}
