package vhost

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/tapir-cni/tapir/test/bench/goal"
)

// Result is what was measured.
type Result struct {
	Where  string  `json:"where"`
	Clock  string  `json:"clock"`  // host, or instructions: then a second is 10^9 instructions
	Rounds []Round `json:"rounds"` // as they ran
}

// of gives the rounds of one setting.
func (r *Result) of(napi bool) []Round {
	var rounds []Round
	for _, round := range r.Rounds {
		if round.NAPI == napi {
			rounds = append(rounds, round)
		}
	}
	return rounds
}

// sample takes one figure of each round of a setting.
func (r *Result) sample(napi bool, figure func(Round) float64) goal.Sample {
	var s goal.Sample
	for _, round := range r.of(napi) {
		s = append(s, figure(round))
	}
	return s
}

// Goals are those of this part of the benchmark: CPU time per GB with NAPI, as a part of that without.
func (r *Result) Goals() []goal.Goal {
	with, without := r.sample(true, Round.CPUPerGB).Median(), r.sample(false, Round.CPUPerGB).Median()
	return []goal.Goal{goal.AtMost("vhost_cpu_per_gb", with/without, 0.8)}
}

// WriteText writes medians of the rounds, and the range of what the goal is judged by.
func (r *Result) WriteText(w io.Writer) error {
	unit := "s"
	if r.Clock == "instructions" {
		unit = "10^9 instructions"
	}
	fmt.Fprintf(w, "behind vhost-net: %s; CPU in %s per GB of payload\n", r.Where, unit)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "NAPI\tCPU\t(range)\treceiver\tvhost\tksoftirqd\tbytes/packet\tACKs/GB\tMbit/s\t")
	for _, napi := range []bool{false, true} {
		median := func(figure func(Round) float64) float64 { return r.sample(napi, figure).Median() }
		perGB := func(part func(Round) float64) float64 {
			return median(func(x Round) float64 { return part(x) / float64(x.Bytes) * 1e9 })
		}
		cpu := r.sample(napi, Round.CPUPerGB)
		fmt.Fprintf(t, "%s\t%.2f\t%.2f-%.2f\t%.2f\t%.2f\t%.2f\t%.0f\t%.0f\t%.0f\t\n", onOff(napi), cpu.Median(), cpu.Quantile(0), cpu.Quantile(1),
			perGB(func(x Round) float64 { return x.Receiver }), perGB(func(x Round) float64 { return x.Vhost }),
			perGB(func(x Round) float64 { return x.Softirq }), median(Round.BytesPerPacket),
			perGB(func(x Round) float64 { return float64(x.Acks) }), median(Round.Mbps))
	}
	return t.Flush()
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
