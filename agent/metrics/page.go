package metrics

import (
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// page is the messages of one scrape. Its memory is used again for the next.
type page struct {
	families [familyCount]dto.MetricFamily
	filled   []*dto.MetricFamily

	series slab[series]
	pairs  slab[pair]
	labels slab[*dto.LabelPair]
	known  map[[2]string]*dto.LabelPair // pairs that many series share
}

// series is one series, in one piece.
type series struct {
	metric  dto.Metric
	counter dto.Counter
	gauge   dto.Gauge
	value   float64
}

type pair struct {
	pair        dto.LabelPair
	name, value string
}

// slab gives out elements of a few large pieces of memory.
type slab[T any] struct {
	pieces [][]T
	piece  int // the one that is given out of
	used   int // of that
}

const slabPiece = 4096 // elements

// take gives n elements, n much less than slabPiece, that hold what they held before.
func (s *slab[T]) take(n int) []T {
	if s.used+n > slabPiece {
		s.piece, s.used = s.piece+1, 0
	}
	if s.piece == len(s.pieces) {
		s.pieces = append(s.pieces, make([]T, slabPiece))
	}
	s.used += n
	return s.pieces[s.piece][s.used-n : s.used : s.used]
}

// reset takes all elements back; what was not used is let go of.
func (s *slab[T]) reset() {
	s.pieces = s.pieces[:min(s.piece+1, len(s.pieces))]
	s.piece, s.used = 0, 0
}

func newPage() *page {
	p := &page{known: map[[2]string]*dto.LabelPair{}}
	for i := range p.families {
		f := &families[i]
		p.families[i].Name, p.families[i].Help, p.families[i].Type = &f.name, &f.help, &f.kind
	}
	return p
}

// reset makes the page empty.
func (p *page) reset() {
	for i := range p.families {
		clear(p.families[i].Metric) // what a smaller scrape does not overwrite
		p.families[i].Metric = p.families[i].Metric[:0]
	}
	p.series.reset()
	p.pairs.reset()
	p.labels.reset()
	clear(p.known)
}

// pair makes a label. What a process or a runtime chose may be no UTF-8, which would spoil the whole scrape.
func (p *page) pair(name, value string) *dto.LabelPair {
	one := &p.pairs.take(1)[0]
	one.name, one.value = name, strings.ToValidUTF8(value, "?")
	one.pair.Name, one.pair.Value = &one.name, &one.value
	return &one.pair
}

// shared is a label that many series have.
func (p *page) shared(name, value string) *dto.LabelPair {
	key := [2]string{name, value}
	one := p.known[key]
	if one == nil {
		one = p.pair(name, value)
		p.known[key] = one
	}
	return one
}

// with is base and more labels, names and values of the family's own.
func (p *page) with(base []*dto.LabelPair, names []string, values ...string) []*dto.LabelPair {
	if len(names) != len(values) {
		panic("metrics: a family's labels and their values differ in number")
	}
	if len(values) == 0 {
		return base
	}
	out := p.labels.take(len(base) + len(values))
	n := copy(out, base)
	for i, v := range values {
		out[n+i] = p.shared(names[i], v)
	}
	return out
}

// add adds a series: base are the labels of its scope, values those of the family's own.
func (p *page) add(f id, base []*dto.LabelPair, value float64, values ...string) {
	one := &p.series.take(1)[0]
	one.value = value
	one.metric.Label = p.with(base, families[f].labels, values...)
	one.metric.Counter, one.metric.Gauge = nil, nil
	if families[f].kind == counter {
		one.counter.Value = &one.value
		one.metric.Counter = &one.counter
	} else {
		one.gauge.Value = &one.value
		one.metric.Gauge = &one.gauge
	}
	p.families[f].Metric = append(p.families[f].Metric, &one.metric)
}

// addHistogram adds one of a histogram's. They are few.
func (p *page) addHistogram(f id, h *dto.Histogram, values ...string) {
	p.families[f].Metric = append(p.families[f].Metric, &dto.Metric{Label: p.with(nil, families[f].labels, values...), Histogram: h})
}

// all are the families that have series.
func (p *page) all() []*dto.MetricFamily {
	p.filled = p.filled[:0]
	for i := range p.families {
		if len(p.families[i].Metric) > 0 {
			p.filled = append(p.filled, &p.families[i])
		}
	}
	return p.filled
}
