package reconcile

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/plugin"
	"github.com/tapir-cni/tapir/state"
)

// ringSetting is what the tuner calls the TAP's ring in its journal.
const ringSetting = "tx_queue_len"

// drift is the comparison of an attachment, with what the tuner has changed by now.
func (r *Reconciler) drift(a *watch.Attachment) plugin.Drift {
	d := plugin.Drift{StateDir: a.Dir, BPFFS: r.c.BPFFS}
	if r.c.Journal == nil {
		return d
	}
	for _, c := range r.c.Journal.Of(a.Key.String()) {
		if c.Setting != ringSetting || c.Index != a.Record.TAP.Index {
			continue
		}
		// It writes down first and changes then, and gives back first and forgets then.
		for _, v := range []string{c.After, c.Before} {
			if n, err := strconv.Atoi(v); err == nil && n > 0 {
				d.Rings = append(d.Rings, n)
			}
		}
	}
	return d
}

// attachment holds one attachment against the kernel, and mends it under its hold.
func (r *Reconciler) attachment(ctx context.Context, id watch.ID) {
	o := r.options()
	a, ok := r.c.Watch.Attachment(id)
	if !ok || !a.Ready() || a.Record.Rebuilt || a.Netns == watch.NetnsLost {
		return
	}
	if state.Held(id.Dir, id.Key) {
		r.mark(id, heldPause)
		return
	}
	d := r.drift(a)
	seen, err := d.Look(a.Record)
	if err != nil {
		// Mostly a sandbox that goes just now; the look for the dead has the rest.
		r.log.Debug("could not look at an attachment", "attachment", id.String(), "error", err)
		return
	}
	if !slices.ContainsFunc(seen, func(one plugin.Difference) bool { return o.Policies.Of(Kind(one.Property)) != Off }) {
		r.results.put(id.String(), propertyKinds, nil)
		return
	}
	contested := map[string]bool{}
	seen, err = d.Mend(ctx, a.Record, func(one plugin.Difference) bool { return r.may(o, id.Dir+" "+id.String(), one, contested) })
	if errors.Is(err, plugin.ErrHeld) {
		r.mark(id, heldPause)
		return
	}
	if err != nil {
		r.log.Debug("could not look at an attachment", "attachment", id.String(), "error", err)
	}
	r.results.put(id.String(), propertyKinds, r.findingsOf(o, id.String(), seen, contested))
}

// propertyKinds are the kinds of what a comparison finds.
var propertyKinds = func() (out []Kind) {
	for _, p := range plugin.Properties {
		out = append(out, Kind(p))
	}
	return out
}()

// may says whether a difference is to be repaired.
func (r *Reconciler) may(o Options, whose string, d plugin.Difference, contested map[string]bool) bool {
	if o.Mode != On || o.Policies.Of(Kind(d.Property)) != Repair || !d.Repairable {
		return false
	}
	name := string(d.Property) + " " + d.Object
	if !r.limits.allow(whose+" "+name, time.Now(), o.MaxRepairs, o.Per) {
		contested[name] = true
		return false
	}
	return true
}

// findingsOf are the differences as findings, those that a policy leaves out left out.
func (r *Reconciler) findingsOf(o Options, object string, list []plugin.Difference, contested map[string]bool) (out []Finding) {
	for _, d := range list {
		kind := Kind(d.Property)
		if o.Policies.Of(kind) == Off {
			continue
		}
		f := Finding{Kind: kind, Object: object, Thing: d.Object, What: d.What, Outcome: Reported}
		switch {
		case d.Repaired:
			f.Outcome = Repaired
		case errors.Is(d.Err, plugin.ErrHeld):
			f.Outcome = Waiting
		case d.Err != nil:
			f.Outcome, f.Error = Failed, d.Err.Error()
		case contested[string(d.Property)+" "+d.Object]:
			f.Outcome = Contested
		case o.Mode == DryRun && o.Policies.Of(kind) == Repair && d.Repairable:
			f.Outcome = Planned
		}
		out = append(out, f)
	}
	return out
}

// nodeObject is the object of findings that are of no attachment.
const nodeObject = "node"

// lookAtNode holds what attachments share against the kernel.
func (r *Reconciler) lookAtNode(ctx context.Context, o Options) {
	byDir := readyByDir(r.c.Watch.Snapshot())
	var found []Finding
	contested := map[string]bool{}
	for dir, recs := range byDir {
		list, err := plugin.Node{StateDir: dir}.Mend(ctx, recs, func(d plugin.Difference) bool { return r.may(o, dir, d, contested) })
		if err != nil {
			r.log.Error("could not look at what attachments share", "stateDir", dir, "error", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		found = append(found, r.findingsOf(o, nodeObject, list, contested)...)
	}
	r.results.put(nodeObject, kindsOfNode, found)
}

func readyByDir(all []*watch.Attachment) map[string][]state.Attachment {
	out := map[string][]state.Attachment{}
	for _, a := range all {
		if a.Ready() && a.Netns != watch.NetnsLost {
			out[a.Dir] = append(out[a.Dir], a.Record)
		}
	}
	return out
}
