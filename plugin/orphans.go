package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// hostEnds are the ifindexes of the host ends on this node and of the TAPs in its netns, by their tag. A host end is there for as long
// as its sandbox is, whatever state directory has the record.
func hostEnds() (map[string]uint32, error) {
	host, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	links, err := host.Links()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	out := map[string]uint32{}
	for _, l := range links {
		if key, own := state.OwnDevice(l.Attrs()); own {
			out[key.Alias()] = uint32(l.Attrs().Index)
		}
	}
	return out, nil
}

// entries are the ifindexes in the pinned maps, by the digest of the programs that read them.
func (c Cleaner) entries() (map[string][]uint32, error) {
	digests, err := xdp.Versions(c.BPFFS)
	if err != nil {
		return nil, err
	}
	out := map[string][]uint32{}
	for _, digest := range digests {
		err := c.withPrograms(digest, func(progs *xdp.Programs) error {
			indexes, err := progs.Indexes()
			out[digest] = indexes
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// orphans removes the entries that no attachment has: a killed ADD can leave them.
func (c Cleaner) orphans(r *Report, entries map[string][]uint32, known map[uint32]bool) error {
	var errs []error
	for _, digest := range slices.Sorted(maps.Keys(entries)) {
		dead := slices.DeleteFunc(entries[digest], func(index uint32) bool { return known[index] })
		if len(dead) == 0 {
			continue
		}
		if !c.DryRun {
			err := c.withPrograms(digest, func(progs *xdp.Programs) error { return progs.Delete(dead...) })
			if err != nil {
				errs = append(errs, err)
				continue
			}
		}
		for _, index := range dead {
			r.Removed = append(r.Removed, Leftover{"entry", fmt.Sprintf("ifindex %d", index), "no attachment has it"})
		}
	}
	return errors.Join(errs...)
}

// withPrograms calls fn with a version of the pinned programs, unless it is gone.
func (c Cleaner) withPrograms(digest string, fn func(*xdp.Programs) error) error {
	progs, err := xdp.OpenVersion(c.BPFFS, digest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(fn(progs), progs.Close())
}
