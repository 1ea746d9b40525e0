package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/tapir-cni/tapir/test/bench/goal"
)

// Series is one number, measured once a round.
type Series struct {
	Test    string    `json:"test"`
	Case    string    `json:"case"`
	Variant string    `json:"variant"`
	Metric  string    `json:"metric"`
	Values  []float64 `json:"values"`
}

func (s *Series) sample() goal.Sample { return goal.Sample(s.Values) }

// Report is what a run measured. Its JSON is what -json writes and -redraw reads.
type Report struct {
	Kernel   string        `json:"kernel"`
	CPUs     int           `json:"cpus"`
	Load     float64       `json:"load"` // average of the minute before
	Rounds   int           `json:"rounds"`
	Duration time.Duration `json:"durationNs"` // of one measurement
	Series   []*Series     `json:"series"`
	Paths    []string      `json:"paths"` // what counters say of the ways that frames took
	Profiles []*Profile    `json:"profiles,omitempty"`
	Goals    []goal.Goal   `json:"goals"`
}

// add takes one measurement.
func (r *Report) add(test, kase, variant, metric string, value float64) {
	s := r.find(test, kase, variant, metric)
	if s == nil {
		s = &Series{Test: test, Case: kase, Variant: variant, Metric: metric}
		r.Series = append(r.Series, s)
	}
	s.Values = append(s.Values, value)
}

// find gives nil for what was not measured.
func (r *Report) find(test, kase, variant, metric string) *Series {
	i := slices.IndexFunc(r.Series, func(s *Series) bool {
		return s.Test == test && s.Case == kase && s.Variant == variant && s.Metric == metric
	})
	if i < 0 {
		return nil
	}
	return r.Series[i]
}

// summary is of the values of a series; false where there are none.
func (r *Report) summary(test, kase, variant, metric string) (goal.Summary, bool) {
	s := r.find(test, kase, variant, metric)
	if s == nil {
		return goal.Summary{}, false
	}
	return s.sample().Summary(), true
}

func (r *Report) writeJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", " ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(r)
}

// readReport reads what writeJSON wrote. The goals are judged anew.
func readReport(path string) (*Report, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &Report{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("read results from %s: %w", path, err)
	}
	if len(r.Series) == 0 {
		return nil, fmt.Errorf("read results from %s: want series, got none", path)
	}
	r.judge()
	return r, nil
}
