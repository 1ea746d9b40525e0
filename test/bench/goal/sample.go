package goal

import (
	"encoding/json"
	"slices"
)

// Sample is what was measured of one thing, one value a round, in any unit.
type Sample []float64

// Quantile is the q-quantile by linear interpolation; 0 where there are no values.
func (s Sample) Quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	position := q * float64(len(sorted)-1)
	below := int(position)
	if below == len(sorted)-1 {
		return sorted[below]
	}
	part := position - float64(below)
	return sorted[below] + part*(sorted[below+1]-sorted[below])
}

// Median is the 0.5-quantile.
func (s Sample) Median() float64 { return s.Quantile(0.5) }

// Summary is a sample in short.
type Summary struct {
	Count  int     `json:"count"`
	Low    float64 `json:"p25"`
	Median float64 `json:"median"`
	High   float64 `json:"p75"`
}

// Summary gives the number of values, their quartiles and median.
func (s Sample) Summary() Summary {
	return Summary{len(s), s.Quantile(0.25), s.Median(), s.Quantile(0.75)}
}

// MarshalJSON gives the summary.
func (s Sample) MarshalJSON() ([]byte, error) { return json.Marshal(s.Summary()) }
