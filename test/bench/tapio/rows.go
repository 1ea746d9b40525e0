package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tapir-cni/tapir/test/bench/goal"
)

// The two directions, as a VMM sees them.
const (
	opWriteFrames = "write"
	opReadFrames  = "read"
)

// Row is one way to move frames, and what the rounds gave for it.
type Row struct {
	Op     string `json:"op"`             // write or read
	Sink   string `json:"sink,omitempty"` // of a write: drop, stack, xdp or gro
	Size   int    `json:"size"`           // bytes of a frame without FCS
	Queues int    `json:"queues"`         // each with a thread of its own
	NAPI   string `json:"napi"`           // off, on, flush or threaded
	Method string `json:"method"`

	Rate    goal.Sample `json:"framesPerSecond"`
	Own     goal.Sample `json:"ownCPUNanosecondsPerFrame"`               // of the process and of the threads that io_uring makes for it
	Machine goal.Sample `json:"machineCPUNanosecondsPerFrame,omitempty"` // of all that ran
	Merged  goal.Sample `json:"framesPerSKB,omitempty"`                  // of sink gro: what GRO made of TCP segments

	method method
}

// String is what -only is matched with: "write drop 60 q1 off writev".
func (r *Row) String() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s %d q%d %s %s", r.Op, r.Sink, r.Size, r.Queues, r.NAPI, r.Method)), " ")
}

// named says whether each of the words is one of the row's name.
func (r *Row) named(words string) bool {
	own := strings.Fields(r.String())
	return !slices.ContainsFunc(strings.Fields(words), func(w string) bool { return !slices.Contains(own, w) })
}

// table names the rows that are compared with each other: all but method and NAPI are the same.
func (r *Row) table() string {
	return fmt.Sprintf("%s|%s|%d|%d", r.Op, r.Sink, r.Size, r.Queues)
}

func (r *Row) add(m measurement) {
	frames := float64(m.frames)
	r.Rate = append(r.Rate, m.rate)
	r.Own = append(r.Own, float64(m.own.Nanoseconds())/frames)
	if r.Op == opWriteFrames {
		r.Machine = append(r.Machine, float64(m.machine.Nanoseconds())/frames)
	}
	if r.Sink == sinkGRO {
		r.Merged = append(r.Merged, m.merged)
	}
}

// methods are all that userspace has for a descriptor that is no socket, one frame a call first.
func methods(op string) []method {
	list := []method{
		{name: op}, {name: op + "v", vector: true},
		{name: "io_uring 8", batch: 8}, {name: "io_uring 32", batch: 32}, {name: "io_uring 128", batch: 128},
		{name: "io_uring 32 registered", batch: 32, fixed: true}, {name: "io_uring 128 registered", batch: 128, fixed: true},
	}
	if op == opWriteFrames {
		list = append(list, method{name: "io_uring 128 SQPOLL", batch: 128, sqpoll: true})
	}
	return list
}

// few are those that tell whether another sink or NAPI changes what batching brings.
func few(op string) (list []method) {
	for _, m := range methods(op) {
		if m.name == op || m.name == "io_uring 32" || m.name == "io_uring 128 registered" {
			list = append(list, m)
		}
	}
	return list
}

// allRows is what is measured.
func allRows() (rows []*Row) {
	add := func(op, sink string, queues []int, sizes []int, napis []string, list []method) {
		for _, q := range queues {
			for _, size := range sizes {
				for _, m := range list {
					for _, napi := range napis {
						if m.sqpoll && q > 1 {
							continue // its threads want a CPU each beside the writers'
						}
						rows = append(rows, &Row{Op: op, Sink: sink, Size: size, Queues: q, NAPI: napi, Method: m.name, method: m})
					}
				}
			}
		}
	}
	both, plain := []int{60, 1514}, []string{napiOff, napiOn}
	add(opWriteFrames, sinkDrop, []int{1}, both, []string{napiOff, napiOn, napiThreaded}, methods(opWriteFrames))
	add(opWriteFrames, sinkDrop, []int{2}, both, plain, methods(opWriteFrames))
	add(opWriteFrames, sinkStack, []int{1}, both, plain, few(opWriteFrames))
	add(opWriteFrames, sinkXDP, []int{1}, both, plain, few(opWriteFrames))
	add(opWriteFrames, sinkGRO, []int{1}, []int{1514}, []string{napiOff, napiOn, napiFlush, napiThreaded}, few(opWriteFrames))
	add(opReadFrames, "", []int{1, 2}, both, []string{napiOff}, methods(opReadFrames))
	add(opReadFrames, "", []int{1}, []int{60}, []string{napiOn}, few(opReadFrames))
	return rows
}
