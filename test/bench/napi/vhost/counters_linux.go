package vhost

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/test/bench/node"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// spent is CPU time since a thread began. It is read by the thread that receives, which pays for that: three small files, last before
// what is measured and first after it.
type spent struct{ receiver, vhost, softirq time.Duration }

func (s *setup) spent(p *testpmd) (c spent, err error) {
	if c.receiver, err = runtimeOf(unix.Gettid()); err != nil {
		return c, err
	}
	for _, tid := range p.vhost {
		var d time.Duration
		if d, err = runtimeOf(tid); err != nil {
			return c, err
		}
		c.vhost += d
	}
	c.softirq, err = runtimeOf(s.softirq)
	return c, err
}

// sub puts what was spent since before into r.
func (c spent) sub(before spent, r *Round) {
	r.Receiver = (c.receiver - before.receiver).Seconds()
	r.Vhost = (c.vhost - before.vhost).Seconds()
	r.Softirq = (c.softirq - before.softirq).Seconds()
}

// counters are what the devices and IP counted.
type counters struct{ packets, frames, acks int64 }

func (s *setup) counters() (c counters, err error) {
	if c.packets, err = packetsIn(); err != nil {
		return c, err
	}
	return c, node.In(s.sandbox, func() error {
		l, err := netlink.LinkByName(s.tap)
		if err != nil {
			return err
		}
		stats := l.Attrs().Statistics
		c.frames, c.acks = int64(stats.RxPackets), int64(stats.TxPackets)
		return nil
	})
}

// sub puts what was counted since before into r.
func (c counters) sub(before counters, r *Round) {
	r.Packets, r.Frames, r.Acks = c.packets-before.packets, c.frames-before.frames, c.acks-before.acks
}

// runtimeOf is the time that a thread ran, softirqs on top of it included, by the scheduler's clock and not by the timer's tick
// (Documentation/scheduler/sched-stats.rst).
func runtimeOf(tid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", tid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b))
	if len(fields) != 3 {
		return 0, fmt.Errorf("schedstat of thread %d: want 3 numbers, got %q", tid, b)
	}
	ns, err := strconv.ParseInt(fields[0], 10, 64)
	return time.Duration(ns), err
}

// softirqThread finds ksoftirqd of a CPU.
func softirqThread(cpu int) (int, error) {
	want := fmt.Sprintf("ksoftirqd/%d", cpu)
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		if comm, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(comm)) == want {
			return strconv.Atoi(filepath.Base(filepath.Dir(f)))
		}
	}
	return 0, fmt.Errorf("there is no thread %s", want)
}

// packetsIn is how many packets IP took in, in the netns of the calling thread.
func packetsIn() (int64, error) {
	b, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return 0, err
	}
	return snmp(string(b), "Ip", "InReceives")
}

// snmp reads a counter of /proc/net/snmp: a line of names, then one of values, each after the protocol's name.
func snmp(text, protocol, name string) (int64, error) {
	var names []string
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, protocol+":")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if names == nil {
			names = fields
			continue
		}
		if i := slices.Index(names, name); i >= 0 && i < len(fields) {
			return strconv.ParseInt(fields[i], 10, 64)
		}
	}
	return 0, fmt.Errorf("/proc/net/snmp has no %s of %s", name, protocol)
}

// pin keeps a thread on a CPU; 0 is the calling one.
func pin(tid, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(tid, &set); err != nil {
		return fmt.Errorf("keep thread %d on CPU %d: %w", tid, cpu, err)
	}
	return nil
}

// onThread runs f on a thread of its own on that CPU.
func onThread(cpu int, f func() error) error {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if err := pin(0, cpu); err != nil {
		return err
	}
	return f()
}
