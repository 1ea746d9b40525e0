package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// profileCases are what a profile is made of: the cases that goals are judged on.
var profileCases = []string{small, noOffload, checksumOff, tso}

// profileAll makes each measurement once more and looks where the time goes. It is no part of the rounds: both ways of
// looking cost time.
func profileAll(o options, chosen []test, pairs map[string]*pair) ([]*Profile, error) {
	var profiles []*Profile
	for _, t := range chosen {
		for _, c := range t.cases {
			if !slices.Contains(profileCases, c.name) || t.name == "rtt" {
				continue
			}
			for _, variant := range t.variants {
				p := &Profile{Test: t.name, Case: c.name, Variant: variant}
				once := func() error {
					_, err := c.measure(o, pairs[variant])
					return err
				}
				if err := errors.Join(p.timePrograms(once), p.sampleFunctions(o.duration, once)); err != nil {
					return nil, fmt.Errorf("%s, %s, %s: %w", t.name, c.name, variant, err)
				}
				profiles = append(profiles, p)
			}
		}
	}
	return profiles, nil
}

// timePrograms has the kernel count runs and time of each BPF program meanwhile.
func (p *Profile) timePrograms(measure func() error) (err error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("have the kernel time BPF programs: %w", err)
	}
	defer func() { err = errors.Join(err, stats.Close()) }()
	before, err := programTimes()
	if err != nil {
		return err
	}
	if err := measure(); err != nil {
		return err
	}
	after, err := programTimes()
	if err != nil {
		return err
	}
	for id, now := range after {
		runs, took := now.runs-before[id].runs, now.took-before[id].took
		if runs > 0 {
			p.Programs = append(p.Programs, ProgramTime{Name: now.name, Runs: runs, Nanoseconds: float64(took.Nanoseconds()) / float64(runs)})
		}
	}
	slices.SortFunc(p.Programs, func(a, b ProgramTime) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

type programTime struct {
	name string
	runs uint64
	took time.Duration
}

// programTimes asks for all programs of the machine; those of others did not run here and show no difference.
func programTimes() (map[ebpf.ProgramID]programTime, error) {
	times := make(map[ebpf.ProgramID]programTime)
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return times, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list BPF programs: %w", err)
		}
		id = next
		program, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue // it ended meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("open BPF program %d: %w", id, err)
		}
		info, infoErr := program.Info()
		stats, statsErr := program.Stats()
		program.Close()
		if err := errors.Join(infoErr, statsErr); err != nil {
			return nil, fmt.Errorf("read the times of BPF program %d: %w", id, err)
		}
		times[id] = programTime{info.Name, stats.RunCount, stats.Runtime}
	}
}

// sampleFunctions has perf sample what this process does meanwhile, where perf is installed: what the kernel does for a frame it
// does mostly in the thread that wrote it.
func (p *Profile) sampleFunctions(d time.Duration, measure func() error) (err error) {
	perf, err := exec.LookPath("perf")
	if err != nil {
		return nil
	}
	dir, err := os.MkdirTemp("", "bench-xdp-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	data := filepath.Join(dir, "perf.data")
	// Of all CPUs, since perf fails on a process whose threads come and go; the report is of this process.
	record := exec.Command(perf, "record", "-a", "-e", "cpu-clock", "-F", "1997", "-o", data, "--", "sleep", fmt.Sprintf("%.3f", d.Seconds()))
	var said bytes.Buffer
	record.Stdout, record.Stderr = &said, &said
	if err := record.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- record.Wait() }()
	for sampling := true; sampling; { // perf takes its time to begin
		measured := measure()
		select {
		case failed := <-ended:
			if failed != nil {
				return errors.Join(measured, fmt.Errorf("perf record: %w: %s", failed, strings.TrimSpace(said.String())))
			}
			sampling = false
		default:
		}
		if measured != nil {
			return measured
		}
	}
	out, err := exec.Command(perf, "report", "-q", "--stdio", "--no-children", "-g", "none", "--pid", strconv.Itoa(os.Getpid()),
		"--percentage", "relative", "-F", "overhead,sym", "-t", "|", "-i", data).Output()
	if err != nil {
		return fmt.Errorf("perf report: %w", err)
	}
	p.Functions = readPerf(string(out))
	return nil
}

// readPerf reads lines "12.34%|[k] function" and gives the functions, largest part first.
func readPerf(out string) []FunctionShare {
	var list []FunctionShare
	for line := range strings.Lines(out) {
		part, symbol, found := strings.Cut(line, "|")
		percent, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(part), "%"), 64)
		if !found || err != nil {
			continue // a comment or an empty line
		}
		_, name, _ := strings.Cut(strings.TrimSpace(symbol), "] ")
		list = append(list, FunctionShare{Name: strings.TrimSpace(name), Share: percent / 100})
	}
	slices.SortStableFunc(list, func(a, b FunctionShare) int { return cmp.Compare(b.Share, a.Share) })
	return list[:min(len(list), profileFunctions)]
}

// profileFunctions is how many functions a profile keeps.
const profileFunctions = 15
