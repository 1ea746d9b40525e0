package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sampleReport has numbers for each variant, one of a test's series missing.
func sampleReport() *Report {
	r := &Report{Kernel: "6.18", CPUs: 2, Load: 0.2, Rounds: 3, Duration: time.Second, Paths: []string{"all by the shortcut"}}
	values := map[string]float64{bridged: 0.2e6, guarded: 0.5e6, routed: 0.3e6, shortcut: 0.9e6, dropped: 1.8e6}
	for _, t := range tests {
		for _, c := range t.cases {
			for _, variant := range t.variants {
				for _, metric := range t.metrics {
					if variant == dropped && metric == delivered {
						continue
					}
					for _, part := range []float64{1.1, 0.9, 1} {
						r.add(t.name, c.name, variant, metric, values[variant]*part)
					}
				}
			}
		}
	}
	r.judge()
	return r
}

func TestGoalsCompareMedians(t *testing.T) {
	var got []string
	for _, g := range sampleReport().Goals {
		got = append(got, g.String())
	}
	want := []string{
		"goal delivered_64_vs_bridge 4.500 >= 4 met",
		"goal delivered_64_vs_limit 0.500 >= 0.5 met",
		"goal tcp_no_offload_vs_bridge 4.500 >= 1.3 met",
		"goal tcp_checksum_offload_vs_bridge 4.500 >= 1.3 met",
		"goal tcp_tso_vs_bridge 4.500 >= 0.95 met",
		"goal spoof_vs_guest_ingress 3.000 >= 1.4 met",
		"goal spoof_vs_host_tc 1.800 >= 1.4 met",
		"goal rtt_p99_vs_default 3.000 <= 1.2 short",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("goals (-want +got):\n%s", diff)
	}
}

func TestGoalsOfWhatWasNotMeasuredAreLeftOut(t *testing.T) {
	r := &Report{}
	r.add("tcp", tso, shortcut, throughput, 1e9)
	r.judge()
	if len(r.Goals) != 0 {
		t.Errorf("want no goal without the bridge, got %v", r.Goals)
	}
}

func TestTablesHaveMediansAndQuartiles(t *testing.T) {
	r := &Report{Kernel: "6.18", CPUs: 2, Load: 0.2, Rounds: 3, Duration: time.Second, Paths: []string{"a path"}}
	for _, v := range []float64{1, 3, 2} {
		r.add("tcp", noOffload, bridged, throughput, v*1e9)
		r.add("tcp", noOffload, shortcut, throughput, 2*v*1e9)
		r.add("rtt", small, routed, p99, v*1e3)
	}
	r.judge()
	file := filepath.Join(t.TempDir(), "doc.md")
	if err := os.WriteFile(file, []byte("# Before\n"+docBegin+"\nold\n"+docEnd+"\nafter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	want := `# Before
<!-- bench-xdp: begin -->
Linux 6.18, 2 CPUs, load 0.2 before; rounds: 3, each measurement 1s, in random order; medians (quartiles).

TCP between two guests: throughput, Gbit/s:

|  | no offload | checksum offload | checksum offload and TSO |
| --- | --- | --- | --- |
| bridge + veth + tc mirred | 2.0 (1.5–2.5) |  |  |
| tapir, xdp native | 4.0 (3.0–5.0) |  |  |

Round trip of a 64-byte UDP frame:

|  | p50, µs | p99, µs |
| --- | --- | --- |
| tapir, xdp off |  | 2.0 (1.5–2.5) |

| goal | value | bound | |
| --- | --- | --- | --- |
| ` + "`tcp_no_offload_vs_bridge`" + ` | 2.00 | >= 1.3 | met |
<!-- bench-xdp: end -->
after
`
	for range 2 { // the second replaces what the first put there
		if err := r.document(file); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("document (-want +got):\n%s", diff)
		}
	}
}

func TestGoalsThatAreShortAreExplained(t *testing.T) {
	r := sampleReport() // one is short, the round trip's
	r.Profiles = []*Profile{
		{Test: "rtt", Case: small, Variant: shortcut, Programs: []ProgramTime{{"guest_xdp", 9, 240}}, Functions: []FunctionShare{{"tun_get_user", 0.25}}},
		{Test: "rtt", Case: small, Variant: routed, Programs: []ProgramTime{{"guest_ingress", 9, 210}}},
		{Test: "frames", Case: small, Variant: shortcut, Programs: []ProgramTime{{"guest_xdp", 9, 250}}},
	}
	var out bytes.Buffer
	r.explain(&out)
	want := "\nWhere the time of `rtt_p99_vs_default` goes. tapir, xdp native: `guest_xdp` 240 ns a run, tun_get_user 25 %. tapir, xdp off: `guest_ingress` 210 ns a run.\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("explanation (-want +got):\n%s", diff)
	}
}

func TestDocumentWithoutMarksIsLeftAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "doc.md")
	for _, content := range []string{"no marks\n", docEnd + "\n" + docBegin + "\n"} {
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := sampleReport().document(file); err == nil {
			t.Error("want an error, got none")
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != content {
			t.Errorf("want the file as it was, got %q, %v", got, err)
		}
	}
}

// What is redrawn from the file is what the run drew and printed.
func TestRedrawShowsTheSame(t *testing.T) {
	r := sampleReport()
	r.Profiles = []*Profile{{Test: "frames", Case: small, Variant: shortcut, Programs: []ProgramTime{{"guest_xdp", 9, 123}}, Functions: []FunctionShare{{"tun_get_user", 0.25}}}}
	dir := t.TempDir()
	file := filepath.Join(dir, "results.json")
	var data bytes.Buffer
	if err := r.writeJSON(&data); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	again, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	if err := errors.Join(r.write(&first), again.write(&second), r.draw(filepath.Join(dir, "a")), again.draw(filepath.Join(dir, "b"))); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first.String(), second.String()); diff != "" {
		t.Errorf("text (-run +redrawn):\n%s", diff)
	}
	for _, p := range plots {
		a, errA := os.ReadFile(filepath.Join(dir, "a", p.file))
		b, errB := os.ReadFile(filepath.Join(dir, "b", p.file))
		if err := errors.Join(errA, errB); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s: the redrawn plot differs", p.file)
		}
	}
}

func TestRedrawRefusesOtherFiles(t *testing.T) {
	for name, content := range map[string]string{"no JSON": "goal x", "no results": "{}"} {
		file := filepath.Join(t.TempDir(), "results.json")
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := readReport(file); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: want an error that names the file, got %v", name, err)
		}
	}
}

// Each number that a table has is in the plot too, and the plot is well-formed.
func TestPlotsHaveABarForEachNumber(t *testing.T) {
	r := sampleReport()
	for _, p := range plots {
		picture := r.chart(p).svg()
		bars, labels := 0, 0
		decoder := xml.NewDecoder(bytes.NewReader(picture))
		for {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v\n%s", p.file, err, picture)
			}
			if start, ok := token.(xml.StartElement); ok {
				for _, a := range start.Attr {
					if a.Name.Local == "class" && a.Value == "whisker" {
						bars++
					}
				}
				if start.Name.Local == "text" {
					labels++
				}
			}
		}
		want := 0
		for _, one := range tests {
			if one.name == p.test {
				want = len(p.groups) * len(one.variants)
			}
		}
		if bars != want || labels < want {
			t.Errorf("%s: want %d bars, each with a label, got %d bars and %d labels", p.file, want, bars, labels)
		}
	}
}

func TestScaleIsRoundAndHoldsTheHighest(t *testing.T) {
	for _, tt := range []struct{ most, step, top float64 }{{0, 1, 1}, {1.8, 0.5, 2}, {0.9, 0.2, 1}, {13.5, 2, 16}, {78, 20, 100}, {3749, 500, 4000}} {
		step, top := scale(tt.most)
		if diff := cmp.Diff([]float64{tt.step, tt.top}, []float64{step, top}); diff != "" {
			t.Errorf("scale of %g (-want +got):\n%s", tt.most, diff)
		}
	}
}

func TestPerfReportIsRead(t *testing.T) {
	got := readPerf("# comment\n\n    20.00%|[.] main.write\n    75.50%|[k] tun_get_user            \n")
	want := []FunctionShare{{"tun_get_user", 0.755}, {"main.write", 0.2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("functions (-want +got):\n%s", diff)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	good := options{rounds: 1, duration: time.Second}
	if chosen, err := good.check(); err != nil || len(chosen) != len(tests) {
		t.Errorf("want all tests, got %d and %v", len(chosen), err)
	}
	for name, o := range map[string]options{
		"unknown test": {rounds: 1, duration: time.Second, tests: "udp"}, "unknown variant": {rounds: 1, duration: time.Second, variants: "ptp"},
		"no round": {duration: time.Second}, "no time": {rounds: 1}, "nothing left": {rounds: 1, duration: time.Second, tests: "tcp", variants: dropped},
	} {
		if _, err := o.check(); err == nil {
			t.Errorf("%s: want an error, got none", name)
		}
	}
}
