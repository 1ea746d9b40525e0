package reconcile

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/tapir-cni/tapir/plugin"
)

// strayKinds are the kinds of strays.
var strayKinds = map[plugin.StrayKind]Kind{
	plugin.StrayEntry: StrayEntry, plugin.StrayShortcut: StrayShortcut, plugin.StrayDevice: StrayDevice, plugin.StrayLease: StrayLease, plugin.StrayDAN: StrayDAN,
}

// lookForStrays removes what has belonged to no attachment for the grace time.
func (r *Reconciler) lookForStrays(ctx context.Context, o Options) {
	list, err := plugin.Strays(ctx, r.stateDirs(), r.c.BPFFS)
	if err != nil {
		r.log.Error("could not look for what no attachment has", "error", err)
		return
	}
	byName := map[string]plugin.Stray{}
	for _, s := range list {
		if o.Policies.Of(strayKinds[s.Kind]) != Off {
			byName[string(s.Kind)+" "+s.Name] = s
		}
	}
	now := time.Now()
	due := r.strays.see(now, o.Grace, slices.Sorted(maps.Keys(byName)))
	var found []Finding
	for name, s := range byName {
		if !r.strays.again(name) {
			continue
		}
		f := Finding{Kind: strayKinds[s.Kind], Object: nodeObject, Thing: s.Name, What: s.Why, Outcome: Waiting}
		if slices.Contains(due, name) {
			f.Outcome, f.Error = r.clear(ctx, o, s)
		}
		found = append(found, f)
	}
	r.results.put(nodeObject, slices.Collect(maps.Values(strayKinds)), found)
	if at := r.strays.next(o.Grace); !at.IsZero() {
		r.set(lookStray, laterThan(now, at))
	}
}

func (r *Reconciler) clear(ctx context.Context, o Options, s plugin.Stray) (Outcome, string) {
	switch {
	case o.Policies.Of(strayKinds[s.Kind]) != Repair:
		return Reported, ""
	case o.Mode == DryRun:
		return Planned, ""
	}
	err := s.Remove(ctx)
	switch {
	case errors.Is(err, plugin.ErrHeld):
		return Waiting, ""
	case err != nil:
		return Failed, err.Error()
	}
	return Repaired, ""
}
