package metrics

import (
	"strconv"

	dto "github.com/prometheus/client_model/go"
	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/counts"
)

// sample adds what a sample has of the node.
func (p *page) sample(s *measure.Sample, problems int) {
	p.add(sampleSeconds, nil, s.Took.Seconds())
	p.add(sampleProblems, nil, float64(len(s.Problems)+problems))
	ready := 0
	for _, a := range s.Attachments {
		if a.Ready() {
			ready++
		}
	}
	p.add(attachments, nil, float64(ready), "ready")
	p.add(attachments, nil, float64(len(s.Attachments)-ready), "pending")
	for _, r := range s.IPAM {
		p.add(ipamSize, nil, float64(r.Size), r.Dir, r.Range)
		p.add(ipamLeased, nil, float64(r.Leased), r.Dir, r.Range)
		p.add(ipamResting, nil, float64(r.Resting), r.Dir, r.Range)
	}
	for _, c := range s.Calls {
		p.addHistogram(cniCalls, durations(c.Series), c.Dir, c.Verb, strconv.Itoa(c.Code))
	}
}

// durations is a histogram of calls. Its last bucket is that without a bound, which the format adds by itself.
func durations(s counts.Series) *dto.Histogram {
	count, sum := s.Count(), s.Sum.Seconds()
	h := &dto.Histogram{SampleCount: &count, SampleSum: &sum}
	var below uint64
	for i, bound := range counts.Bounds {
		below += s.Buckets[i]
		n, le := below, bound.Seconds()
		h.Bucket = append(h.Bucket, &dto.Bucket{CumulativeCount: &n, UpperBound: &le})
	}
	return h
}

func (p *page) watch(s watch.Stats) {
	p.add(watchReadings, nil, float64(s.Readings))
	p.add(watchFailedReadings, nil, float64(s.FailedReadings))
	p.add(watchOverruns, nil, float64(s.Overruns))
	p.add(watchEvents, nil, float64(s.Events))
}

// Part is a part of the agent.
type Part struct {
	Name    string `json:"name"`
	Running bool   `json:"running"`
	Error   string `json:"error,omitempty"` // of its last run, where it does not run
	// NotReady says why it is not ready though it runs.
	NotReady string   `json:"notReady,omitempty"`
	Notes    []string `json:"notes,omitempty"` // what should be known though it is ready
}

// Ready tells whether the part runs and all is as it wants it.
func (p Part) Ready() bool { return p.Running && p.NotReady == "" }

func (p *page) parts(version string, parts []Part) {
	p.add(buildInfo, nil, 1, version)
	for _, one := range parts {
		p.add(partRunning, nil, number(one.Running), one.Name)
		p.add(partReady, nil, number(one.Ready()), one.Name)
	}
}

// Install is what is told of the installation.
type Install interface {
	Foreign() int   // configurations before tapir's
	Writes() uint64 // since the start
}

func (p *page) install(i Install) {
	p.add(installForeign, nil, float64(i.Foreign()))
	p.add(installWrites, nil, float64(i.Writes()))
}

// Decisions are how often the tuner decided something.
type Decisions struct {
	Kind, To, Result string
	N                uint64
}

// Tuner is what is told of the tuner.
type Tuner interface {
	Decisions() []Decisions
	LostByResize() uint64 // frames
}

func (p *page) tuner(t Tuner) {
	for _, d := range t.Decisions() {
		p.add(tunerDecisions, nil, float64(d.N), d.Kind, d.To, d.Result)
	}
	p.add(tunerLostFrames, nil, float64(t.LostByResize()))
}

// Findings are what reconciling found of one kind, and what became of them.
type Findings struct {
	Kind                                         string
	Found, Repaired, Reported, Failed, Contested uint64
	Open                                         int // there now
}

// Reconciler is what is told of reconciling.
type Reconciler interface {
	Findings() []Findings
}

func (p *page) reconciler(r Reconciler) {
	for _, f := range r.Findings() {
		if f.Found == 0 {
			continue
		}
		p.add(reconcileOpen, nil, float64(f.Open), f.Kind)
		for outcome, n := range map[string]uint64{"found": f.Found, "repaired": f.Repaired, "reported": f.Reported, "failed": f.Failed, "contested": f.Contested} {
			if n > 0 {
				p.add(reconcileFindings, nil, float64(n), f.Kind, outcome)
			}
		}
	}
}
