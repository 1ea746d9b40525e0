package main

import (
	"errors"
	"os"
	"path/filepath"
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

func TestPairsAreMeasuredSideBySide(t *testing.T) {
	var rows []*Row
	for _, l := range []load{{guest: bare, streams: 1}, {guest: tso, streams: 1}} {
		chosen := newRow(l, tap.Setting{NAPI: true})
		chosen.Rule = "quiet"
		rows = append(rows, newRow(l, tap.Setting{}), newRow(l, tap.Setting{NAPI: true, Threaded: true}), chosen)
	}
	const repeats = 3
	count := make(map[*Row]int)
	var order []*Row
	err := measureRound(t.Context(), rows, repeats, func(r *Row) (measurement, error) {
		count[r]++
		order = append(order, r)
		return measurement{took: time.Second, bytes: 1e9}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		want := 1
		if r.base() || r.chosen() {
			want = repeats
		}
		if count[r] != want || len(r.Gbits) != want || len(r.rounds) != 1 {
			t.Errorf("%s, %s: want %d measurements in 1 round, got %d, %d values, %d rounds", r.Load, r.Name, want, count[r], len(r.Gbits), len(r.rounds))
		}
	}
	for i := 0; i < len(order); i++ {
		if r := order[i]; r.base() || r.chosen() {
			i++
			if i == len(order) || order[i].load != r.load || order[i].chosen() == r.chosen() {
				t.Fatalf("measurement %d, %s, %s: want its counterpart next", i, r.Load, r.Name)
			}
		}
	}
}

func TestRowFailsAloneAndForGood(t *testing.T) {
	l := load{guest: bare, streams: 1}
	rows := []*Row{newRow(l, tap.Setting{}), newRow(l, tap.Setting{NAPI: true})}
	calls := 0
	for range 2 {
		err := measureRound(t.Context(), rows, 1, func(r *Row) (measurement, error) {
			if r == rows[1] {
				calls++
				return measurement{}, errors.New("no byte")
			}
			return measurement{took: time.Second, bytes: 1e9}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if !rows[0].measured() || rows[1].measured() || rows[1].Failed != "no byte" || calls != 1 {
		t.Errorf("want the first row measured and the second failed after one call, got %+v, %+v, %d calls", rows[0], rows[1], calls)
	}
}

func TestUpdateReplacesTheTablesAlone(t *testing.T) {
	l := load{guest: bare, streams: 1}
	failed := newRow(l, tap.Setting{NAPI: true, Threaded: true})
	failed.Failed = "it rained"
	r := &Report{Rounds: 1, Duration: time.Second, Rows: []*Row{filled(l, tap.Setting{}, 2), filled(l, tap.Setting{NAPI: true}, 3), failed}}
	r.judge()
	path := filepath.Join(t.TempDir(), "napi.md")
	for _, old := range []string{"", "| old | table |\n"} {
		if err := os.WriteFile(path, []byte("before\n"+beginMark+old+endMark+"after\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := r.update(path); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"before\n" + beginMark, endMark + "after\n", "| NAPI | 3.0 (3.0–3.0) | 1.50 |", "| NAPI, threaded | not measured: it rained |",
			"| `napi_best_bare` | 1.50 | >= 1.3 | met |",
		} {
			if !strings.Contains(string(got), want) {
				t.Errorf("want %q, got:\n%s", want, got)
			}
		}
		if strings.Contains(string(got), "old") {
			t.Errorf("the old table stayed:\n%s", got)
		}
	}
	if err := os.WriteFile(path, []byte("no marks\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.update(path); err == nil {
		t.Error("a file without marks: want an error")
	}
}
