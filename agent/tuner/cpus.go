package tuner

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// cpus are numbers of CPUs, in order.
type cpus []int

// maxCPU is more than any kernel is built for.
const maxCPU = 8191

// parseCPUs reads a list as the kernel writes it, "0-3,8". The empty list is none.
func parseCPUs(list string) (cpus, error) {
	var all cpus
	if list = strings.TrimSpace(list); list == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(list, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		first, err := strconv.Atoi(from)
		last, lastErr := strconv.Atoi(to)
		if err != nil || lastErr != nil || first < 0 || last < first || last > maxCPU {
			return nil, fmt.Errorf("want numbers and ranges as in \"0-3,8\", got %q", part)
		}
		for cpu := first; cpu <= last; cpu++ {
			all = append(all, cpu)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// String writes the list.
func (c cpus) String() string {
	var parts []string
	for i := 0; i < len(c); {
		end := i
		for end+1 < len(c) && c[end+1] == c[end]+1 {
			end++
		}
		part := strconv.Itoa(c[i])
		if end > i {
			part += "-" + strconv.Itoa(c[end])
		}
		parts = append(parts, part)
		i = end + 1
	}
	return strings.Join(parts, ",")
}

// mask writes them as rps_cpus and xps_cpus take them: 32 bits a word, the highest first.
func (c cpus) mask() string {
	if len(c) == 0 {
		return "0"
	}
	words := make([]uint32, c[len(c)-1]/32+1)
	for _, cpu := range c {
		words[cpu/32] |= 1 << (cpu % 32)
	}
	parts := make([]string, len(words))
	for i, w := range words {
		parts[len(words)-1-i] = fmt.Sprintf("%08x", w)
	}
	return strings.Join(parts, ",")
}

// parseMask reads a mask; with fewer words than CPUs or more.
func parseMask(mask string) (cpus, error) {
	words := strings.Split(strings.TrimSpace(mask), ",")
	var all cpus
	for i := range words {
		w, err := strconv.ParseUint(words[len(words)-1-i], 16, 32)
		if err != nil {
			return nil, fmt.Errorf("want a mask of CPUs, got %q", mask)
		}
		for bit := range 32 {
			if w&(1<<bit) != 0 {
				all = append(all, 32*i+bit)
			}
		}
	}
	return all, nil
}

// topology is which CPUs are online and which node of memory each is near to.
type topology struct {
	online cpus
	nodes  map[int]cpus
}

// readTopology reads it out of sys, which is /sys or the like. A kernel without NUMA has one node.
func readTopology(sys fs.FS) (topology, error) {
	t := topology{nodes: map[int]cpus{}}
	data, err := fs.ReadFile(sys, "devices/system/cpu/online")
	if err == nil {
		t.online, err = parseCPUs(string(data))
	}
	if err != nil {
		return t, fmt.Errorf("read which CPUs are online: %w", err)
	}
	files, err := fs.Glob(sys, "devices/system/node/node[0-9]*/cpulist")
	if err != nil {
		return t, fmt.Errorf("list the nodes of memory: %w", err)
	}
	for _, f := range files {
		var node int
		if _, err := fmt.Sscanf(f, "devices/system/node/node%d/cpulist", &node); err != nil {
			return t, fmt.Errorf("node of memory %q: %w", f, err)
		}
		data, err := fs.ReadFile(sys, f)
		if err == nil {
			t.nodes[node], err = parseCPUs(string(data))
		}
		if err != nil {
			return t, fmt.Errorf("CPUs of node %d: %w", node, err)
		}
	}
	return t, nil
}

// deviceNode is the node that a network device's hardware is at; -1: it is at none, or has no hardware.
func deviceNode(sys fs.FS, name string) int {
	data, err := fs.ReadFile(sys, "class/net/"+name+"/device/numa_node")
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return -1
	}
	return node
}

// near are the CPUs of the nodes on which a VMM may run that may run on those: memory that it wrote is near to them. Where that is every node, it
// is the one that the uplink is at, where that is known (-1: not). nil: all the same.
func (t topology) near(vmm cpus, uplinkNode int) cpus {
	var all cpus
	nodes := 0
	for _, node := range slices.Sorted(maps.Keys(t.nodes)) {
		of := t.nodes[node]
		if len(of) == 0 { // of memory alone
			continue
		}
		nodes++
		if slices.ContainsFunc(of, func(cpu int) bool { return slices.Contains(vmm, cpu) }) {
			all = append(all, of...)
		}
	}
	slices.Sort(all)
	switch {
	case nodes < 2:
		return nil
	case len(all) != 0 && len(all) < len(t.online):
		return all
	}
	return t.nodes[uplinkNode]
}
