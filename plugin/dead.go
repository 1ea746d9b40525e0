package plugin

import (
	"context"
	"errors"
	"fmt"

	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/ipam"
	"github.com/tapir-cni/tapir/state"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Dead says which attachments of a state folder are leftovers, and why: their sandbox is gone, or their ADD did not finish and runs no more. One
// whose host end is there lives: its sandbox's path cannot be seen from here, or the kernel is still taking it down. It is one look; who asks
// twice, with time between, is surer.
func Dead(dir string, all []state.Attachment) (map[state.Key]string, error) {
	tags, err := hostEnds()
	if err != nil {
		return nil, err
	}
	out := map[state.Key]string{}
	for _, a := range all {
		if _, there := tags[a.Alias()]; there && a.Status == state.Ready && !a.OnHost() {
			continue
		}
		if why := dead(dir, a, tags); why != "" {
			out[a.Key] = why
		}
	}
	return out, nil
}

// RemoveDead removes an attachment under its hold, as DEL does. Where it is another by now than rec, or somebody has its hold, it does nothing, and
// the error is [ErrHeld]. Addresses of another IPAM plugin stay leased: that plugin's own GC frees them.
func RemoveDead(ctx context.Context, dir, bpffs string, rec state.Attachment) error {
	return heldStill(ctx, dir, rec, func() error {
		p := &plugin{bpffs: bpffs, danDir: DefaultDANDir}
		return p.remove(ctx, state.New(state.Config{Dir: dir}), rec.Key, rec.Netns, sameAs(rec))
	})
}

// releaseStray releases a lease that has no attachment, under the hold that an ADD of one would have.
func releaseStray(ctx context.Context, dir string, key state.Key) (err error) {
	hold, err := state.AcquireHold(ctx, dir, key, lookWait)
	if errors.Is(err, state.ErrBusy) {
		return ErrHeld
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release()) }()
	return state.New(state.Config{Dir: dir}).UpdateExisting(ctx, func(tx *state.Tx) error {
		if _, ok, err := tx.Attachment(key); err != nil || ok {
			return err
		}
		return ipam.Release(tx, key)
	})
}

// devicesAnywhere tells which ifindexes a device of tapir's has in any network namespace that this one knows.
func devicesAnywhere(indexes []uint32) (map[uint32]bool, error) {
	out := map[uint32]bool{}
	if len(indexes) == 0 {
		return out, nil
	}
	ids, err := netnsIDs()
	if err != nil {
		return nil, err
	}
	conn, err := links.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // it was only read
	var refs []links.Ref
	for _, index := range indexes {
		for _, id := range append(ids, links.Here) {
			refs = append(refs, links.Ref{NSID: id, Index: int(index)})
		}
	}
	var first error
	err = conn.Read(refs, func(i int, l *links.Link, err error) {
		switch {
		case err == nil:
			if _, own := state.ParseAlias(l.Alias); own {
				out[uint32(refs[i].Index)] = true
			}
		case !rtnl.Gone(err) && !errors.Is(err, unix.EINVAL) && first == nil:
			first = err
		}
	})
	if err = errors.Join(err, first); err != nil {
		return nil, fmt.Errorf("look for devices in all network namespaces: %w", err)
	}
	return out, nil
}

// netnsIDs are the ids of the network namespaces that the calling thread's knows.
func netnsIDs() ([]int, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETNSID, unix.NLM_F_DUMP)
	req.AddRawData([]byte{unix.AF_UNSPEC, 0, 0, 0}) // struct rtgenmsg
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNSID)
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var out []int
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m[4:])
		if err != nil {
			return nil, fmt.Errorf("list network namespaces: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.NETNSA_NSID && len(a.Value) >= 4 {
				out = append(out, int(int32(nl.NativeEndian().Uint32(a.Value))))
			}
		}
	}
	return out, nil
}
