// Package agent is the node agent: its parts, in one process. A part is a package below this one with New and Run; which there are, in
// which order they start and what they are given is in parts_linux.go. Parts know each other by what they need of each other alone.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/tapir-cni/tapir/agent/broker"
	"github.com/tapir-cni/tapir/agent/client"
	"github.com/tapir-cni/tapir/agent/install"
	"github.com/tapir-cni/tapir/agent/journal"
	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/reconcile"
	"github.com/tapir-cni/tapir/agent/tuner"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/state"
)

// Config is what an [Agent] is made of.
type Config struct {
	StateDirs []string // [state.DefaultDir] where empty
	BPFFS     string   // folder of the pinned programs; [xdp.DefaultDir] where empty

	Socket   string        // of the broker; [client.DefaultSocket] where empty
	Timeout  time.Duration // of one of its connections; [broker.DefaultTimeout] where 0
	MaxPeers int           // connections at once; [broker.DefaultMaxPeers] where 0

	NoUplink bool // leave the shortcut's routes to other nodes alone

	Metrics Metrics
	Page    string // address and port of the status page; empty: none

	Tuner     tuner.Options     // can change while it runs
	Reconcile reconcile.Options // likewise

	Install install.Config // its Options can change while it runs

	Parts []Part // of whoever starts the agent; they open and start before what is installed

	Logger *slog.Logger
}

// stopPatience is how long a part may take to end. The broker's peers have their own time, which is less.
const stopPatience = 10 * time.Second

// Agent is all parts.
type Agent struct {
	c       Config
	log     *slog.Logger
	watch   *watch.Watcher
	measure *measure.Sampler
	journal *journal.Journal // of the first state folder
	tuner   *tuner.Tuner
	mend    *reconcile.Reconciler
	install *install.Installer
	status  status
	parts   []part
	pause   time.Duration
	reloads chan Config
}

// New makes an Agent. It touches nothing.
func New(c Config) *Agent {
	if len(c.StateDirs) == 0 {
		c.StateDirs = []string{state.DefaultDir}
	}
	if c.Socket == "" {
		c.Socket = client.DefaultSocket
	}
	if c.Timeout == 0 {
		c.Timeout = broker.DefaultTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	a := &Agent{c: c, log: c.Logger, pause: firstPause, reloads: make(chan Config)}
	a.watch = watch.New(watch.Config{StateDirs: c.StateDirs, Logger: c.Logger})
	a.measure = measure.New(measure.Config{Watch: a.watch, StateDirs: c.StateDirs, BPFFS: c.BPFFS, Logger: c.Logger})
	a.journal = journal.New(c.StateDirs[0])
	a.tuner = tuner.New(tuner.Config{Watch: a.watch, Measure: a.measure, Journal: a.journal, Options: c.Tuner, Logger: c.Logger})
	a.mend = reconcile.New(reconcile.Config{
		Watch: a.watch, StateDirs: c.StateDirs, Journal: a.journal, BPFFS: c.BPFFS, Options: c.Reconcile, Logger: c.Logger,
	})
	c.Install.Logger = c.Logger
	a.install = install.New(c.Install)
	a.parts = a.status.track(a.list())
	return a
}

// Watcher is the node's attachments.
func (a *Agent) Watcher() *watch.Watcher { return a.watch }

// Installer is what keeps tapir installed. Without [install.Options].From it installs nothing.
func (a *Agent) Installer() *install.Installer { return a.install }

// Run opens what the parts need, runs them in their order and calls started when all run; it ends them in reverse order when ctx does. A part
// that fails later is run again and the others do not notice, so the error is of the beginning, or of a part that would not end. Run may be
// called once.
func (a *Agent) Run(ctx context.Context, started func()) (err error) {
	for _, p := range a.parts {
		if p.open == nil {
			continue
		}
		if err := p.open(); err != nil {
			return err
		}
	}
	var all []*running
	for _, p := range a.parts {
		if p.run != nil {
			all = append(all, p.start(a.log, a.pause))
		}
	}
	defer func() {
		for i := range all {
			err = errors.Join(err, all[len(all)-1-i].stop(stopPatience))
		}
	}()
	if started != nil {
		started()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-a.reloads:
			for _, p := range a.parts {
				if p.reload == nil {
					continue
				}
				if err := p.reload(c); err != nil {
					a.log.Error("a part keeps its configuration", "part", p.name, "error", err)
				}
			}
		}
	}
}

// Reload gives the parts what can change while they run; what cannot is as it was until the next start. It returns when they were given it,
// or when ctx ends, which it must where Run has.
func (a *Agent) Reload(ctx context.Context, c Config) error {
	select {
	case a.reloads <- c:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("reload: %w", ctx.Err())
	}
}

// planPatience bounds the time until the picture of the node is whole.
const planPatience = 30 * time.Second

// Plan runs watch and samples alone, no other part, and has each part say what it would do.
func (a *Agent) Plan(ctx context.Context, out io.Writer) error {
	return a.observe(ctx, func(ctx context.Context) error {
		var errs []error
		for _, p := range a.parts {
			if p.plan == nil {
				continue
			}
			if err := p.plan(ctx, out); err != nil {
				errs = append(errs, fmt.Errorf("part %q: %w", p.name, err))
			}
		}
		return errors.Join(errs...)
	})
}

// Sample runs watch and samples alone, no other part, and gives one sample.
func (a *Agent) Sample(ctx context.Context) (s *measure.Sample, err error) {
	err = a.observe(ctx, func(ctx context.Context) error {
		s, err = a.measure.Sample(ctx)
		return err
	})
	return s, err
}

// observe runs f while watch and samples run. One that fails ends it.
func (a *Agent) observe(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, planPatience)
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	var started sync.WaitGroup
	for _, p := range a.parts {
		if p.name == partWatch || p.name == partMeasure {
			started.Go(func() {
				if err := p.run(ctx); err != nil {
					fail(fmt.Errorf("part %q: %w", p.name, err))
				}
			})
		}
	}
	var err error
	select {
	case <-a.watch.Ready():
		err = f(ctx)
	case <-ctx.Done():
		err = fmt.Errorf("look at the node's attachments: %w", context.Cause(ctx))
	}
	fail(nil)
	started.Wait()
	return err
}
