package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tapir-cni/tapir/test/bench/goal"
)

func testReport() *Report {
	row := func(op, sink, napi, method string, rate, own float64) *Row {
		r := &Row{Op: op, Sink: sink, Size: 60, Queues: 1, NAPI: napi, Method: method, Rate: goal.Sample{rate, rate * 2, rate * 3}, Own: goal.Sample{own}}
		if op == opWriteFrames {
			r.Machine = goal.Sample{own * 2}
		}
		return r
	}
	r := &Report{Rounds: 3, Slice: "200ms", Kernel: "6.18", Sockets: map[string]string{"sendmmsg": "ENOTSOCK", "recvmmsg": "ENOTSOCK"}, Rows: []*Row{
		row(opWriteFrames, sinkDrop, napiOff, "write", 1e6, 500), row(opWriteFrames, sinkDrop, napiOn, "write", 5e5, 900),
		row(opWriteFrames, sinkDrop, napiOff, "io_uring 8", 2e6, 250), row(opWriteFrames, sinkGRO, napiOn, "write", 1e6, 500),
		row(opReadFrames, "", napiOff, "read", 1e6, 400),
	}}
	r.Rows[3].Merged = goal.Sample{12.25}
	return r
}

func TestTables(t *testing.T) {
	const want = `Linux 6.18, 3 rounds of 200ms a row in random order: thousands of frames a second, median (quartiles); CPU is ns a frame, the process's own /
the whole machine's (in steps of 10 ms a slice).

| write, 60 bytes, 1 queue, dropped at clsact ingress | NAPI off | CPU | times write | NAPI on | CPU | times write |
| --- | --- | --- | --- | --- | --- | --- |
| write | 2000 (1500–2500) | 500 / 1000 |  | 1000 (750–1250) | 900 / 1800 |  |
| io_uring 8 | 4000 (3000–5000) | 250 / 500 | 2.00× | | | |

| write, 60 bytes, 1 queue, one TCP stream | NAPI on | CPU | frames an skb |
| --- | --- | --- | --- |
| write | 2000 (1500–2500) | 500 / 1000 | 12.2 |

| read, 60 bytes, 1 queue | NAPI off | CPU | times read |
| --- | --- | --- | --- |
| read | 2000 (1500–2500) | 400 |  |

On a TAP's descriptor recvmmsg is: ENOTSOCK, sendmmsg is: ENOTSOCK.
`
	r := testReport()
	if diff := cmp.Diff(want, r.markdown()); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
	if line := "result write_drop_60_q1_off_io_uring_8 4000000 250\n"; !strings.Contains(r.results(), line) {
		t.Errorf("want the line %q in:\n%s", line, r.results())
	}
}

func TestUpdateKeepsWhatIsAroundTheTables(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("before\n" + beginMark + "old\n" + endMark + "after\n")
	for range 2 { // the second time it replaces its own
		if err := testReport().update(path); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	want := "before\n" + beginMark + "\n" + testReport().markdown() + "\n" + endMark + "after\n"
	if err != nil || string(got) != want {
		t.Errorf("(-want +got, %v):\n%s", err, cmp.Diff(want, string(got)))
	}
	write("no marks\n")
	if err := testReport().update(path); err == nil || !strings.Contains(err.Error(), "bench-tapio: begin") {
		t.Errorf("want an error that names the marks, got %v", err)
	}
}

func TestRowsHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range allRows() {
		if seen[r.String()] {
			t.Errorf("two rows are named %q", r)
		}
		seen[r.String()] = true
		if r.method.sqpoll && r.Queues > 1 {
			t.Errorf("%q wants more CPUs than there may be", r)
		}
	}
	if r := allRows()[0]; !r.named("write drop") || r.named("write read") {
		t.Errorf("%q: named by words that it has not, or not by its own", r)
	}
}

func TestBusyTimeHasNoIdle(t *testing.T) {
	got, err := parseBusy("cpu  10 1 5 1000 100 2 3 4 5 6\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
	if want := 210 * time.Millisecond; err != nil || got != want {
		t.Errorf("want %s, got %s, %v", want, got, err)
	}
	if _, err := parseBusy("intr 1"); err == nil {
		t.Error("want an error for another line")
	}
}
