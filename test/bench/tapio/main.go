// Command bench-tapio measures reading and writing a TAP by themselves, and what batching userspace can do there: one frame a system
// call (write, writev, read, readv), and io_uring with batches, registered file and buffers, and a polling kernel thread. sendmmsg and
// recvmmsg are tried and refused: a TAP's descriptor is no socket.
//
// Writes end in a program that drops them at the TAP's ingress, in a full UDP socket, or in native XDP. Reads empty a ring that was
// filled just before, so that nothing else runs meanwhile. The rows take turns in random order within each round; the TAPs are in a
// network namespace of the command's own. It prints Markdown tables and, for scripts, lines "result ROW FRAMES-PER-SECOND
// CPU-NS-PER-FRAME". There are no goals: the figures answer two questions of docs/benchmarks.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/test/bench/node"
)

type options struct {
	rounds int
	slice  time.Duration
	only   string
	update string
	json   bool
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 11, "measured rounds; each measures every row once")
	flag.DurationVar(&o.slice, "slice", 100*time.Millisecond, "how long a row is measured in a round")
	flag.StringVar(&o.only, "only", "", "measure the rows whose names have all of these `words` alone, such as \"write drop 60 q1\"")
	flag.StringVar(&o.update, "update", "", "put the tables into this `file` too, between its marks")
	flag.BoolVar(&o.json, "json", false, "print JSON")
	flag.Parse()
	if flag.NArg() > 0 || o.rounds < 1 || o.slice < time.Millisecond {
		fmt.Fprintln(os.Stderr, "bench-tapio: want no arguments, -rounds of 1 or more and -slice of 1ms or more")
		os.Exit(2)
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench-tapio:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if !node.Inside() {
		return node.Reexec()
	}
	if _, err := node.New(); err != nil {
		return fmt.Errorf("set up the node: %w", err)
	}
	report, err := measure(o)
	if err != nil {
		return err
	}
	if o.update != "" {
		if err := report.update(o.update); err != nil {
			return err
		}
	}
	if o.json {
		return report.writeJSON(os.Stdout)
	}
	return report.writeText(os.Stdout)
}

// measure runs the rounds, in the network namespace of this process, which must be its own.
func measure(o options) (_ *Report, err error) {
	// Frames of the node's own would be counted too.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	sink, err := openSink()
	if err != nil {
		return nil, fmt.Errorf("open the sink: %w", err)
	}
	defer unix.Close(sink)
	report := &Report{Rounds: o.rounds, Slice: o.slice.String()}
	noRing := tryRing()
	if noRing != nil {
		report.NoRing = noRing.Error()
	}
	for _, row := range allRows() {
		if row.named(o.only) && (noRing == nil || row.method.batch == 0) {
			report.Rows = append(report.Rows, row)
		}
	}
	if len(report.Rows) == 0 {
		return nil, errors.Join(fmt.Errorf("-only: no row is named %q", o.only), noRing)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, err
	}
	report.Kernel = unix.ByteSliceToString(name.Release[:])
	devices := map[string]*device{}
	for _, row := range report.Rows {
		key := fmt.Sprintf("%d %s %s", row.Queues, row.NAPI, row.Sink)
		if devices[key] != nil {
			continue
		}
		d, err := openDevice(len(devices), row.Queues, row.NAPI, row.Sink)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, d.close()) }()
		devices[key] = d
		if report.Sockets == nil {
			report.Sockets = socketCalls(d.queues.FDs()[0])
		}
	}
	debug.SetGCPercent(-1) // nothing is allocated while the clock runs
	for round := range o.rounds {
		for _, i := range rand.Perm(len(report.Rows)) {
			row := report.Rows[i]
			d := devices[fmt.Sprintf("%d %s %s", row.Queues, row.NAPI, row.Sink)]
			slice := writeSlice
			switch {
			case row.Op == opReadFrames:
				slice = readSlice
			case row.Sink == sinkGRO:
				slice = groSlice
			}
			m, err := slice(d, row.method, row.Size, o.slice)
			if err != nil {
				return nil, fmt.Errorf("round %d: %s: %w", round, row, err)
			}
			row.add(m)
		}
	}
	return report, nil
}

// socketCalls tries what sends and receives several messages at once on sockets.
func socketCalls(fd int) map[string]string {
	answers := map[string]string{}
	for name, number := range map[string]uintptr{"sendmmsg": unix.SYS_SENDMMSG, "recvmmsg": unix.SYS_RECVMMSG} {
		var message [64]byte // struct mmsghdr, of no bytes
		_, _, errno := unix.Syscall6(number, uintptr(fd), uintptr(unsafe.Pointer(&message)), 1, unix.MSG_DONTWAIT, 0, 0)
		answers[name] = "possible"
		if errno != 0 {
			answers[name] = fmt.Sprintf("%s (%s)", unix.ErrnoName(errno), errno.Error())
		}
	}
	return answers
}
