package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
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

	// Both wait for RCU grace periods in the kernel: together they wait for the same ones.
	masquerade := make(chan error, 1)
	go func() { masquerade <- removeMasqueradeOf(rec) }()
	indexes, devicesErr := removeDevices(rec, netnsPath)
	p.trace.Mark("devices")
	err = errors.Join(devicesErr, p.removeEntries(rec.Programs, indexes), <-masquerade)
	p.trace.Mark("BPF and masquerade")
	if err != nil {
		// The record stays, so that the next DEL, GC or the agent finds what is left.
		return fmt.Errorf("delete %s: %w", key, err)
	}
	err = store.UpdateExisting(ctx, func(tx *state.Tx) error {
		return errors.Join(ipam.Release(tx, key), tx.Delete(key))
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
	// The tags tell whose a device is, so that a path that another sandbox has now does no harm.
	for _, path := range slices.Compact([]string{rec.Netns, netnsPath}) {
		if path == "" {
			continue
		}
		found, err := removeInPod(rec, path)
		indexes = append(indexes, found...)
		errs = append(errs, err)
	}
	found, err := removeHostEnd(rec)
	return append(indexes, found...), errors.Join(append(errs, err)...)
}

// removeHostEnd deletes the host end. Mostly it went with its peer, unless that netns is out of reach or the pod end was
// never made.
func removeHostEnd(rec state.Attachment) ([]uint32, error) {
	name := cmp.Or(rec.Host.Name, hostName(rec.Key))
	names, err := rtnl.OpenNames()
	if err != nil {
		return nil, err
	}
	defer names.Close()
	if there, err := names.Any(name); err != nil || !there {
		return nil, err
	}
	host, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	link, err := host.LinkByName(name)
	switch {
	case rtnl.Gone(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look up %q: %w", name, err)
	case link.Attrs().Alias == rec.Alias() || link.Attrs().Alias == "" && (rec.Host.Index == 0 || link.Attrs().Index == rec.Host.Index):
		// Untagged and without a record it is what an ADD left that could not take it back: the name is a hash of the key.
		return []uint32{uint32(link.Attrs().Index)}, host.DeleteLink(link.Attrs().Index)
	}
	return nil, nil
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
