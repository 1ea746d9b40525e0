package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/test/bench/call"
)

func series(ms ...float64) Series {
	var s Series
	for _, v := range ms {
		s.Samples = append(s.Samples, time.Duration(v*float64(time.Millisecond)))
	}
	return s
}

func TestGoalsCompareMediansAndSayWhichAreShort(t *testing.T) {
	r := &Report{
		Rows: []*Row{
			{Name: "tapir", Add: series(6, 1, 6), Del: series(9)},
			{Name: "bridge", Add: series(10), Del: series(10)},
			{Name: "tap", Add: series(9), Del: series(20)},
		},
		Memory: &Memory{TapirKB: 600, TapKB: 6400},
	}
	r.judge()
	var got []string
	for _, goal := range r.Goals {
		got = append(got, goal.String())
	}
	want := []string{
		"goal add_vs_bridge 0.600 <= 0.6 met",
		"goal add_vs_tap 0.667 <= 0.6 short",
		"goal del_vs_bridge 0.900 <= 0.85 short",
		"goal del_vs_tap 0.450 <= 0.7 met",
		"goal slab_vs_tap 0.094 <= 0.1 met",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("goals (-want +got):\n%s", diff)
	}
}

func TestTextEndsWithTheGoals(t *testing.T) {
	r := &Report{Rounds: 1, Rows: []*Row{
		{Name: "tapir", Add: series(5), Del: series(5)}, {Name: "ptp", Add: series(10), Del: series(10)},
	}}
	r.judge()
	var out bytes.Buffer
	if err := r.writeText(&out); err != nil {
		t.Fatal(err)
	}
	if want := "\ngoal add_vs_ptp 0.500 <= 0.6 met\ngoal del_vs_ptp 0.500 <= 0.7 met\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("want the text to end with %q, got:\n%s", want, out.String())
	}
}

func TestJSONHasQuartilesInMicroseconds(t *testing.T) {
	r := &Report{Rows: []*Row{{Name: "tapir", Add: series(1, 2, 3)}}, Trace: &Trace{Add: []*Phase{{Name: "state", Series: series(0.25)}}}}
	var out bytes.Buffer
	if err := r.writeJSON(&out); err != nil {
		t.Fatal(err)
	}
	type quartiles struct{ Count, P25us, Medianus, P75us int }
	var got struct {
		Plugins []struct {
			Name string
			Add  quartiles
		}
		Trace struct {
			Add []struct {
				Name     string
				Medianus int
			}
		}
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(quartiles{3, 1500, 2000, 2500}, got.Plugins[0].Add); diff != "" {
		t.Errorf("ADD (-want +got):\n%s", diff)
	}
	if len(got.Trace.Add) != 1 || got.Trace.Add[0].Name != "state" || got.Trace.Add[0].Medianus != 250 {
		t.Errorf("trace: want state with 250 us, got %+v", got.Trace.Add)
	}
}

func TestTraceAddsUpPhasesAndFindsTheRest(t *testing.T) {
	var p phases
	err := p.read(call.Outcome{Took: 5 * time.Millisecond, Stderr: "tapir trace: process start 900us\ntapir trace: netlink 100us\n" +
		"level=WARN msg=x\ntapir trace: netlink 50us\ntapir trace: total 4000us\n"})
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]time.Duration)
	var order []string
	for _, phase := range p.list {
		got[phase.Name] = phase.median()
		order = append(order, phase.Name)
	}
	want := map[string]time.Duration{
		"process start": 900 * time.Microsecond, "netlink": 150 * time.Microsecond,
		"total": 4 * time.Millisecond, "process end": time.Millisecond,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"process start", "netlink", "total", "process end"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if err := p.read(call.Outcome{Stderr: "no trace"}); err == nil {
		t.Error("a call without a trace: want an error")
	}
}
