package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// StrayKind is a kind of thing that should belong to an attachment.
type StrayKind string

// What can be left without one.
const (
	StrayEntry    StrayKind = "entry"    // of the pinned maps
	StrayShortcut StrayKind = "shortcut" // entries of a TAP in the shortcut's maps
	StrayDevice   StrayKind = "device"   // in the host's netns, with tapir's tag
	StrayLease    StrayKind = "lease"    // of tapir-ipam, which another plugin may use as well
	StrayDAN      StrayKind = "dan"      // a device in Kata's file
)

// Stray is one thing that no attachment has.
type Stray struct {
	Kind StrayKind
	Name string
	Why  string

	remove func(context.Context) error
}

// Remove removes it. One that is gone is success. A hold that somebody has is [ErrHeld].
func (s Stray) Remove(ctx context.Context) error { return s.remove(ctx) }

// Strays finds what no attachment of the state folders has. It is one look, as with [Dead]: a thing may belong to an ADD or a DEL that runs.
// Entries of devices that are there in any network namespace are none: another state folder may know them.
func Strays(ctx context.Context, stateDirs []string, bpffs string) ([]Stray, error) {
	c := Cleaner{StateDirs: distinct(stateDirs), BPFFS: bpffs}
	// Entries before attachments, as the Cleaner does.
	entries, err := c.entries()
	taps, tapsErr := c.shortcutEntries()
	tags, tagsErr := hostEnds()
	if err = errors.Join(err, tapsErr, tagsErr); err != nil {
		return nil, err
	}
	known := map[uint32]bool{}
	block := func(index uint32) {
		for offset := range uint32(indexBlock) {
			known[index/indexBlock*indexBlock+offset] = true
		}
	}
	keys := map[string]bool{} // by tag
	var out []Stray
	for _, dir := range c.StateDirs {
		leases, leaseErr := leasesWithout(ctx, dir, func(a state.Attachment) {
			keys[a.Alias()] = true
			for _, index := range recordedIndexes(a) {
				block(index)
			}
		})
		if leaseErr != nil {
			return nil, leaseErr
		}
		out = append(out, leases...)
	}
	for _, index := range tags {
		block(index)
	}
	out = append(out, c.strayDevices(tags, keys)...)
	more, err := c.strayEntries(entries, taps, known)
	if err != nil {
		return nil, err
	}
	dans, err := strayDAN(DefaultDANDir)
	return slices.Concat(out, more, dans), err
}

// leasesWithout calls each with every attachment, and gives the leases that have none.
func leasesWithout(ctx context.Context, dir string, each func(state.Attachment)) (out []Stray, err error) {
	err = state.New(state.Config{Dir: dir}).View(ctx, func(tx *state.Tx) error {
		out = nil
		has := map[state.Key]bool{}
		if err := tx.ForEach("", func(a state.Attachment) error { has[a.Key] = true; each(a); return nil }); err != nil {
			return err
		}
		return tx.ForEachLease("", func(l state.Lease) error {
			if !has[l.Key] && !state.Held(dir, l.Key) {
				out = append(out, Stray{StrayLease, l.Key.String(), "it has addresses of tapir-ipam and no attachment", func(ctx context.Context) error {
					return releaseStray(ctx, dir, l.Key)
				}})
			}
			return nil
		})
	})
	return out, err
}

// strayDevices are devices in the host's netns whose attachment no state folder knows.
func (c Cleaner) strayDevices(tags map[string]uint32, keys map[string]bool) (out []Stray) {
	for _, tag := range slices.Sorted(maps.Keys(tags)) {
		key, _ := state.ParseAlias(tag)
		held := slices.ContainsFunc(c.StateDirs, func(dir string) bool { return state.Held(dir, key) })
		if keys[tag] || held || len(c.StateDirs) == 0 {
			continue
		}
		out = append(out, Stray{StrayDevice, fmt.Sprintf("ifindex %d of %s", tags[tag], key), "no state folder has its attachment", func(ctx context.Context) error {
			p := &plugin{bpffs: c.BPFFS, danDir: DefaultDANDir}
			return p.removeHeld(ctx, c.StateDirs[0], key, "", func(_ state.Attachment, ok bool) bool { return !ok })
		}})
	}
	return out
}

// strayEntries are entries of ifindexes that neither an attachment nor a device has.
func (c Cleaner) strayEntries(entries map[string][]uint32, taps []uint32, known map[uint32]bool) (out []Stray, err error) {
	stray := func(list []uint32) []uint32 {
		return slices.DeleteFunc(slices.Clone(list), func(index uint32) bool { return known[index] })
	}
	var all []uint32
	for _, list := range entries {
		all = append(all, stray(list)...)
	}
	there, err := devicesAnywhere(append(all, stray(taps)...))
	if err != nil {
		return nil, err
	}
	// A pod end's entry goes with its TAP, and a TAP's with the pod end's.
	for index := range there {
		for offset := range uint32(indexBlock) {
			known[index/indexBlock*indexBlock+offset] = true
		}
	}
	for _, digest := range slices.Sorted(maps.Keys(entries)) {
		for _, index := range stray(entries[digest]) {
			out = append(out, Stray{StrayEntry, fmt.Sprintf("ifindex %d of programs %s", index, digest), "no attachment and no device has it", func(context.Context) error {
				return c.withPrograms(digest, func(progs *xdp.Programs) error { return progs.Delete(index) })
			}})
		}
	}
	for _, tap := range stray(taps) {
		out = append(out, Stray{StrayShortcut, fmt.Sprintf("ifindex %d", tap), "no attachment and no device has it", func(context.Context) error {
			return c.withShortcut(func(s *xdp.Shortcut) error {
				stale, err := staleTargets(s, map[uint32]bool{})
				if err != nil {
					return err
				}
				errs := []error{}
				for addr, to := range stale {
					if to == tap {
						errs = append(errs, s.Withdraw(tap, addr))
					}
				}
				return errors.Join(append(errs, s.Leave(tap, tap-offsetTAP+offsetHost))...)
			})
		}})
	}
	return out, nil
}

// strayDAN are devices in Kata's files whose TAP, of a name that tapir gives, is gone.
func strayDAN(dir string) (out []Stray, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(paths) == 0 {
		return nil, err
	}
	host, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	for _, path := range paths {
		file, err := readDAN(path)
		if err != nil {
			continue // another's, or on its way
		}
		for _, raw := range file.Devices {
			id := identify(raw)
			if id.Device.Type != hostTap || !strings.HasPrefix(id.Device.TapName, hostEndPrefix+"t") {
				continue
			}
			if _, err := host.LinkByName(id.Device.TapName); !rtnl.Gone(err) {
				continue
			}
			rec := state.Attachment{Key: state.Key{ContainerID: strings.TrimSuffix(filepath.Base(path), ".json"), IfName: id.Name}}
			rec.TAP.Name = id.Device.TapName
			out = append(out, Stray{StrayDAN, path + " " + id.Name, fmt.Sprintf("its TAP %q is gone", id.Device.TapName), func(context.Context) error {
				return removeDANDevice(nil, &rec, path, false)
			}})
		}
	}
	return out, nil
}
