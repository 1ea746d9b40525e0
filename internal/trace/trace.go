// Package trace prints where the time of one plugin call goes, when TAPIR_TRACE is set: one line a phase on standard
// error, "tapir trace: <phase> <microseconds>us".
//
// TAPIR_TRACE=1 counts from the start of main. A caller that wants the start of the process seen as well sets it to the
// time of its exec in nanoseconds since the epoch.
package trace

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

// Env is the environment variable that turns the trace on.
const Env = "TAPIR_TRACE"

// Trace collects phases. A nil Trace does nothing.
type Trace struct {
	start, last time.Time
	lines       []byte
}

// Start begins a trace, or returns nil where none is asked for.
func Start() *Trace {
	v := os.Getenv(Env)
	if v == "" || v == "0" {
		return nil
	}
	now := time.Now()
	t := &Trace{start: now, last: now}
	if ns, err := strconv.ParseInt(v, 10, 64); err == nil && ns > 1 {
		t.start = time.Unix(0, ns)
		t.last = t.start
		t.Mark("process start")
	}
	return t
}

// Mark ends a phase.
func (t *Trace) Mark(phase string) {
	if t == nil {
		return
	}
	now := time.Now()
	t.add(phase, now.Sub(t.last))
	t.last = now
}

func (t *Trace) add(phase string, d time.Duration) {
	t.lines = fmt.Appendf(t.lines, "tapir trace: %s %dus\n", phase, d.Microseconds())
}

// Print writes the phases and their sum to standard error.
func (t *Trace) Print() {
	if t == nil {
		return
	}
	t.add("total", time.Since(t.start))
	_, _ = os.Stderr.Write(t.lines)
}
