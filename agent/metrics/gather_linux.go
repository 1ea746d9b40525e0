package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/version"
)

// Config is what an [Exporter] is made of.
type Config struct {
	Watch      *watch.Watcher
	Measure    Sampler
	Parts      func() []Part // nil: nothing is said of parts
	Tuner      Tuner         // nil: there is none
	Reconciler               // likewise
	Install    Install       // likewise

	Uplinks []string // devices of the node to be looked at
	Logger  *slog.Logger
}

// Sampler gives samples: [measure.Sampler].
type Sampler interface {
	Sample(ctx context.Context) (*measure.Sample, error)
}

// sampleWait bounds the wait for a sample.
const sampleWait = 20 * time.Second

// Exporter gives metric families. It is a [prometheus.TransactionalGatherer].
type Exporter struct {
	c       Config
	process *prometheus.Registry

	mu   sync.Mutex
	free []*page
}

// keptPages are the pages that are kept for the next scrape.
const keptPages = 1

// New makes an Exporter. It touches nothing.
func New(c Config) *Exporter {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Exporter{c: c, process: prometheus.NewRegistry()}
	e.process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return e
}

// Gather takes a sample and gives its families, in the order of the table, then those of the process. They are the caller's until it calls done.
func (e *Exporter) Gather() (list []*dto.MetricFamily, done func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), sampleWait)
	defer cancel()
	p := e.page()
	done = func() { e.release(p) }
	if err := e.fill(ctx, p); err != nil {
		return nil, done, err
	}
	own, err := e.process.Gather()
	if err != nil {
		return nil, done, fmt.Errorf("read the process's own metrics: %w", err)
	}
	return append(p.all(), own...), done, nil
}

func (e *Exporter) fill(ctx context.Context, p *page) error {
	s, err := e.c.Measure.Sample(ctx)
	if err != nil {
		return err
	}
	var problems []error
	drops, err := readShapers(s.Attachments)
	problems = append(problems, err)
	for _, a := range s.Attachments {
		p.attachment(a, shaped(a, drops))
	}
	for _, device := range e.c.Uplinks {
		problems = append(problems, p.uplink(device))
	}
	var parts []Part
	if e.c.Parts != nil {
		parts = e.c.Parts()
	}
	p.parts(version.String(), parts)
	p.watch(e.c.Watch.Stats())
	if e.c.Tuner != nil {
		p.tuner(e.c.Tuner)
	}
	if e.c.Reconciler != nil {
		p.reconciler(e.c.Reconciler)
	}
	if e.c.Install != nil {
		p.install(e.c.Install)
	}
	problems = append(problems, s.QueuesErr)
	unread := 0
	for _, err := range problems {
		if err != nil {
			unread++
		}
	}
	if err := errors.Join(problems...); err != nil {
		e.c.Logger.Debug("a scrape is not whole", "error", err)
	}
	p.sample(s, unread)
	return nil
}

func (e *Exporter) page() *page {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.free); n > 0 {
		p := e.free[n-1]
		e.free = e.free[:n-1]
		return p
	}
	return newPage()
}

func (e *Exporter) release(p *page) {
	p.reset()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.free) < keptPages {
		e.free = append(e.free, p)
	}
}
