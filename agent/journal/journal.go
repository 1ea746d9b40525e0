// Package journal remembers what parts of the agent changed, so that it can be given back: by a part that is turned off, by the next
// tapird, or by whoever reads the file. A change is recorded before it is made; one that was then not made is harmless, since to give it back sets
// what is there already.
package journal

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// File is the file's name in the state folder.
const File = "tapird.json"

// version is that of the file. One of another version is set aside.
const version = 1

// Change is one setting that a part changed.
type Change struct {
	Part    string `json:"part"`            // "tuner"
	Object  string `json:"object"`          // whose setting: an attachment as network/container id/ifname, or a device of the node
	Index   int    `json:"index,omitempty"` // ifindex of the device: one that was made anew has another, and nothing to be given back
	Setting string `json:"setting"`         // "gro_flush_timeout", "queues/rx-0/rps_cpus"

	Before string    `json:"before"` // what it was before the part changed it for the first time: what is given back
	After  string    `json:"after"`  // what it was changed to last
	Why    string    `json:"why"`
	When   time.Time `json:"when"` // of the last change
}

// place is what there is one change of.
type place struct {
	part, object, setting string
	index                 int
}

func (c Change) place() place { return place{c.Part, c.Object, c.Setting, c.Index} }

// content is the file.
type content struct {
	Version int      `json:"version"`
	BootID  string   `json:"bootID"`
	Changes []Change `json:"changes"`
}

// Journal is the changes of one state folder. Its methods may be called by several goroutines at once; a process should have one Journal
// for a folder, and a folder one process that writes.
type Journal struct {
	path string
	boot string // empty: not opened

	mu      sync.Mutex
	changes map[place]Change
}

// New makes the Journal of a state folder. It touches nothing.
func New(dir string) *Journal {
	return &Journal{path: filepath.Join(dir, File), changes: map[place]Change{}}
}

// Open reads the file, before anything is recorded; without one, or with one of an earlier boot, there are no changes. A file that cannot
// be read as a journal is set aside, aside is its new name, and what was changed before cannot be given back.
func (j *Journal) Open() (aside string, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("open the journal: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.boot = strings.TrimSpace(string(boot))
	clear(j.changes)
	data, err := os.ReadFile(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("open the journal: %w", err)
	}
	var c content
	if err := json.Unmarshal(data, &c); err != nil || c.Version != version {
		aside = j.path + ".corrupt"
		if err := os.Rename(j.path, aside); err != nil {
			return "", fmt.Errorf("set an unreadable journal aside: %w", err)
		}
		return aside, nil
	}
	if c.BootID == j.boot {
		for _, one := range c.Changes {
			j.changes[one.place()] = one
		}
	}
	return "", nil
}

// errNotOpen keeps a file that was not read from being overwritten.
var errNotOpen = errors.New("it was not opened")

// Record writes changes down, before they are made. Of a setting that was changed before, Before stays as it was then. On error nothing is
// recorded, and nothing should be changed.
func (j *Journal) Record(changes ...Change) error {
	return j.edit(func() {
		for _, c := range changes {
			if old, ok := j.changes[c.place()]; ok {
				c.Before = old.Before
			}
			if c.When.IsZero() {
				c.When = time.Now().UTC()
			}
			j.changes[c.place()] = c
		}
	})
}

// Forget takes changes out that were given back, or whose object is gone. Those that are not there are no error.
func (j *Journal) Forget(changes ...Change) error {
	return j.edit(func() {
		for _, c := range changes {
			delete(j.changes, c.place())
		}
	})
}

// Changes are those of a part, of all where that is empty, by part, object, ifindex and setting.
func (j *Journal) Changes(part string) []Change {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.list(func(c Change) bool { return part == "" || c.Part == part })
}

// Of are the changes of one object, whatever the part.
func (j *Journal) Of(object string) []Change {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.list(func(c Change) bool { return c.Object == object })
}

func (j *Journal) list(want func(Change) bool) []Change {
	list := []Change{}
	for _, c := range j.changes {
		if want(c) {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Part, b.Part), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Index, b.Index), cmp.Compare(a.Setting, b.Setting))
	})
	return list
}

// edit changes the map and the file, or neither.
func (j *Journal) edit(f func()) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.boot == "" {
		return fmt.Errorf("write the journal: %w", errNotOpen)
	}
	before := make(map[place]Change, len(j.changes))
	for k, v := range j.changes {
		before[k] = v
	}
	f()
	if err := j.write(); err != nil {
		j.changes = before
		return fmt.Errorf("write the journal: %w", err)
	}
	return nil
}

// write replaces the file; without changes there is none. Who reads it meanwhile has the old one or the new one.
func (j *Journal) write() error {
	if len(j.changes) == 0 {
		if err := os.Remove(j.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	data, err := json.Marshal(content{Version: version, BootID: j.boot, Changes: j.list(func(Change) bool { return true })})
	if err != nil {
		return err
	}
	fresh := j.path + ".new"
	if err := os.WriteFile(fresh, append(data, '\n'), 0o600); err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	return os.Rename(fresh, j.path)
}
