package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/tap"
)

// filled is a row with a throughput for each round, in Gbit/s.
func filled(l load, s tap.Setting, gbits ...float64) *Row {
	r := newRow(l, s)
	for _, g := range gbits {
		r.add([]measurement{{took: time.Second, bytes: int64(g * 1e9 / 8)}})
	}
	return r
}

func lines(r *Report) []string {
	var got []string
	for _, g := range r.Goals {
		got = append(got, g.String())
	}
	return got
}

func TestGoalsCompareWithinRounds(t *testing.T) {
	l := load{guest: bare, streams: 1}
	threaded := tap.Setting{NAPI: true, Threaded: true}
	chosen := filled(l, threaded, 1.9, 3, 2.7)
	chosen.Rule = "full"
	apart := filled(l, threaded, 9, 9, 9)
	apart.apart = true
	// The machine was faster in the last two rounds; medians of the rows would say 1.35.
	r := &Report{Rows: []*Row{filled(l, tap.Setting{}, 1, 2, 3), filled(l, threaded, 1.4, 2.7, 4.5), apart, chosen}}
	r.judge()
	want := []string{"goal napi_best_bare 1.500 >= 1.3 met", "goal napi_chosen_bare 1.500 >= 0.95 met"}
	if diff := cmp.Diff(want, lines(r)); diff != "" {
		t.Errorf("goals (-want +got):\n%s", diff)
	}
}

func TestTSOHasNoGoalOfABestSetting(t *testing.T) {
	l := load{guest: tso, streams: 1}
	chosen := filled(l, tap.Setting{NAPI: true}, 8)
	chosen.Rule = "gso"
	r := &Report{Rows: []*Row{filled(l, tap.Setting{}, 10), chosen}}
	r.judge()
	if diff := cmp.Diff([]string{"goal napi_chosen_tso 0.800 >= 0.95 short"}, lines(r)); diff != "" {
		t.Errorf("goals (-want +got):\n%s", diff)
	}
}

func TestRowThatFailedIsNamedAndJudgesNothing(t *testing.T) {
	l := load{guest: bare, streams: 1}
	base := filled(l, tap.Setting{}, 1)
	r := &Report{Rounds: 1, Rows: choose([]*Row{base}, func(*Row) (tap.Traffic, error) { return tap.Traffic{}, errors.New("it rained") })}
	r.judge()
	if len(r.Goals) != 0 {
		t.Errorf("want no goal, got %v", r.Goals)
	}
	var out strings.Builder
	if err := r.writeText(&out); err != nil {
		t.Fatal(err)
	}
	if want := "not measured: bare, what the rules choose: it rained\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("want the text to end with %q, got:\n%s", want, out.String())
	}
}

func TestChosenRowsStandWithTheirLoad(t *testing.T) {
	seen := map[string]tap.Traffic{
		"bare":     {MTU: 1500, BytesPerFrame: 1514, FramesPerSecond: 2e5},
		"tso":      {MTU: 1500, BytesPerFrame: 65e3, FramesPerSecond: 2e4},
		"tso-down": {MTU: 1500, BytesPerFrame: 66, FramesPerSecond: 2e4},
	}
	var rows []*Row
	for _, l := range []load{{guest: bare, streams: 1}, {guest: tso, streams: 1}, {guest: tso, streams: 1, down: true}} {
		rows = append(rows, newRow(l, tap.Setting{}), newRow(l, tap.Setting{NAPI: true}))
	}
	var got []string
	for _, r := range choose(rows, func(r *Row) (tap.Traffic, error) { return seen[r.Load], nil }) {
		got = append(got, r.Load+" "+r.Rule)
	}
	want := []string{"bare ", "bare ", "bare full", "tso ", "tso ", "tso gso", "tso-down ", "tso-down ", "tso-down small"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}
