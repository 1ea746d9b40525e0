package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tapir-cni/tapir/state"
)

// Collector removes attachments of sandboxes that the runtime does not have any more, for runtimes that never call GC.
// Attachments whose addresses come from another IPAM plugin lose their devices; their lease is that plugin's, and its own
// GC or the runtime's DEL frees it.
type Collector struct {
	StateDirs []string
	BPFFS     string        // the folder of the pinned programs
	Grace     time.Duration // younger attachments stay: the list of sandboxes may be older than they
	DryRun    bool
}

// Run asks for the live sandboxes after it has read the attachments, so that one that is added meanwhile is in neither, and
// removes those that live does not have. live gives container ids.
func (c Collector) Run(ctx context.Context, live func(context.Context) (map[string]bool, error)) (Report, error) {
	r := Report{DryRun: c.DryRun, Removed: []Leftover{}}
	type candidate struct {
		dir string
		state.Attachment
	}
	var all []candidate
	for _, dir := range c.StateDirs {
		here, err := unless(ctx, dir, "", func(a state.Attachment) bool {
			young := time.Since(a.Created) < c.Grace
			if young {
				r.Kept = append(r.Kept, Leftover{"attachment", a.Key.String(), fmt.Sprintf("younger than %v", c.Grace)})
			}
			return young
		})
		if err != nil {
			return r, err
		}
		for _, a := range here {
			all = append(all, candidate{dir, a})
		}
	}
	alive, err := live(ctx)
	if err != nil {
		return r, err
	}
	p := &plugin{bpffs: c.BPFFS, danDir: DefaultDANDir}
	var errs []error
	for _, a := range all {
		if alive[a.ContainerID] {
			r.Live++
			continue
		}
		if !c.DryRun {
			if err := p.removeHeld(ctx, a.dir, a.Key, a.Netns, sameAs(a.Attachment)); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		r.Removed = append(r.Removed, Leftover{"attachment", a.Key.String(), fmt.Sprintf("the runtime has no sandbox %q", a.ContainerID)})
	}
	return r, errors.Join(errs...)
}
