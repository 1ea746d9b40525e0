package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/test/bench/call"

	"github.com/tapir-cni/tapir/test/bench/goal"
	"github.com/tapir-cni/tapir/test/bench/node"
)

const (
	memoryQueues = 4
	memoryRounds = 3
	// memorySettle is how long the kernel gets to free what the round before has deleted.
	memorySettle = 500 * time.Millisecond
)

// measureMemory makes a number of 4-queue TAPs with tapir and with the tap plugin, in turn, and takes what the kernel's
// unreclaimable slab grew by for each: of tapir's, the veth pair, routes and programs' entries are in it.
func measureMemory(n *node.Node, o options, report *Report) error {
	all := allVariants(o)
	grown := make(map[string][]float64)
	names := []string{"tapir", "tap"}
	for round := range memoryRounds {
		for _, name := range names {
			v, _ := all.find(name)
			perDevice, err := growth(n, v.withQueues(memoryQueues), round, o.devices)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			grown[name] = append(grown[name], perDevice)
		}
	}
	report.Memory = &Memory{
		Queues: memoryQueues, Devices: o.devices,
		TapirKB: goal.Sample(grown["tapir"]).Median(), TapKB: goal.Sample(grown["tap"]).Median(),
	}
	return nil
}

// growth is the slab's growth in kB per device.
func growth(n *node.Node, v variant, round, devices int) (perDevice float64, err error) {
	sandboxes, err := n.NewNetnses(devices + 1)
	if err != nil {
		return 0, err
	}
	var undo []call.Call
	defer func() {
		for _, c := range undo {
			if _, failed := c.Do(); failed != nil {
				err = errors.Join(err, failed)
			}
		}
	}()
	// One that is not counted: what the first ADD of a network makes once.
	first, _, err := addProven(v, fmt.Sprintf("slab-%d-first", round), sandboxes[devices])
	if err != nil {
		return 0, err
	}
	undo = append(undo, first)

	before, err := settledSlab()
	if err != nil {
		return 0, err
	}
	for i := range devices {
		c, _, failed := addProven(v, fmt.Sprintf("slab-%d-%d", round, i), sandboxes[i])
		if failed != nil {
			return 0, failed
		}
		undo = append(undo, c)
	}
	after, err := settledSlab()
	if err != nil {
		return 0, err
	}
	return float64(after-before) / float64(devices), nil
}

// settledSlab waits for the kernel's deferred frees and gives SUnreclaim of proc_meminfo(5) in kB, the least of a few
// looks: other processes of the machine make it swing upwards.
func settledSlab() (int, error) {
	runtime.GC()
	time.Sleep(memorySettle)
	var looks []int
	for range 5 {
		kB, err := slab()
		if err != nil {
			return 0, err
		}
		looks = append(looks, kB)
		time.Sleep(20 * time.Millisecond)
	}
	return slices.Min(looks), nil
}

func slab() (int, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "SUnreclaim:" {
			return strconv.Atoi(fields[1])
		}
	}
	return 0, errors.New("/proc/meminfo has no SUnreclaim")
}
