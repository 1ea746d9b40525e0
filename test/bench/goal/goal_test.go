package goal_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/test/bench/goal"
)

func TestQuantilesInterpolate(t *testing.T) {
	for _, tt := range []struct {
		s       goal.Sample
		q, want float64
	}{
		{nil, 0.5, 0},
		{goal.Sample{3}, 0.5, 3},
		{goal.Sample{4, 1, 3, 2}, 0.5, 2.5},
		{goal.Sample{5, 1, 3, 2, 4}, 0.25, 2},
		{goal.Sample{5, 1, 3, 2, 4}, 1, 5},
	} {
		if got := tt.s.Quantile(tt.q); got != tt.want {
			t.Errorf("%.2f-quantile of %v: want %g, got %g", tt.q, tt.s, tt.want, got)
		}
	}
}

func TestLinesSayWhichGoalsAreShort(t *testing.T) {
	var out strings.Builder
	err := goal.Write(&out, []goal.Goal{
		goal.AtMost("a", 0.6, 0.6), goal.AtMost("b", 0.601, 0.6), goal.AtLeast("c", 1.3, 1.3), goal.AtLeast("d", 1.2994, 1.3),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "goal a 0.600 <= 0.6 met\ngoal b 0.601 <= 0.6 short\ngoal c 1.300 >= 1.3 met\ngoal d 1.299 >= 1.3 short\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestSampleIsItsSummaryInJSON(t *testing.T) {
	data, err := json.Marshal(goal.Sample{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"count":3,"p25":1.5,"median":2,"p75":2.5}`; string(data) != want {
		t.Errorf("want %s, got %s", want, data)
	}
}
