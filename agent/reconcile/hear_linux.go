package reconcile

import (
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/plugin"
)

// hear takes an event of the watch. It runs in the watch's goroutine and does not wait.
func (r *Reconciler) hear(e watch.Event) {
	a := e.After
	switch e.Kind {
	case watch.Added, watch.Changed:
		r.know(e.Before, a)
		if !a.Ready() || a.Netns == watch.NetnsLost {
			r.soon(lookDead, settle)
		}
	case watch.Removed:
		r.know(a, nil)
		r.results.put(a.Key.String(), propertyKinds, nil)
		if r.results.has(a.Key.String()) { // that it was dead ends with the next look, which may be who removed it
			r.soon(lookDead, settle)
		}
	case watch.NetnsGone:
		r.soon(lookDead, settle)
	case watch.LinkChanged:
		if a.Ready() && a.Netns != watch.NetnsLost {
			r.mark(a.ID, settle)
		}
	}
}

// know keeps whose a device or an address is.
func (r *Reconciler) know(before, after *watch.Attachment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	each := func(a *watch.Attachment, index func(int), addr func(i int)) {
		rec := a.Record
		for _, i := range []int{rec.TAP.Index, rec.Host.Index} {
			if i != 0 {
				index(i)
			}
		}
		if rec.Pod.Index != 0 && !rec.Chained { // another plugin's ifindex is not unique on the node
			index(rec.Pod.Index)
		}
		if !rec.Chained {
			for i := range rec.Addresses {
				addr(i)
			}
		}
	}
	if before != nil {
		each(before, func(i int) {
			if r.byIndex[i] == before.ID {
				delete(r.byIndex, i)
			}
		}, func(i int) {
			if ip := before.Record.Addresses[i].Prefix.Addr(); r.byAddr[ip] == before.ID {
				delete(r.byAddr, ip)
			}
		})
	}
	if after != nil && after.Ready() { // else its ADD runs, and all that is heard of it is that ADD's
		each(after, func(i int) { r.byIndex[i] = after.ID }, func(i int) { r.byAddr[after.Record.Addresses[i].Prefix.Addr()] = after.ID })
	}
}

// told takes what the kernel told of. It runs in the listener's goroutine.
func (r *Reconciler) told(n notice) {
	switch {
	case n.lost:
		r.soon(lookAll, settle)
		return
	case n.node:
		r.soon(lookNode, settle)
		return
	case n.rules:
		r.soon(lookAll, 10*settle) // the way to any address may be another
		return
	}
	r.mu.Lock()
	id, ok := r.byIndex[n.index]
	if !ok && n.addr.IsValid() {
		id, ok = r.byAddr[n.addr]
	}
	r.mu.Unlock()
	if ok {
		r.mark(id, settle)
	}
}

// kindsOfNode are the kinds whose findings are of the node.
var kindsOfNode = []Kind{Kind(plugin.PropertyForwarding), Kind(plugin.PropertyMasquerade)}
