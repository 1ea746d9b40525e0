package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tapir-cni/tapir/test/bench/goal"
)

// A bound is a goal to judge: the shortcut's median over another variant's, in one case of a test.
type bound struct {
	name, test, kase, metric string
	theirs, theirMetric      string
	judge                    func(name string, value, bound float64) goal.Goal
	bound                    float64
}

var bounds = []bound{
	{"delivered_64_vs_bridge", "frames", small, delivered, bridged, delivered, goal.AtLeast, 4},
	{"delivered_64_vs_limit", "frames", small, delivered, dropped, accepted, goal.AtLeast, 0.5},
	{"tcp_no_offload_vs_bridge", "tcp", noOffload, throughput, bridged, throughput, goal.AtLeast, 1.3},
	{"tcp_checksum_offload_vs_bridge", "tcp", checksumOff, throughput, bridged, throughput, goal.AtLeast, 1.3},
	{"tcp_tso_vs_bridge", "tcp", tso, throughput, bridged, throughput, goal.AtLeast, 0.95},
	{"spoof_vs_guest_ingress", "spoof", small, discarded, routed, discarded, goal.AtLeast, 1.4},
	{"spoof_vs_host_tc", "spoof", small, discarded, guarded, discarded, goal.AtLeast, 1.4},
	{"rtt_p99_vs_default", "rtt", small, p99, routed, p99, goal.AtMost, 1.2},
}

// judge fills in the goals that the measured series allow.
func (r *Report) judge() {
	r.Goals = nil
	for _, b := range bounds {
		ours, theirs := r.find(b.test, b.kase, shortcut, b.metric), r.find(b.test, b.kase, b.theirs, b.theirMetric)
		if ours == nil || theirs == nil || theirs.sample().Median() == 0 {
			continue
		}
		r.Goals = append(r.Goals, b.judge(b.name, ours.sample().Median()/theirs.sample().Median(), b.bound))
	}
}

// functionsShown is how many of a profile's functions explain a goal that is short.
const functionsShown = 8

// explain says where the time goes in each goal that is short, where it was profiled: on both sides, a paragraph a goal.
func (r *Report) explain(w io.Writer) {
	for _, g := range r.Goals {
		i := slices.IndexFunc(bounds, func(b bound) bool { return b.name == g.Name })
		if g.Met || i < 0 {
			continue
		}
		var sides []string
		for _, variant := range []string{shortcut, bounds[i].theirs} {
			if p := r.profile(bounds[i].test, bounds[i].kase, variant); p != nil {
				sides = append(sides, p.sentence())
			}
		}
		if len(sides) > 0 {
			fmt.Fprintf(w, "\nWhere the time of `%s` goes. %s\n", g.Name, strings.Join(sides, " "))
		}
	}
}

func (r *Report) profile(test, kase, variant string) *Profile {
	for _, p := range r.Profiles {
		if p.Test == test && p.Case == kase && p.Variant == variant {
			return p
		}
	}
	return nil
}

// sentence is the profile in short.
func (p *Profile) sentence() string {
	var parts []string
	for _, one := range p.Programs {
		parts = append(parts, fmt.Sprintf("`%s` %.0f ns a run", one.Name, one.Nanoseconds))
	}
	for _, one := range p.Functions[:min(len(p.Functions), functionsShown)] {
		parts = append(parts, fmt.Sprintf("%s %.0f %%", one.Name, 100*one.Share))
	}
	return fmt.Sprintf("%s: %s.", titles[p.Variant], strings.Join(parts, ", "))
}
