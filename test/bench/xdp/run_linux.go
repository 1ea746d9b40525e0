package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// threads is above the number of threads that a measurement keeps busy: none waits for Go's scheduler while a CPU is free.
const threads = 16

// warmUp bounds a measurement of the round that is not counted.
const warmUp = 300 * time.Millisecond

// measure sets up the pairs of all chosen variants side by side on the node and runs the rounds: in each every measurement
// is made once, tests, cases and variants in random order.
func measure(o options, n namespaces, chosen []test) (_ *Report, err error) {
	runtime.GOMAXPROCS(threads)
	usableCPUs() // before any thread is pinned
	report := &Report{Rounds: o.rounds, Duration: o.duration, CPUs: runtime.NumCPU(), Kernel: kernelRelease(), Load: load()}
	pairs := make(map[string]*pair)
	defer func() {
		for _, p := range pairs {
			err = errors.Join(err, p.close())
		}
	}()
	for _, t := range chosen {
		for _, variant := range t.variants {
			if pairs[variant] != nil {
				continue
			}
			if pairs[variant], err = open(o, n, variant); err != nil {
				delete(pairs, variant)
				return nil, err
			}
		}
	}
	order := rand.New(rand.NewPCG(1, 2)) // the same order in every run
	for round := range 1 + o.rounds {
		into, its := report, o
		if round == 0 {
			into, its.duration = &Report{}, min(o.duration, warmUp)
		}
		if err := measureRound(its, chosen, pairs, order, into); err != nil {
			return nil, fmt.Errorf("round %d: %w", round, err)
		}
		if o.progress {
			fmt.Fprintf(os.Stderr, "bench-xdp: round %d of %d done\n", round, o.rounds)
		}
	}
	if report.Paths, err = checkPaths(o, pairs); err != nil {
		return nil, err
	}
	if o.profile {
		if report.Profiles, err = profileAll(o, chosen, pairs); err != nil {
			return nil, fmt.Errorf("profile: %w", err)
		}
	}
	report.sort(chosen)
	report.judge()
	return report, nil
}

func measureRound(o options, chosen []test, pairs map[string]*pair, order *rand.Rand, into *Report) error {
	for _, i := range order.Perm(len(chosen)) {
		t := chosen[i]
		for _, j := range order.Perm(len(t.cases)) {
			for _, k := range order.Perm(len(t.variants)) {
				variant := t.variants[k]
				values, err := t.cases[j].measure(o, pairs[variant])
				if err != nil {
					return fmt.Errorf("%s, %s, %s: %w", t.name, t.cases[j].name, variant, err)
				}
				for metric, value := range values {
					into.add(t.name, t.cases[j].name, variant, metric, value)
				}
			}
		}
	}
	return nil
}

// sort puts the series into the order of the tables.
func (r *Report) sort(chosen []test) {
	rank := func(s *Series) [4]int {
		i := slices.IndexFunc(chosen, func(t test) bool { return t.name == s.Test })
		t := chosen[i]
		return [4]int{
			i, slices.IndexFunc(t.cases, func(c testCase) bool { return c.name == s.Case }),
			slices.Index(t.variants, s.Variant), slices.Index(t.metrics, s.Metric),
		}
	}
	slices.SortFunc(r.Series, func(a, b *Series) int {
		left, right := rank(a), rank(b)
		return slices.Compare(left[:], right[:])
	})
}

// load is the load average of the last minute.
func load() float64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return float64(info.Loads[0]) / (1 << 16) // SI_LOAD_SHIFT
}

// kernelRelease is that of uname(2).
func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}
