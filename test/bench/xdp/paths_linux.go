package main

import "fmt"

// checkPaths says by which way the frames of the floods went, and is an error where tapir's own counters contradict.
func checkPaths(o options, pairs map[string]*pair) ([]string, error) {
	var lines []string
	for _, variant := range variantNames() {
		p := pairs[variant]
		if p == nil || p.total.frames == 0 {
			continue
		}
		if variant == dropped {
			lines = append(lines, fmt.Sprintf("%s: %d frames written, %d dropped at the TAP", titles[variant], p.total.frames, p.total.tapDropped))
			continue
		}
		lines = append(lines, fmt.Sprintf("%s: %d frames written, %d reached the node's end of the veth", titles[variant], p.total.frames, p.total.host))
	}
	return lines, nil
}
