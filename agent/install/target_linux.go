package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// confMode is that of a configuration of tapir's own.
const confMode = 0o644

// target is a configuration as it is to be.
type target struct {
	path string
	list list
	mode fs.FileMode

	foreign bool // plugins of it are another network's

	// Of a configuration that is extended where it is: what it was when it was read, and what it is without tapir. Else nil.
	before, without []byte
}

// extended tells whether plugins of the list are somebody else's.
func (i *Installer) extended(own list) bool {
	switch i.c.Mode {
	case ModeChained:
		return true
	case ModeRuntimeClass:
		tapir := own.ours()
		return tapir == nil || tapir["ipam"] == nil
	}
	return false
}

// wanted is the configuration and where it belongs.
func (i *Installer) wanted() (t target, err error) {
	template, err := os.ReadFile(i.c.Template)
	if err != nil {
		return t, fmt.Errorf("template: %w", err)
	}
	own, err := parse(template)
	if err != nil {
		return t, fmt.Errorf("template %s: %w", i.c.Template, err)
	}
	if !i.extended(own) {
		t = target{path: filepath.Join(i.confDir(), i.c.Name), list: own, mode: confMode}
		return t, t.list.fill(i.ranges(t.path), i.c.PodAnnotations)
	}
	other, err := i.other()
	if err != nil {
		return t, err
	}
	data, err := os.ReadFile(other)
	if err != nil {
		return t, err
	}
	if i.c.Mode == ModeRuntimeClass {
		t = target{path: filepath.Join(i.confDir(), i.c.Name), mode: confMode, foreign: true}
		if t.list, err = extend(data, template, i.c.PodAnnotations); err != nil {
			return t, fmt.Errorf("extend %s: %w", other, err)
		}
		return t, nil // with the other's name: allocators keep leases by it, and the range is the same
	}
	info, err := os.Stat(other)
	if err != nil {
		return t, err
	}
	t = target{path: other, mode: info.Mode().Perm(), foreign: true, before: data}
	if t.without, err = i.base(other, data, template); err != nil {
		return t, fmt.Errorf("extend %s: %w", other, err)
	}
	if t.list, err = extend(t.without, template, i.c.PodAnnotations); err != nil {
		return t, fmt.Errorf("extend %s: %w", other, err)
	}
	return t, nil
}

// ranges are the node's. While nobody has told them yet, as where tapird starts and the API server is away, those count that the configuration at path was
// written with.
func (i *Installer) ranges(path string) []netip.Prefix {
	if i.c.Ranges == nil {
		return nil
	}
	if now := i.c.Ranges.Ranges(); len(now) > 0 {
		return now
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	l, err := parse(data)
	if err != nil {
		return nil
	}
	return l.ranges()
}

// originalSuffix ends the name of a file with what an extended configuration was before.
const originalSuffix = ".tapir-original"

func original(path string) string { return path + originalSuffix }

// base is the extended configuration as its owner has it: what is kept of it, or, where somebody changed it since, that without tapir. Without
// anything kept a tapir in it must be the one that is to be there.
func (i *Installer) base(path string, data, template []byte) ([]byte, error) {
	now, err := parse(data)
	if err != nil || now.ours() == nil {
		return data, err
	}
	stripped, err := now.without().write()
	if err != nil {
		return nil, err
	}
	kept, err := os.ReadFile(original(path))
	switch {
	case err == nil:
		if was, err := parse(kept); err == nil && was.same(now.without()) {
			return kept, nil
		}
		return stripped, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if whole, err := extend(stripped, template, i.c.PodAnnotations); err != nil || !whole.same(now) {
		return nil, errors.Join(err, fmt.Errorf("it calls tapir already, and not as the template has it; take that out of it, or give \"mode\" %q", ModeBinaries))
	}
	return stripped, nil
}

// other is the configuration to extend.
func (i *Installer) other() (string, error) {
	name := i.c.Extend
	if name == "" {
		names, err := confs(i.c.CNIConfDir)
		if err != nil {
			return "", err
		}
		if len(names) == 0 {
			return "", fmt.Errorf("want a configuration to extend in %s, got none; it is looked for again when one comes", i.c.CNIConfDir)
		}
		name = names[0]
	}
	path := filepath.Join(i.c.CNIConfDir, name)
	if i.c.Mode == ModeChained && filepath.Ext(name) != ".conflist" {
		return "", fmt.Errorf("extend %s: want a list, a file that ends with .conflist, since a single configuration has room for one plugin", path)
	}
	return path, nil
}

// put writes the configuration; of one that is extended it keeps the original first.
func (i *Installer) put(t target) (changed bool, err error) {
	content, err := t.list.write()
	if err != nil {
		return false, err
	}
	if t.before == nil {
		return putFile(t.path, t.mode, content)
	}
	if _, err := putFile(original(t.path), t.mode, t.without); err != nil {
		return false, fmt.Errorf("keep the original: %w", err)
	}
	if bytes.Equal(content, t.before) {
		return false, nil
	}
	theirs, err := exchange(t.path, t.mode, t.before, content)
	if err != nil || theirs == nil {
		return err == nil, err
	}
	// Its owner wrote it in between. What they wrote goes back to its place, and the next look extends that: beside the extended one of before it
	// would look like an original that somebody has changed since. They may write again meanwhile.
	for placed := content; theirs != nil; {
		if theirs, placed, err = again(t, placed, theirs); err != nil {
			return true, fmt.Errorf("put back what its owner wrote: %w", err)
		}
	}
	return true, errRewritten
}

// again puts what the owner wrote back in place of what was placed. It gives what they have written since then, if they have.
func again(t target, placed, theirs []byte) (newer, now []byte, err error) {
	newer, err = exchange(t.path, t.mode, placed, theirs)
	return newer, theirs, err
}

var errRewritten = errors.New("its owner wrote it at the same time")

// putBackOthers puts back what was extended and is not to be any more: another one is, or none.
func (i *Installer) putBackOthers(but string) error {
	kept, err := filepath.Glob(filepath.Join(i.c.CNIConfDir, "*"+originalSuffix))
	if err != nil {
		return err
	}
	var errs []error
	for _, from := range kept {
		to := strings.TrimSuffix(from, originalSuffix)
		if to == but {
			continue
		}
		what, err := i.putBack(to)
		if err != nil {
			errs = append(errs, fmt.Errorf("put back %s: %w", to, err))
			continue
		}
		i.log.Info("left a configuration that was extended", "did", what)
	}
	return errors.Join(errs...)
}

// putBack puts the original of an extended configuration back, unless its owner has written or removed it since; it says what it did.
func (i *Installer) putBack(path string) (what string, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "removed " + original(path) + ": the file that it was kept of is gone", ignoreNotExist(os.Remove(original(path)))
	}
	if err != nil {
		return "", err
	}
	l, err := parse(data)
	if err != nil || l.ours() == nil {
		return "removed " + original(path) + ": its owner has taken tapir out of the file", ignoreNotExist(os.Remove(original(path)))
	}
	base, err := i.base(path, data, nil)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	theirs, err := exchange(path, info.Mode().Perm(), data, base)
	if err == nil && theirs != nil { // written since it was read: theirs it is
		_, err = putFile(path, info.Mode().Perm(), theirs)
	}
	if err != nil {
		return "", err
	}
	return "put back " + path, ignoreNotExist(os.Remove(original(path)))
}

// foreign are the configurations that the runtime takes before path.
func foreign(path string) ([]string, error) {
	names, err := confs(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var before []string
	for _, name := range names {
		if name < filepath.Base(path) {
			before = append(before, filepath.Join(filepath.Dir(path), name))
		}
	}
	return before, nil
}
