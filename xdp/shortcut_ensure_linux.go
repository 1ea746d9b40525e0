package xdp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// EnsureShortcut opens the shortcut of this binary's version in dir, and loads and pins what of it is not there. As with
// [Ensure], several processes may call it at once and one may die at any moment. Maps of the same layout are those that the
// programs of other versions use.
//
// A kernel that cannot do it gives an [UnsupportedError], a lock that another process keeps [ErrLocked].
func EnsureShortcut(dir string) (*Shortcut, error) {
	s, err := OpenShortcut(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	if err := mountFor(dir); err != nil {
		return nil, fmt.Errorf("pin shortcut in %q: %w", dir, err)
	}
	lock, err := lockDir(dir, true)
	if err != nil {
		return nil, fmt.Errorf("pin shortcut in %q: %w", dir, err)
	}
	defer lock.Close()

	s, err = OpenShortcut(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	if err := loadFastpath(newShortcut(dir, ShortcutDigest(), ShortcutLayout())); err != nil {
		return nil, fmt.Errorf("pin shortcut in %q: %w", dir, err)
	}
	return OpenShortcut(dir)
}

// loadFastpath creates what is not there and pins all; the caller holds the lock of the base directory.
func loadFastpath(s *Shortcut) error {
	if err := removeTemp(s.base); err != nil {
		return err
	}
	spec, err := loadShortcut()
	if err != nil {
		return err
	}
	left, err := openSharedMaps(s)
	defer closeMaps(left)
	if err != nil {
		return err
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: left})
	if err != nil {
		return explainShortcut(err)
	}
	defer coll.Close()
	if left[shortcutMapSettings] == nil {
		raw := shortcutShortcutSettings{Epoch: 1}
		DefaultSettings().into(&raw)
		if err := coll.Maps[shortcutMapSettings].Put(uint32(0), raw); err != nil {
			return fmt.Errorf("write settings: %w", err)
		}
	}
	temp := filepath.Join(s.base, fmt.Sprintf("%s%d", tempPrefix, os.Getpid()))
	maps := map[string]pinner{}
	for _, name := range sharedMaps {
		maps[name] = coll.Maps[name]
	}
	// Maps first: a version's programs are never found without them.
	if err := pinAll(temp, s.mapsDir(), maps); err != nil {
		return err
	}
	programs := map[string]pinner{}
	for _, name := range fastpathPrograms {
		programs[name] = coll.Programs[name]
	}
	return pinAll(temp, s.programsDir(), programs)
}

// pinner is a map or a program.
type pinner interface{ Pin(path string) error }

// pinAll pins in a temporary directory, which then takes the place of what is left at dir.
func pinAll(temp, dir string, objects map[string]pinner) (err error) {
	if err := os.Mkdir(temp, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temp))
		}
	}()
	for name, o := range objects {
		if err := o.Pin(filepath.Join(temp, name)); err != nil {
			return fmt.Errorf("pin %s: %w", name, err)
		}
	}
	return replace(temp, dir)
}

// openSharedMaps opens what there is of the layout's maps: by their pins, and those that lost theirs through a pinned program
// that uses a map of the layout.
func openSharedMaps(s *Shortcut) (map[string]*ebpf.Map, error) {
	out := map[string]*ebpf.Map{}
	known := map[ebpf.MapID]bool{}
	for _, name := range sharedMaps {
		m, err := ebpf.LoadPinnedMap(filepath.Join(s.mapsDir(), name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return out, fmt.Errorf("open map %s: %w", name, err)
		}
		out[name] = m
		if info, err := m.Info(); err == nil {
			id, _ := info.ID()
			known[id] = true
		}
	}
	if len(out) == len(sharedMaps) {
		return out, nil
	}
	return out, addLostMaps(s, out, known)
}

// addLostMaps adds maps without a pin from programs that use a known one, or that are of this version.
func addLostMaps(s *Shortcut, out map[string]*ebpf.Map, known map[ebpf.MapID]bool) error {
	paths, err := filepath.Glob(filepath.Join(s.base, fastpathPrefix+"*", "*"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		prog, err := openPinned(path)
		if err != nil {
			continue // not needed: at worst a map is made anew
		}
		ids, err := mapsOf(prog)
		_ = prog.Close()
		if err != nil {
			return err
		}
		if filepath.Dir(path) != s.programsDir() && !slices.ContainsFunc(ids, func(id ebpf.MapID) bool { return known[id] }) {
			continue
		}
		if err := addNamed(out, ids, sharedMaps); err != nil {
			return err
		}
	}
	return nil
}

func closeMaps(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		_ = m.Close()
	}
}

// shortcutNeeds is what [UnsupportedError] names.
const shortcutNeeds = "kernel 6.2 with CONFIG_DEBUG_INFO_BTF and nf_conntrack"

// explainShortcut asks whether the kernel has what the shortcut calls, now that it has refused the programs.
func explainShortcut(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("load shortcut: %w; it needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON", err)
	}
	if have := HaveShortcut(); have != nil {
		return have
	}
	return fmt.Errorf("load shortcut: %w", err)
}

// shortcutKfuncs are the kernel functions that the programs call, with the module that may hold each.
var shortcutKfuncs = map[string]string{
	"bpf_cast_to_kern_ctx": "",
	"bpf_rdonly_cast":      "",
	"bpf_xdp_ct_lookup":    "nf_conntrack",
	"bpf_skb_ct_lookup":    "nf_conntrack",
	"bpf_ct_release":       "nf_conntrack",
}

// HaveShortcut asks the kernel's BTF for the functions that the shortcut calls: tens of milliseconds, so it is for after
// a refusal, and for reports. Nil says that they are there, an [UnsupportedError] names what is not.
func HaveShortcut() error {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return &UnsupportedError{Feature: "the shortcut", Needs: shortcutNeeds, Err: err}
	}
	for name, module := range shortcutKfuncs {
		if hasFunc(kernel, name) {
			continue
		}
		err := fmt.Errorf("no kfunc %s", name)
		if module != "" {
			m, loadErr := btf.LoadKernelModuleSpec(module)
			if loadErr == nil && hasFunc(m, name) {
				continue
			}
		}
		return &UnsupportedError{Feature: "the shortcut", Needs: shortcutNeeds, Err: err}
	}
	return nil
}

func hasFunc(spec *btf.Spec, name string) bool {
	var fn *btf.Func
	return spec.TypeByName(name, &fn) == nil
}
