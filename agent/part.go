package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// Part is a part that the agent runs for whoever starts it and that knows more than the agent may import. Its functions may be nil where it has nothing
// of the kind.
type Part struct {
	Name string

	// Open takes what the part cannot do without, before any part runs. An error ends the process.
	Open func() error

	// Run works until ctx ends. An error is logged, and Run is called again after a while.
	Run func(ctx context.Context) error

	// Plan says what the part would do now, one thing a line, and does nothing.
	Plan func(ctx context.Context, out io.Writer) error

	// Ready is nil while all is as the part wants it. Its error is the reason that /readyz gives; it can be called at any time.
	Ready func() error

	// Notes are what somebody should know though the part is ready; /readyz shows them.
	Notes func() []string
}

func (p Part) part() part {
	return part{name: p.Name, open: p.Open, run: p.Run, plan: p.Plan, ready: p.Ready, notes: p.Notes}
}

// part is one part of the agent. Its functions may be nil where it has nothing of the kind.
type part struct {
	name string

	// open takes what the part cannot do without, such as a socket, before any part runs. An error ends the process: it is the
	// configuration's or the node's, and to be seen where tapird was started.
	open func() error

	// run works until ctx ends. An error is logged, and run is called again after a while.
	run func(ctx context.Context) error

	// reload takes a new configuration while the part runs.
	reload func(Config) error

	// plan says what the part would do now, one thing a line, and does nothing. Watch and samples are there.
	plan func(ctx context.Context, out io.Writer) error

	// ready and notes are those of [Part].
	ready func() error
	notes func() []string
}

// A part that failed is run again after a second, then after twice as long each time, up to a minute; one that ran for as long as that
// begins with a second again.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// keep runs the part until ctx ends, however often it fails. A panic ends the process: what the part knew is not to be trusted then, and
// tapird starts again where it was.
func (p part) keep(ctx context.Context, log *slog.Logger, first time.Duration) {
	pause := first
	for {
		began := time.Now()
		err := p.run(ctx)
		if ctx.Err() != nil {
			if err != nil && !errors.Is(err, context.Canceled) {
				log.Warn("a part ended with an error", "part", p.name, "error", err)
			}
			return
		}
		if err == nil {
			err = errors.New("it ended by itself")
		}
		if time.Since(began) > lastPause {
			pause = first
		}
		log.Error("a part failed; it is run again", "part", p.name, "error", err, "after", pause)
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		pause = min(2*pause, lastPause)
	}
}

// running is a part that runs.
type running struct {
	part
	cancel context.CancelFunc
	done   chan struct{}
}

func (p part) start(log *slog.Logger, first time.Duration) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{part: p, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		p.keep(ctx, log, first)
	}()
	return r
}

// stop ends the part and waits for it, but not for ever.
func (r *running) stop(patience time.Duration) error {
	r.cancel()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-r.done:
		return nil
	case <-t.C:
		return fmt.Errorf("part %q: want it to end, got no end after %s", r.name, patience)
	}
}
