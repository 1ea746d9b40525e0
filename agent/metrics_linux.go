package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"

	"github.com/tapir-cni/tapir/agent/install"
	"github.com/tapir-cni/tapir/agent/metrics"
	"github.com/tapir-cni/tapir/agent/reconcile"
	"github.com/tapir-cni/tapir/agent/tuner"
)

// Metrics is what is served to Prometheus, and where.
type Metrics struct {
	Bind     string   // address and port; empty: nothing is served
	Profiles bool     // serve /debug/pprof too
	Uplinks  []string // devices of the node whose queues and page pools are shown
}

// metricsPart serves metrics. A port that is taken is seen where tapird was started.
func (a *Agent) metricsPart() part {
	m := a.c.Metrics
	if m.Bind == "" {
		return part{name: "metrics"}
	}
	var l net.Listener
	listen := func() (err error) {
		if l, err = net.Listen("tcp", m.Bind); err != nil {
			return fmt.Errorf("serve metrics at %q: %w; choose another by --metrics-bind-address, or none by an empty one", m.Bind, err)
		}
		return nil
	}
	return part{
		name: "metrics",
		open: listen,
		run: func(ctx context.Context) error {
			if l == nil { // it failed, and let go of the port
				if err := listen(); err != nil {
					return err
				}
			}
			mine := l
			l = nil
			c := metrics.Config{Watch: a.watch, Measure: a.measure, Parts: a.status.list, Tuner: told{a.tuner}, Reconciler: found{a.mend}, Uplinks: m.Uplinks, Logger: a.log}
			if a.c.Install.Enabled() {
				c.Install = installed{a.install}
			}
			e := metrics.New(c)
			return e.Serve(ctx, mine, m.Profiles)
		},
		plan: func(_ context.Context, out io.Writer) error {
			_, err := fmt.Fprintf(out, "metrics: serve them at http://%s/metrics\n", m.Bind)
			return err
		},
	}
}

// told is the tuner, as metrics want it.
type told struct{ *tuner.Tuner }

// Decisions are the tuner's counts.
func (t told) Decisions() []metrics.Decisions {
	var list []metrics.Decisions
	for _, c := range t.Counts() {
		list = append(list, metrics.Decisions{Kind: string(c.Kind), To: c.To, Result: string(c.Result), N: c.N})
	}
	return list
}

// found is the reconciler, as metrics want it.
type found struct{ *reconcile.Reconciler }

// Findings are the reconciler's counts.
func (f found) Findings() []metrics.Findings {
	var list []metrics.Findings
	for _, r := range f.Results() {
		list = append(list, metrics.Findings{Kind: string(r.Kind), Found: r.Found, Repaired: r.Repaired, Reported: r.Reported, Failed: r.Failed, Contested: r.Contested, Open: r.Open})
	}
	return list
}

// installed is the installer, as metrics want it.
type installed struct{ *install.Installer }

// Foreign is how many configurations the runtime takes before tapir's.
func (i installed) Foreign() int { return len(i.State().Foreign) }

// Writes is how many files were written.
func (i installed) Writes() uint64 { return i.State().Writes }

// status is which parts run.
type status struct {
	mu    sync.Mutex
	parts []metrics.Part
	asked []part // of the same place in parts
}

func (s *status) list() []metrics.Part {
	s.mu.Lock()
	all := slices.Clone(s.parts)
	s.mu.Unlock()
	for i, p := range s.asked {
		if p.ready != nil {
			if err := p.ready(); err != nil {
				all[i].NotReady = err.Error()
			}
		}
		if p.notes != nil {
			all[i].Notes = p.notes()
		}
	}
	return all
}

func (s *status) set(i int, running bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parts[i].Running, s.parts[i].Error = running, ""
	if err != nil {
		s.parts[i].Error = err.Error()
	}
}

// track has it known of each part whether it runs.
func (s *status) track(parts []part) []part {
	for i := range parts {
		run := parts[i].run
		if run == nil {
			continue
		}
		at := len(s.parts)
		s.parts = append(s.parts, metrics.Part{Name: parts[i].name})
		s.asked = append(s.asked, parts[i])
		parts[i].run = func(ctx context.Context) error {
			s.set(at, true, nil)
			err := run(ctx)
			told := err
			if told == nil && ctx.Err() == nil {
				told = errors.New("it ended by itself")
			}
			s.set(at, false, told)
			return err
		}
	}
	return parts
}
