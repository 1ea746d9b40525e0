package xdp

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
)

// Usable reports why programs could not be used from dir, or nil. It leaves nothing behind: where they are not pinned
// yet it loads them without pinning them, and it mounts nothing.
func Usable(dir string) error {
	p, err := Open(dir)
	if err == nil {
		return p.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := existing(dir); err != nil {
		return fmt.Errorf("bpffs for %q: %w", dir, err)
	}
	spec, err := loadRedirect()
	if err != nil {
		return err
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return fmt.Errorf("load programs: %w", err)
	}
	coll.Close()
	return nil
}
