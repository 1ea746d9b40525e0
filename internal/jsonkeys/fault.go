// Package jsonkeys checks JSON against the Go type that it will be decoded into, and tells every fault at once with
// its JSON path: unknown keys with the nearest known one, keys given twice, values of the wrong type.
// encoding/json stops at the first and takes keys of any case.
package jsonkeys

import (
	"strconv"
	"strings"
)

// Fault is one thing wrong with a JSON document.
type Fault struct {
	Path    string // as in ipam.ranges[0][1].rangeStart; empty for the document itself
	Problem string // what is wanted and what was got
}

func (f Fault) String() string {
	if f.Path == "" {
		return f.Problem
	}
	return f.Path + ": " + f.Problem
}

// Faults is an error made of all the faults of a document, a line each. Return [Faults.Err], since an empty Faults is
// an error that is not nil.
type Faults []Fault

func (fs Faults) Error() string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// Err is the faults as an error, nil where there are none.
func (fs Faults) Err() error {
	if len(fs) == 0 {
		return nil
	}
	return fs
}

// Add appends a fault.
func (fs *Faults) Add(path, problem string) { *fs = append(*fs, Fault{Path: path, Problem: problem}) }

// Under is the faults as those of the value at path in a larger document.
func (fs Faults) Under(path string) Faults {
	moved := make(Faults, len(fs))
	for i, f := range fs {
		moved[i] = Fault{Path: JoinPath(path, f.Path), Problem: f.Problem}
	}
	return moved
}

// JoinPath is the path of what stands at inner in the value at outer.
func JoinPath(outer, inner string) string {
	if outer == "" || inner == "" || inner[0] == '[' {
		return outer + inner
	}
	return outer + "." + inner
}

// KeyPath is the path of a key of the object at path.
func KeyPath(path, key string) string {
	plain := key != ""
	for _, r := range key {
		if r < '0' || r > '9' && r < 'A' || r > 'Z' && r < 'a' && r != '_' || r > 'z' {
			plain = false
		}
	}
	if !plain {
		return path + "[" + strconv.Quote(key) + "]"
	}
	return JoinPath(path, key)
}

// IndexPath is the path of an element of the array at path.
func IndexPath(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
