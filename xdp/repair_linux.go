package xdp

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
)

// programMaps are the maps that are pinned beside the redirect programs.
var programMaps = []string{redirectMapEndpoints, redirectMapCounters, redirectMapAnswerers}

// complete tells whether a version's directory has every pin.
func complete(version string) bool {
	for _, name := range []string{
		redirectMapEndpoints, redirectMapCounters, redirectMapAnswerers, redirectProgGuestIngress, redirectProgHostIngress, redirectProgPodIngress,
	} {
		if _, err := os.Lstat(filepath.Join(version, name)); err != nil {
			return false
		}
	}
	return true
}

// remains are what is left of a version whose directory lost some of its pins: the running attachments use just these maps
// and programs, so that a repair keeps them.
type remains struct {
	maps     map[string]*ebpf.Map
	programs map[string]*ebpf.Program
}

// openRemains opens what is pinned in a version's directory; a map without its pin is found through a program that uses it.
// A directory that does not exist has none.
func openRemains(version string) (_ *remains, err error) {
	r := &remains{maps: map[string]*ebpf.Map{}, programs: map[string]*ebpf.Program{}}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	for _, name := range programMaps {
		m, err := ebpf.LoadPinnedMap(filepath.Join(version, name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open map %s: %w", name, err)
		}
		r.maps[name] = m
	}
	for _, name := range programNames {
		prog, err := openPinned(filepath.Join(version, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open program %s: %w", name, err)
		}
		r.programs[name] = prog
		if err := r.addMapsOf(prog); err != nil {
			return nil, fmt.Errorf("maps of program %s: %w", name, err)
		}
	}
	return r, nil
}

func (r *remains) addMapsOf(prog *ebpf.Program) error {
	ids, err := mapsOf(prog)
	if err != nil {
		return err
	}
	return addNamed(r.maps, ids, programMaps)
}

func mapsOf(prog *ebpf.Program) ([]ebpf.MapID, error) {
	info, err := prog.Info()
	if err != nil {
		return nil, err
	}
	ids, _ := info.MapIDs()
	return ids, nil
}

// addNamed opens the maps that have one of the names, where out has none of it yet.
func addNamed(out map[string]*ebpf.Map, ids []ebpf.MapID, names []string) error {
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return err
		}
		info, err := m.Info()
		if err != nil {
			return errors.Join(err, m.Close())
		}
		if slices.Contains(names, info.Name) && out[info.Name] == nil {
			out[info.Name] = m
		} else if err := m.Close(); err != nil {
			return err
		}
	}
	return nil
}

// Close lets go of what is open; it stays pinned.
func (r *remains) Close() {
	for _, m := range r.maps {
		_ = m.Close()
	}
	for _, prog := range r.programs {
		_ = prog.Close()
	}
}

// replace puts a filled directory in the place of a version's, of which some pins may be left.
func replace(temp, version string) error {
	old := temp + "-old"
	if err := os.Rename(version, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(temp, version); err != nil {
		if back := os.Rename(old, version); back != nil && !errors.Is(back, fs.ErrNotExist) {
			err = errors.Join(err, back)
		}
		return err
	}
	return os.RemoveAll(old)
}
