package main

import (
	"slices"

	"github.com/tapir-cni/tapir/test/bench/goal"
	"github.com/tapir-cni/tapir/test/bench/guest"
)

// The metrics.
const (
	accepted   = "accepted"     // frames a second that the kernel took from the writer
	delivered  = "delivered"    // frames a second that the reader got
	throughput = "throughput"   // bits of payload a second
	writerCPU  = "writer's CPU" // nanoseconds a frame that the kernel took
	p50        = "p50"          // nanoseconds
	p99        = "p99"
	discarded  = "dropped" // frames a second
)

// The cases that goals are judged on.
const (
	small       = "64"
	noOffload   = "no offload"
	checksumOff = "checksum offload"
	tso         = "TSO"
)

// A test is one kind of measurement, made of each of its variants in each of its cases.
type test struct {
	name     string
	title    string
	variants []string
	metrics  []string
	cases    []testCase
}

type testCase struct {
	name    string
	note    string // for tables
	measure func(o options, p *pair) (map[string]float64, error)
}

// tests is all that the benchmark measures.
var tests = []test{
	{
		name: "frames", title: "UDP frames from one TAP to the other", metrics: []string{delivered, accepted, writerCPU},
		variants: []string{bridged, routed, shortcut, dropped},
		cases: []testCase{
			frameCase(small, "64 bytes, one flow", shape{size: guest.MinUDP, flows: 1}),
			frameCase("64 x 1024", "64 bytes, 1024 flows", shape{size: guest.MinUDP, flows: 1024}),
			frameCase("512", "512 bytes", shape{size: 512, flows: 1}),
			frameCase("1514", "1514 bytes", shape{size: 1514, flows: 1}),
			frameCase("1514 partial", "1514 bytes, checksum left to the device", shape{size: 1514, flows: 1, partial: true}),
		},
	},
	{
		name: "tcp", title: "TCP between two guests", metrics: []string{throughput},
		variants: []string{bridged, routed, shortcut},
		cases: []testCase{
			tcpCase(noOffload, "no offload", guest.OffloadNone),
			tcpCase(checksumOff, "checksum offload", guest.OffloadChecksum),
			tcpCase(tso, "checksum offload and TSO", guest.OffloadTSO),
		},
	},
	{
		name: "rtt", title: "Round trip of a 64-byte UDP frame", metrics: []string{p50, p99},
		variants: []string{bridged, routed, shortcut},
		cases: []testCase{{name: small, note: "64 bytes", measure: func(o options, p *pair) (map[string]float64, error) {
			trips, err := p.pingPong(o.duration)
			if err != nil {
				return nil, err
			}
			s := goal.Sample(trips)
			return map[string]float64{p50: s.Median(), p99: s.Quantile(0.99)}, nil
		}}},
	},
	{
		name: "spoof", title: "Forged frames dropped", metrics: []string{discarded, writerCPU},
		variants: []string{guarded, routed, shortcut},
		cases: []testCase{{name: small, note: "64 bytes", measure: func(o options, p *pair) (map[string]float64, error) {
			sent, err := p.forge(o.duration)
			if err != nil {
				return nil, err
			}
			return map[string]float64{discarded: sent.rate(), writerCPU: sent.perFrame()}, nil
		}}},
	},
}

func frameCase(name, note string, s shape) testCase {
	return testCase{name: name, note: note, measure: func(o options, p *pair) (map[string]float64, error) {
		sent, arrived, err := p.flood(s, o.duration)
		if err != nil {
			return nil, err
		}
		values := map[string]float64{accepted: sent.rate(), writerCPU: sent.perFrame()}
		if p.variant != dropped {
			values[delivered] = float64(arrived) / sent.took.Seconds()
		}
		return values, nil
	}}
}

func tcpCase(name, note string, offload int) testCase {
	return testCase{name: name, note: note, measure: func(o options, p *pair) (map[string]float64, error) {
		bits, err := p.bulk(offload, o.duration)
		return map[string]float64{throughput: bits}, err
	}}
}

// only gives the test with only those of its variants.
func (t test) only(variants []string) test {
	t.variants = slices.DeleteFunc(slices.Clone(t.variants), func(v string) bool { return !slices.Contains(variants, v) })
	return t
}
