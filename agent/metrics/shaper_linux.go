package metrics

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// readShapers reads what the token buckets of bandwidth limits dropped, by ifindex of their device, which tapir keeps unique on the node. What the
// guest receives is limited at the host end: one dump. What it sends is limited at the pod end, whose qdiscs the kernel shows in that namespace
// alone (no IFLA_TARGET_NETNSID for them): it is entered, for attachments with such a limit and no others, by a thread that ends.
func readShapers(all []*measure.Attachment) (map[int]uint64, error) {
	drops := map[int]uint64{}
	var errs []error
	here := false
	for _, a := range all {
		b := a.Record.Bandwidth
		if b == nil {
			continue
		}
		here = here || b.IngressRate != 0
		if b.EgressRate != 0 && a.Netns == watch.NetnsThere && a.Record.Netns != "" {
			err := within(a.Record.Netns, func() error { return readBuckets(drops) })
			if err != nil && !errors.Is(err, unix.ENOENT) { // gone by now
				errs = append(errs, err)
			}
		}
	}
	if here {
		errs = append(errs, readBuckets(drops))
	}
	return drops, errors.Join(errs...)
}

// readBuckets reads those of the calling thread's namespace.
func readBuckets(drops map[int]uint64) error {
	c, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.QdiscList(nil)
	if err != nil {
		return fmt.Errorf("read qdiscs: %w", err)
	}
	for _, q := range list {
		attrs := q.Attrs()
		if tbf, ok := q.(*netlink.Tbf); ok && attrs.Parent == netlink.HANDLE_ROOT && tbf.Statistics != nil && tbf.Statistics.Queue != nil {
			drops[attrs.LinkIndex] = uint64(tbf.Statistics.Queue.Drops)
		}
	}
	return nil
}

// within runs f in the network namespace at path, on a thread that ends with it.
func within(path string, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		ns, err := os.Open(path)
		if err != nil {
			result <- err
			return
		}
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		_ = ns.Close() // it was only entered
		if err != nil {
			result <- fmt.Errorf("enter netns %s: %w", path, err)
			return
		}
		result <- f()
	}()
	return <-result
}

// shaped are the frames that an attachment's shapers dropped, by reason.
func shaped(a *measure.Attachment, drops map[int]uint64) map[string]uint64 {
	b := a.Record.Bandwidth
	if b == nil {
		return nil
	}
	out := map[string]uint64{}
	if n, ok := drops[a.Record.Host.Index]; ok && b.IngressRate != 0 {
		out[reasonShaperToGuest] = n
	}
	if n, ok := drops[a.Record.Pod.Index]; ok && b.EgressRate != 0 {
		out[reasonShaperFromGuest] = n
	}
	return out
}
