package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// state is what a machine holds: for each kind of object the objects by name, each with a description that must not change.
type state map[string]map[string]string

// add records one object; objects of the same name are told apart by a count.
func (s state) add(kind, name, description string) {
	if s[kind] == nil {
		s[kind] = make(map[string]string)
	}
	key := name
	for n := 2; ; n++ {
		if _, taken := s[kind][key]; !taken {
			break
		}
		key = fmt.Sprintf("%s #%d", name, n)
	}
	s[kind][key] = description
}

// changes lists what differs in after, a line each, sorted. A sysctl is compared only where it is there both times:
// a link or a kernel module brings its own along, and links are compared by themselves.
func (s state) changes(after state) []string {
	var lines []string
	kinds := maps.Clone(s)
	maps.Copy(kinds, after)
	for kind := range kinds {
		was, is := s[kind], after[kind]
		for name, description := range is {
			old, there := was[name]
			switch {
			case !there && kind != kindSysctl:
				lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s is new: %s", kind, name, description)))
			case there && old != description:
				lines = append(lines, fmt.Sprintf("%s %s: was %q, is %q", kind, name, old, description))
			}
		}
		for name := range was {
			if _, there := is[name]; !there && kind != kindSysctl {
				lines = append(lines, fmt.Sprintf("%s %s is gone", kind, name))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// summary says how many objects of each kind there are, so that a comparison of nothing is seen.
func (s state) summary() string {
	var parts []string
	for _, kind := range kinds {
		parts = append(parts, fmt.Sprintf("%s %d", kind, len(s[kind])))
	}
	return strings.Join(parts, ", ")
}
