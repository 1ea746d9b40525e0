package xdp

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"
)

const (
	// fastpathPrefix starts the name of the directory of a version's shortcut programs; the digest of their object follows.
	fastpathPrefix = "fastpath-"

	// layoutPrefix starts the name of the directory of the maps that all versions with one layout share.
	layoutPrefix = "maps-"
)

// Mode is how a program is attached to a device's XDP hook.
type Mode string

// The modes. [ModeAuto] is native where the driver has it, else generic.
const (
	ModeOff     Mode = "off"
	ModeAuto    Mode = "auto"
	ModeNative  Mode = "native"
	ModeGeneric Mode = "generic"
)

// ShortcutDigest identifies the version of the shortcut's programs that this binary holds.
var ShortcutDigest = sync.OnceValue(func() string {
	sum := sha256.Sum256(_ShortcutBytes)
	return hex.EncodeToString(sum[:8])
})

// ShortcutLayout identifies the layout of the shortcut's maps: versions of tapir with the same one share them.
func ShortcutLayout() string { return shortcutLayout }

// shortcutLayout is what layoutOf, of the tests, makes of the object. Reading that takes 2.4 ms: too long for an ADD.
const shortcutLayout = "f7d8d5ee128a5206"

// sharedMaps and shortcutPrograms are what is pinned.
var (
	sharedMaps = []string{
		shortcutMapAttachments, shortcutMapDevices, shortcutMapEvents, shortcutMapFlows4, shortcutMapFlows6, shortcutMapPaths, shortcutMapPods,
		shortcutMapRoutes, shortcutMapSettings, shortcutMapUplinks,
	}
	fastpathPrograms = []string{
		shortcutProgGuestXdp, shortcutProgGuestXdpSkb, shortcutProgHostShortcut, shortcutProgUplinkXdp,
	}
)

// Shortcut is the pinned programs of one version and the maps that they share with other versions. Pins are opened when
// they are first needed. Methods may be called from several goroutines at once.
type Shortcut struct {
	base   string // the directory of all versions
	digest string
	layout string

	mu       sync.Mutex
	closed   bool
	maps     map[string]*ebpf.Map
	programs map[string]*ebpf.Program
}

func newShortcut(dir, digest, layout string) *Shortcut {
	return &Shortcut{base: dir, digest: digest, layout: layout, maps: map[string]*ebpf.Map{}, programs: map[string]*ebpf.Program{}}
}

// OpenShortcut opens the shortcut of this binary's version that is pinned in dir. Where it is not, or where some of its
// pins are gone, the error is [fs.ErrNotExist].
func OpenShortcut(dir string) (*Shortcut, error) {
	s := newShortcut(dir, ShortcutDigest(), ShortcutLayout())
	for _, path := range s.pins() {
		if _, err := os.Lstat(path); err != nil {
			return nil, fmt.Errorf("open shortcut: %w", err)
		}
	}
	return s, nil
}

// OpenLayout opens the maps of any version: those that an attachment of another binary is in. It is good for Withdraw and
// Leave; other methods give an error where that layout is not this binary's. Where they are not pinned in dir, the error is
// [fs.ErrNotExist].
func OpenLayout(dir, layout string) (*Shortcut, error) {
	if layout == "" || layout != filepath.Base(layout) {
		return nil, fmt.Errorf("open maps in %q: %q is no layout", dir, layout)
	}
	s := newShortcut(dir, ShortcutDigest(), layout)
	if _, err := os.Lstat(s.mapsDir()); err != nil {
		return nil, fmt.Errorf("open maps of the shortcut: %w", err)
	}
	return s, nil
}

// Layouts lists the layouts of the maps that are pinned in dir, sorted; none where dir does not exist.
func Layouts(dir string) ([]string, error) {
	out, err := pinnedNames(dir, layoutPrefix)
	if err != nil {
		return nil, fmt.Errorf("list layouts of the shortcut: %w", err)
	}
	return out, nil
}

func (s *Shortcut) mapsDir() string     { return filepath.Join(s.base, layoutPrefix+s.layout) }
func (s *Shortcut) programsDir() string { return filepath.Join(s.base, fastpathPrefix+s.digest) }

// pins are the paths of all that is pinned.
func (s *Shortcut) pins() []string {
	var out []string
	for _, name := range sharedMaps {
		out = append(out, filepath.Join(s.mapsDir(), name))
	}
	for _, name := range fastpathPrograms {
		out = append(out, filepath.Join(s.programsDir(), name))
	}
	return out
}

// Digest identifies the version of the programs.
func (s *Shortcut) Digest() string { return s.digest }

// Layout identifies the maps, for [OpenLayout].
func (s *Shortcut) Layout() string { return s.layout }

// Close lets go of the programs and maps; they stay pinned and attached.
func (s *Shortcut) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, m := range s.maps {
		errs = append(errs, m.Close())
	}
	for _, p := range s.programs {
		errs = append(errs, p.Close())
	}
	clear(s.maps)
	clear(s.programs)
	s.closed = true
	return errors.Join(errs...)
}

// anyMap opens a map's pin, whatever its layout.
func (s *Shortcut) anyMap(name string) (*ebpf.Map, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if m := s.maps[name]; m != nil {
		return m, nil
	}
	m, err := ebpf.LoadPinnedMap(filepath.Join(s.mapsDir(), name), nil)
	if err != nil {
		return nil, fmt.Errorf("open map %s: %w", name, err)
	}
	s.maps[name] = m
	return m, nil
}

// ownMap opens the pin of a map whose values are read or written whole.
func (s *Shortcut) ownMap(name string) (*ebpf.Map, error) {
	if s.layout != ShortcutLayout() {
		return nil, fmt.Errorf("open map %s: its layout is %s, want %s", name, s.layout, ShortcutLayout())
	}
	return s.anyMap(name)
}

func (s *Shortcut) program(name string) (*ebpf.Program, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if p := s.programs[name]; p != nil {
		return p, nil
	}
	p, err := openPinned(filepath.Join(s.programsDir(), name))
	if err != nil {
		return nil, fmt.Errorf("open program %s: %w", name, err)
	}
	s.programs[name] = p
	return p, nil
}

// lock serialises what reads and then writes maps, with other processes too.
func (s *Shortcut) lock() (*os.File, error) {
	if _, err := os.Lstat(s.mapsDir()); err != nil {
		return nil, err // unpinned: lockDir would wait for it
	}
	return lockDir(s.mapsDir(), false)
}

// notPinned makes the error of a pin that is gone none: for what removes.
func notPinned(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
