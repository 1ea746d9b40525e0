package install

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

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
	// Whatever the mode is now: it may have been another.
	kept, globErr := filepath.Glob(filepath.Join(i.c.CNIConfDir, "*"+originalSuffix))
	errs := []error{err, globErr}
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
			return nil, fmt.Errorf("%s: it does not call tapir; it is left alone", path)
		}
	}
	if did, err = remove(path); err != nil {
		return did, err
	}
	if i.c.Mode == ModeRuntimeClass {
		_ = os.Remove(i.confDir()) // others may have files there
	}
	return did, nil
}

func remove(path string) (did []string, err error) {
	err = os.Remove(path)
	if err == nil {
		did = append(did, "removed "+path)
	}
	return did, ignoreNotExist(err)
}
