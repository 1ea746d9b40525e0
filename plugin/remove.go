package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/ipam"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// remove takes an attachment away: by its record where there is one, by the tags of its devices where not. netnsPath may be
// empty or gone. What is not there is success; after an error the rest is still done.
//
// The caller keeps the attachment's hold.
func (p *plugin) remove(ctx context.Context, store *state.Store, key state.Key, netnsPath string, meant func(state.Attachment, bool) bool) error {
	rec := state.Attachment{Key: key}
	var ok bool
	err := store.View(ctx, func(tx *state.Tx) (err error) {
		var found state.Attachment
		if found, ok, err = tx.Attachment(key); ok {
			rec = found
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("delete %s: %w", key, err) // without the state nobody could tell later what is left
	}
	if meant != nil && !meant(rec, ok) {
		return nil
	}
	p.trace.Mark("state")

	// First, so that Kata is led to no TAP that goes, and while the TAP tells whose the entry is.
	danErr := p.removeDAN(rec, ok)
	// Nobody shall be led to a TAP that goes.
	withdrawErr := p.withdraw(rec, ok)
	// Both wait for RCU grace periods in the kernel: together they wait for the same ones.
	masquerade := make(chan error, 1)
	go func() { masquerade <- removeMasqueradeOf(rec) }()
	indexes, devicesErr := removeDevices(rec, netnsPath)
	p.trace.Mark("devices")
	err = errors.Join(danErr, withdrawErr, devicesErr, p.leave(rec, ok, indexes), p.removeEntries(rec.Programs, indexes), <-masquerade)
	p.trace.Mark("BPF and masquerade")
	if err != nil {
		// The record stays, so that the next DEL, GC or the agent finds what is left.
		return fmt.Errorf("delete %s: %w", key, err)
	}
	err = store.UpdateExisting(ctx, func(tx *state.Tx) error {
		return errors.Join(tx.NamePod(key, p.pod), ipam.Release(tx, key), tx.Delete(key))
	})
	p.trace.Mark("IPAM and state")
	if err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return nil
}

// removeDevices deletes the devices of the attachment in both netns and returns the ifindexes they had.
func removeDevices(rec state.Attachment, netnsPath string) ([]uint32, error) {
	indexes := recordedIndexes(rec)
	var errs []error
	paths := []string{rec.Netns, netnsPath}
	if rec.OnHost() {
		paths = nil // in the sandbox it has nothing
	}
	// The tags tell whose a device is, so that a path that another sandbox has now does no harm.
	for _, path := range slices.Compact(paths) {
		if path == "" {
			continue
		}
		found, err := removeInPod(rec, path)
		indexes = append(indexes, found...)
		errs = append(errs, err)
	}
	found, err := removeOnHost(rec)
	return append(indexes, found...), errors.Join(append(errs, err)...)
}

// removeDAN takes the attachment out of Kata's file. A record that is not there, or was rebuilt, cannot tell whether there is one.
func (p *plugin) removeDAN(rec state.Attachment, recorded bool) error {
	path := rec.DAN
	if path == "" {
		name, err := danName(rec.ContainerID)
		if recorded && !rec.Rebuilt || err != nil {
			return nil //nolint:nilerr // ADD makes no file of that name
		}
		path = filepath.Join(p.danDir, name)
	}
	return removeDANDevice(nil, &rec, path, rec.DAN != "" && rec.Status == state.Ready)
}

// onHost are the names that the attachment's devices in the host's netns may have, with the ifindex where it is known.
func onHost(rec state.Attachment) []state.Device {
	end := state.Device{Name: cmp.Or(rec.Host.Name, hostName(rec.Key)), Index: rec.Host.Index}
	switch {
	case rec.OnHost():
		return []state.Device{rec.TAP}
	case rec.Status == "":
		return []state.Device{end, {Name: hostTapName(rec.Key)}}
	}
	return []state.Device{end}
}

// removeOnHost deletes the host end or the TAP in the host's netns. A host end mostly went with its peer, unless that netns is out of
// reach or the pod end was never made.
func removeOnHost(rec state.Attachment) ([]uint32, error) {
	devices := onHost(rec)
	names, err := rtnl.OpenNames()
	if err != nil {
		return nil, err
	}
	defer names.Close()
	var wanted []string
	for _, d := range devices {
		wanted = append(wanted, d.Name)
	}
	unknown := rec.Status == "" // a TAP may have a name of its user's
	if there, err := names.Any(wanted...); err != nil || !there && !unknown {
		return nil, err
	}
	host, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	var indexes []uint32
	var errs []error
	for _, d := range devices {
		index, err := ownOnHost(host, d, rec)
		if index == 0 {
			errs = append(errs, err)
			continue
		}
		indexes = append(indexes, uint32(index))
		errs = append(errs, host.DeleteLink(index))
	}
	if unknown {
		found, err := removeTaggedOnHost(host, rec)
		indexes, errs = append(indexes, found...), append(errs, err)
	}
	return indexes, errors.Join(errs...)
}

// ownOnHost is the ifindex of a device if it is the attachment's, else 0.
func ownOnHost(host *rtnl.Conn, d state.Device, rec state.Attachment) (int, error) {
	link, err := host.LinkByName(d.Name)
	switch {
	case rtnl.Gone(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("look up %q: %w", d.Name, err)
	}
	a := link.Attrs()
	// Untagged and without a record it is what an ADD left that could not take it back: the name is a hash of the key.
	if a.Alias == rec.Alias() || a.Alias == "" && (d.Index == 0 || a.Index == d.Index) {
		return a.Index, nil
	}
	return 0, nil
}

// removeTaggedOnHost deletes TAPs in the host's netns that carry the attachment's tag, whatever their names.
func removeTaggedOnHost(host *rtnl.Conn, rec state.Attachment) ([]uint32, error) {
	links, err := host.Links()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var indexes []uint32
	var errs []error
	for _, l := range links {
		if key, own := state.OwnDevice(l.Attrs()); own && key == rec.Key {
			indexes = append(indexes, uint32(l.Attrs().Index))
			errs = append(errs, host.DeleteLink(l.Attrs().Index))
		}
	}
	return indexes, errors.Join(errs...)
}

// removeInPod deletes what the attachment has in the sandbox. A sandbox that is gone took it along.
func removeInPod(rec state.Attachment, path string) ([]uint32, error) {
	netns, err := ns.GetNS(path)
	if err != nil {
		var gone ns.NSPathNotExistErr
		var notNS ns.NSPathNotNSErr
		if errors.As(err, &gone) || errors.As(err, &notNS) {
			return nil, nil
		}
		return nil, fmt.Errorf("open netns %q: %w", path, err)
	}
	defer netns.Close()
	if own, err := isOwnNetns(netns); err != nil || own {
		return nil, err
	}
	var conn *rtnl.Conn
	var names rtnl.Names
	err = netns.Do(func(ns.NetNS) (err error) {
		if names, err = rtnl.OpenNames(); err != nil {
			return err
		}
		if conn, err = rtnl.Open(); err != nil {
			names.Close()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("enter netns %q: %w", path, err)
	}
	defer names.Close()
	defer conn.Close()
	indexes, err := removeTagged(conn, names, rec)
	if rec.Status != "" && !rec.Chained {
		return indexes, err // by its record it has nothing on an interface of others
	}
	err = errors.Join(err, netns.Do(func(ns.NetNS) error { return detachForeign(conn, rec, indexes) }))
	return indexes, err
}

// detachForeign takes the program that led to the attachment's TAP off the interface of the plugin before. It runs on a
// thread in the sandbox. Whose program it is its name tells, so that another attachment's stays.
func detachForeign(conn *rtnl.Conn, rec state.Attachment, removed []uint32) error {
	link, err := conn.LinkByName(rec.IfName)
	if err != nil {
		if rtnl.Gone(err) {
			return nil
		}
		return fmt.Errorf("look up %q: %w", rec.IfName, err)
	}
	index := link.Attrs().Index
	var errs []error
	for _, tap := range append(removed, uint32(rec.TAP.Index)) {
		if tap != 0 {
			errs = append(errs, xdp.DetachForeign(index, tap))
		}
	}
	return errors.Join(append(errs, detachDead(conn, index))...)
}

// detachDead takes a program off the interface whose TAP is gone from the sandbox: whosever it was, it swallows every frame.
func detachDead(conn *rtnl.Conn, index int) error {
	found, err := xdp.AttachedForeign(index)
	if err != nil || found.Method == "" {
		return err
	}
	if _, err := conn.LinkByIndex(int(found.TAP)); !rtnl.Gone(err) {
		return err
	}
	return xdp.DetachForeign(index, found.TAP)
}

// removeTagged deletes the attachment's devices in a netns: its group in one request, which nobody else on the node has,
// then what carries its tag without being in the group, or has its ifindex where a killed ADD did not come to the tag.
func removeTagged(conn *rtnl.Conn, names rtnl.Names, rec state.Attachment) ([]uint32, error) {
	if rec.Group != 0 {
		if err := conn.DeleteGroup(rec.Group); err != nil {
			return nil, err
		}
		own := []string{rec.TAP.Name}
		if !rec.Chained {
			own = append(own, rec.Pod.Name)
		}
		if there, err := names.Any(own...); err != nil || !there && rec.Status == state.Ready {
			return nil, err
		}
	}
	links, err := conn.Links()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var indexes []uint32
	var errs []error
	for _, l := range links {
		a := l.Attrs()
		untagged := a.Alias == "" && a.Index != 0 && (a.Index == rec.TAP.Index || a.Index == rec.Pod.Index && !rec.Chained)
		if a.Alias != rec.Alias() && !untagged {
			continue
		}
		indexes = append(indexes, uint32(a.Index))
		errs = append(errs, conn.DeleteLink(a.Index))
	}
	return indexes, errors.Join(errs...)
}

func recordedIndexes(rec state.Attachment) []uint32 {
	var out []uint32
	for _, d := range []state.Device{rec.TAP, rec.Pod, rec.Host} {
		if d.Index != 0 && !(rec.Chained && d == rec.Pod) {
			out = append(out, uint32(d.Index))
		}
	}
	return out
}

// removeEntries deletes the entries of the pinned maps that the attachment's programs read. No pins is success.
func (p *plugin) removeEntries(digest string, indexes []uint32) error {
	slices.Sort(indexes)
	if indexes = slices.Compact(indexes); len(indexes) == 0 {
		return nil
	}
	progs, err := xdp.OpenVersion(p.bpffs, cmp.Or(digest, xdp.Digest()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(progs.Delete(indexes...), progs.Close())
}
