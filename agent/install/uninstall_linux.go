package install

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// retiredKey is one that no tapir knows: ADD and STATUS refuse it, by its name, while DEL reads nothing but what it needs.
const retiredKey = "tapird uninstall took tapir off this node"

// Retire has the runtime make no new attachment and still call DEL. containerd calls it by the configuration that is there, not by that of the ADD, and without one
// it ends no pod at all: tapir's own configuration stays, in a form that refuses ADD and STATUS. Out of one that was extended tapir is taken: its pods
// end by what is left of it. It says what it did.
func Retire(o Options) (did []string, err error) {
	i := New(Config{Options: o})
	if i.c.Mode == ModeCluster || i.c.Mode == ModeRuntimeClass {
		if did, err = i.retireOwn(); err != nil {
			return did, err
		}
	}
	more, err := i.putBackAll()
	return append(did, more...), err
}

func (i *Installer) retireOwn() (did []string, err error) {
	path := filepath.Join(i.confDir(), i.c.Name)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, ignoreNotExist(err)
	}
	l, err := parse(data)
	if err != nil || l.ours() == nil {
		return nil, err
	}
	l.ours()[retiredKey] = true
	content, err := l.write()
	if err != nil {
		return nil, err
	}
	changed, err := putFile(path, confMode, content)
	if changed {
		did = append(did, "rewrote "+path+": it refuses ADD and STATUS, and serves DEL")
	}
	return did, err
}

// RemoveConf takes away the configuration, or tapir out of the one that was extended: no new pod gets tapir after it. It says what it did.
func RemoveConf(o Options) (did []string, err error) { return New(Config{Options: o}).removeConf() }

// RemovePrograms takes away the programs. The runtime calls them for each DEL: no attachment may be left. It says what it did.
func RemovePrograms(o Options) (did []string, err error) {
	i := New(Config{Options: o})
	var errs []error
	for _, p := range i.copies() {
		what, err := remove(p.to)
		did, errs = append(did, what...), append(errs, err)
	}
	for _, dir := range i.folders() {
		errs = append(errs, sweep(dir))
	}
	return did, errors.Join(errs...)
}

// removeConf is RemoveConf.
func (i *Installer) removeConf() (did []string, err error) {
	switch i.c.Mode {
	case ModeCluster, ModeRuntimeClass:
		did, err = i.removeOwn()
	}
	more, backErr := i.putBackAll()
	return append(did, more...), errors.Join(err, backErr)
}

// putBackAll puts back all that was extended, whatever the mode is now: it may have been another.
func (i *Installer) putBackAll() (did []string, err error) {
	kept, globErr := filepath.Glob(filepath.Join(i.c.CNIConfDir, "*"+originalSuffix))
	errs := []error{globErr}
	for _, from := range kept {
		path := from[:len(from)-len(originalSuffix)]
		what, err := i.putBack(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("put back %s: %w", path, err))
			continue
		}
		did = append(did, what)
	}
	return did, errors.Join(errs...)
}

// removeOwn removes tapir's own configuration.
func (i *Installer) removeOwn() (did []string, err error) {
	path := filepath.Join(i.confDir(), i.c.Name)
	if data, err := os.ReadFile(path); err == nil {
		if l, err := parse(data); err == nil && l.ours() == nil {
			return []string{"left " + path + " alone: it does not call tapir"}, nil
		}
	}
	// The folder stays, also one of its own: containerd 2.4 ends itself when a folder goes that it reads configurations from.
	return remove(path)
}

func remove(path string) (did []string, err error) {
	err = os.Remove(path)
	if err == nil {
		did = append(did, "removed "+path)
	}
	return did, ignoreNotExist(err)
}
