package reconcile

import (
	"context"
	"fmt"
	"io"

	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/plugin"
)

// Plan says what the reconciler finds now and would do about it, a line a thing. It changes nothing; the watcher runs.
func (r *Reconciler) Plan(ctx context.Context, out io.Writer) error {
	o := r.options()
	if _, err := fmt.Fprintf(out, "reconcile: %s, grace %s\n", o.Mode, o.Grace); err != nil || o.Mode == Idle {
		return err
	}
	say := func(k Kind, repairable bool, does, what string) {
		switch p := o.Policies.Of(k); {
		case p == Off:
		case p == Repair && repairable:
			fmt.Fprintf(out, "reconcile: %s %s\n", does, what)
		default:
			fmt.Fprintf(out, "reconcile: report %s\n", what)
		}
	}
	all := r.c.Watch.Snapshot()
	dead, err := findDead(all)
	if err != nil {
		return err
	}
	if o.CRIEndpoint != "" {
		list, askErr := sandboxesOf(ctx, o.CRIEndpoint)
		if askErr != nil {
			fmt.Fprintf(out, "reconcile: remove nothing for the runtime's word: %v\n", askErr)
		} else {
			dead = append(dead, unknownTo(list, all)...)
		}
	}
	after := fmt.Sprintf("after %s, remove", o.Grace)
	for _, c := range dead {
		say(c.kind, true, after, fmt.Sprintf("%s: %s", c.Key, c.why))
	}
	strays, err := plugin.Strays(ctx, r.stateDirs(), r.c.BPFFS)
	if err != nil {
		return err
	}
	for _, s := range strays {
		say(strayKinds[s.Kind], true, after, fmt.Sprintf("%s %s: %s", s.Kind, s.Name, s.Why))
	}
	drifts, err := r.planDrift(ctx, all)
	for _, d := range drifts {
		say(Kind(d.Property), d.Repairable, "repair", d.What)
	}
	return err
}

// planDrift are all differences, each with whose it is in its text.
func (r *Reconciler) planDrift(ctx context.Context, all []*watch.Attachment) (out []plugin.Difference, err error) {
	for _, a := range all {
		if !a.Ready() || a.Netns == watch.NetnsLost {
			continue
		}
		list, err := r.drift(a).Look(a.Record)
		if err != nil {
			continue // it goes just now, or is among the dead
		}
		for _, d := range list {
			d.What = fmt.Sprintf("%s: %s %s: %s", a.Key, d.Property, d.Object, d.What)
			out = append(out, d)
		}
	}
	for dir, recs := range readyByDir(all) {
		list, err := plugin.Node{StateDir: dir}.Look(ctx, recs)
		if err != nil {
			return out, err
		}
		for _, d := range list {
			d.What = fmt.Sprintf("%s %s: %s", d.Property, d.Object, d.What)
			out = append(out, d)
		}
	}
	return out, nil
}
