package xdp

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/cilium/ebpf"
)

// DropStale takes the entries of these addresses out of map pods, whoever's they are and whatever the layout: for an ADD, which
// has the lease of its addresses, so that what leads there is left of a dead attachment. Where nothing is pinned it costs one
// look into the directory.
func DropStale(dir string, addresses []netip.Prefix) error {
	layouts, err := Layouts(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, layout := range layouts {
		errs = append(errs, dropStale(dir, layout, addresses))
	}
	return errors.Join(errs...)
}

func dropStale(dir, layout string, addresses []netip.Prefix) error {
	s, err := OpenLayout(dir, layout)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer s.Close()
	pods, err := s.anyMap(shortcutMapPods)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range addresses {
		if err := pods.Delete(mapped(a.Addr())); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("drop stale entry of %s: %w", a.Addr(), err))
		}
	}
	return errors.Join(errs...)
}
