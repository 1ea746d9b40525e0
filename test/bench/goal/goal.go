// Package goal is what the benchmarks share: the bounds that the project set itself, as lines that scripts read, and the
// statistics behind them.
package goal

import (
	"fmt"
	"io"
)

// Goal is one bound and the value that was measured for it.
type Goal struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Op    string  `json:"op"` // <= or >=
	Bound float64 `json:"bound"`
	Met   bool    `json:"met"`
}

// AtMost is a goal whose value may not be above the bound.
func AtMost(name string, value, bound float64) Goal {
	return Goal{Name: name, Value: value, Op: "<=", Bound: bound, Met: value <= bound}
}

// AtLeast is a goal whose value may not be below the bound.
func AtLeast(name string, value, bound float64) Goal {
	return Goal{Name: name, Value: value, Op: ">=", Bound: bound, Met: value >= bound}
}

// String is the line "goal NAME VALUE OP BOUND met", or "short" at its end.
func (g Goal) String() string {
	verdict := "short"
	if g.Met {
		verdict = "met"
	}
	return fmt.Sprintf("goal %s %.3f %s %g %s", g.Name, g.Value, g.Op, g.Bound, verdict)
}

// Write writes one line a goal.
func Write(w io.Writer, goals []Goal) error {
	for _, g := range goals {
		if _, err := fmt.Fprintln(w, g); err != nil {
			return err
		}
	}
	return nil
}
