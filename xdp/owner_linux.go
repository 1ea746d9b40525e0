package xdp

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// foreignShortcut says whether a program is not tapir's: it has another name than tapir's have, or does not use the maps that
// every version's use. That holds for programs whose pins are gone, too.
func foreignShortcut(name string, ids []ebpf.MapID) (bool, error) {
	if !slices.Contains(fastpathPrograms, name) {
		return true, nil
	}
	var names []string
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return false, err
		}
		info, err := m.Info()
		_ = m.Close()
		if err != nil {
			return false, err
		}
		names = append(names, info.Name)
	}
	return !slices.Contains(names, shortcutMapAttachments) || !slices.Contains(names, shortcutMapPods), nil
}

// versionOf finds the pinned version that a program is of, by its id; empty where it is of none.
func (s *Shortcut) versionOf(name string, id ebpf.ProgramID) (string, error) {
	if own, err := s.program(name); err == nil {
		if ownID, err := programID(own); err == nil && ownID == id {
			return s.digest, nil
		}
	}
	paths, err := filepath.Glob(filepath.Join(s.base, fastpathPrefix+"*", name))
	if err != nil {
		return "", err
	}
	for _, path := range paths {
		prog, err := openPinned(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		pinned, err := programID(prog)
		_ = prog.Close()
		if err != nil {
			return "", err
		}
		if pinned == id {
			return strings.TrimPrefix(filepath.Base(filepath.Dir(path)), fastpathPrefix), nil
		}
	}
	return "", nil
}
