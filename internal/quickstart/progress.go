package quickstart

import (
	"fmt"
	"io"
	"time"
)

// progress prints one line for each step, with the time since the start.
type progress struct {
	w     io.Writer
	start time.Time
}

func (p progress) say(format string, args ...any) {
	fmt.Fprintf(p.w, "[%6.1fs] %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}
