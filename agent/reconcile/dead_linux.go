package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tapir-cni/tapir/agent/cri"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/plugin"
	"github.com/tapir-cni/tapir/state"
)

// corpse is an attachment that looks dead.
type corpse struct {
	*watch.Attachment
	kind Kind
	why  string
}

// name tells it from an attachment of the same key that is added after it.
func (c corpse) name() string {
	return fmt.Sprintf("%s %s %s %d", c.kind, c.Dir, c.Key, c.Record.Created.UnixNano())
}

// lookForDead removes attachments that have looked dead for the grace time.
func (r *Reconciler) lookForDead(ctx context.Context, o Options) {
	all := r.c.Watch.Snapshot()
	found, err := findDead(all)
	if err != nil {
		r.log.Error("could not look for dead attachments", "error", err)
	}
	byName := map[string]corpse{}
	for _, c := range found {
		if o.Policies.Of(c.kind) != Off {
			byName[c.name()] = c
		}
	}
	now := time.Now()
	due := r.dead.see(now, o.Grace, slices.Sorted(maps.Keys(byName)))
	if o.Policies.Of(SandboxUnknown) != Off {
		due = append(due, r.lookForUnknown(ctx, o, all, byName)...)
	}
	open := map[string]bool{}
	for name, c := range byName {
		if ctx.Err() != nil {
			return
		}
		if !r.dead.again(name) && !r.unknown.again(name) {
			continue // an ADD or a DEL may have been about to end
		}
		open[c.Key.String()] = true
		outcome, failure := Waiting, error(nil)
		if slices.Contains(due, name) {
			outcome, failure = r.bury(ctx, o, c)
		}
		r.tell(c, outcome, failure)
	}
	r.results.keep(deadKinds, open)
	for _, l := range []ledger{r.dead, r.unknown} {
		if at := l.next(o.Grace); !at.IsZero() {
			r.set(lookDead, laterThan(now, at))
		}
	}
}

// laterThan keeps looks apart.
func laterThan(now, at time.Time) time.Time {
	if soonest := now.Add(settle); at.Before(soonest) {
		return soonest
	}
	return at
}

// findDead are the attachments that are dead by what the node says.
func findDead(all []*watch.Attachment) (out []corpse, err error) {
	byDir := map[string][]state.Attachment{}
	for _, a := range all {
		byDir[a.Dir] = append(byDir[a.Dir], a.Record)
	}
	for dir, recs := range byDir {
		dead, deadErr := plugin.Dead(dir, recs)
		err = errors.Join(err, deadErr)
		for _, a := range all {
			why, is := dead[a.Key]
			if !is || a.Dir != dir {
				continue
			}
			kind := SandboxGone
			if a.Record.Status == state.Pending {
				kind = Unfinished
			}
			out = append(out, corpse{a, kind, why})
		}
	}
	return out, err
}

// lookForUnknown asks the runtime, after the attachments were read, so that a sandbox that is made meanwhile is in neither. What it finds it
// adds to found. A runtime that does not answer, or that says it has nothing at all, is no proof of anything, and what was seen before
// begins anew.
func (r *Reconciler) lookForUnknown(ctx context.Context, o Options, all []*watch.Attachment, found map[string]corpse) (due []string) {
	if o.CRIEndpoint == "" {
		clear(r.unknown)
		return nil
	}
	var names []string
	list, err := sandboxesOf(ctx, o.CRIEndpoint)
	if err != nil {
		if ctx.Err() == nil {
			r.silent(err)
		}
		clear(r.unknown)
		return nil
	}
	r.silent(nil)
	for _, c := range unknownTo(list, all) {
		found[c.name()] = c
		names = append(names, c.name())
	}
	return r.unknown.see(time.Now(), o.Grace, names)
}

// sandboxesOf are the ids of the runtime's sandboxes.
func sandboxesOf(ctx context.Context, endpoint string) (map[string]bool, error) {
	client, err := cri.New(endpoint)
	if err != nil {
		return nil, err
	}
	list, err := client.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("the runtime at %s says that it has no sandbox at all, as one does that has lost its memory", endpoint)
	}
	ids := make(map[string]bool, len(list))
	for _, s := range list {
		ids[s.ID] = true
	}
	return ids, nil
}

// unknownTo are the attachments of pods whose sandbox is not in the runtime's list. Those that no pod is named with were made by something
// else than the runtime, and while a VMM has the TAP somebody uses it, whatever the runtime knows.
func unknownTo(list map[string]bool, all []*watch.Attachment) (out []corpse) {
	for _, a := range all {
		if a.Record.PodName == "" || !a.Ready() || list[a.ContainerID] || a.Attached() > 0 || state.Held(a.Dir, a.Key) {
			continue
		}
		out = append(out, corpse{a, SandboxUnknown, fmt.Sprintf("the runtime has no sandbox %q", a.ContainerID)})
	}
	return out
}

// silent logs that the runtime is not heard, once, and that it is again.
func (r *Reconciler) silent(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text != "" && r.criSilent == "":
		r.log.Warn("the runtime cannot be asked; nothing is removed for its word", "error", err)
	case text == "" && r.criSilent != "":
		r.log.Info("the runtime answers again")
	}
	r.criSilent = text
}

// bury removes a dead attachment, where the policy says so.
func (r *Reconciler) bury(ctx context.Context, o Options, c corpse) (Outcome, error) {
	switch {
	case o.Policies.Of(c.kind) != Repair:
		return Reported, nil
	case o.Mode == DryRun:
		return Planned, nil
	}
	err := plugin.RemoveDead(ctx, c.Dir, r.c.BPFFS, c.Record)
	switch {
	case errors.Is(err, plugin.ErrHeld):
		return Waiting, nil // it is being added anew, or removed
	case err != nil:
		return Failed, err
	}
	return Repaired, nil
}

func (r *Reconciler) tell(c corpse, outcome Outcome, err error) {
	f := Finding{Kind: c.kind, Object: c.Key.String(), What: c.why, Outcome: outcome}
	if err != nil {
		f.Error = err.Error()
	}
	r.results.put(f.Object, deadKinds, []Finding{f})
}

// deadKinds are the kinds of dead attachments.
var deadKinds = []Kind{SandboxGone, SandboxUnknown, Unfinished}
