package watch

import (
	"fmt"

	"github.com/tapir-cni/tapir/internal/links"
)

// hear takes what the kernel told of; nil: it had to leave things out.
func (l *loop) hear(list []links.Change) error {
	if list == nil {
		l.log.Warn("the kernel had more to tell than there was room for; reading everything anew")
		return l.resync()
	}
	var again []Attachment // whose TAP is to be read
	for _, c := range list {
		if c.Link == nil {
			l.netnsGone(c.Gone)
			continue
		}
		p, ok := l.byRef[c.Link.Ref]
		if !ok {
			continue
		}
		a, ok := l.w.Attachment(p.id)
		if !ok {
			continue
		}
		next := *a
		*next.link(p.role) = nil
		if !c.Deleted {
			next.put(p.role, c.Link)
		}
		if stale(*a.link(p.role), *next.link(p.role)) {
			continue
		}
		a = l.step(a, p.role, *next.link(p.role))
		if uncertain(p.role, a.TAP) {
			again = append(again, *a)
		}
	}
	return l.reread(again)
}

// stale tells whether a message is older than what was read meanwhile.
func stale(known, told *links.Link) bool {
	return known != nil && told != nil && int32(told.CarrierUps-known.CarrierUps) < 0
}

// uncertain tells whether the message may be of an attach: the driver sends it before it sets the carrier (tun_set_iff), and
// the carrier's own message comes up to a second later. A multi-queue TAP counts its queues and is believed.
func uncertain(r Role, tap *links.Link) bool {
	return r == TAP && tap != nil && tap.Up && !tap.Carrier && !tap.Multi
}

// reread reads TAPs. Attach and carrier are one critical section of the kernel's RTNL lock, so the carrier is there by now.
func (l *loop) reread(list []Attachment) error {
	refs := make([]links.Ref, len(list))
	for i := range list {
		refs[i], _ = list[i].Ref(TAP)
	}
	return l.conn.Read(refs, func(i int, link *links.Link, err error) {
		a, ok := l.w.Attachment(list[i].ID)
		if !ok || err != nil {
			return // its end has a message of its own
		}
		if ref, there := a.Ref(TAP); !there || ref != refs[i] {
			return
		}
		next := *a
		next.TAP = nil
		if next.put(TAP, link); !stale(a.TAP, next.TAP) {
			l.step(a, TAP, next.TAP)
		}
	})
}

// resync looks at everything again.
func (l *loop) resync() error {
	var list []Attachment
	for _, a := range l.w.Snapshot() {
		list = append(list, Attachment{ID: a.ID, Record: a.Record, NSID: links.Here})
	}
	return l.look(list)
}

func (l *loop) netnsGone(nsid int) {
	for id := range l.byNSID[nsid] {
		if a, ok := l.w.Attachment(id); ok {
			l.gone(a, fmt.Errorf("network namespace %q is being taken down", a.Record.Netns))
		}
	}
}

// gone tells that the namespace went, and all that was in it.
func (l *loop) gone(a *Attachment, why error) *Attachment {
	next := *a
	next.Netns, next.Why = NetnsLost, why
	if next.Pod = nil; !a.Record.OnHost() {
		next.TAP = nil
	}
	return l.change(Event{Kind: NetnsGone, Before: a, After: &next})
}

// step makes one device of an attachment what it is now, and tells what that means.
func (l *loop) step(a *Attachment, r Role, now *links.Link) *Attachment {
	was := *a.link(r)
	with := func(link *links.Link) *Attachment {
		next := *a
		*next.link(r) = link
		return &next
	}
	before, after := queues(was), queues(now)
	if r != TAP {
		before, after = 0, 0
	}
	if before > 0 && after > 0 && was.Carrier && now.CarrierUps != was.CarrierUps {
		// All queues were detached, and some attached again, before anybody looked. (An attach's own message is sent before its carrier comes,
		// and so has the count of the time before.)
		down := *now
		down.Queues, down.Carrier, down.CarrierUps = 0, false, was.CarrierUps
		a, was, before = l.change(Event{Kind: QueueDetached, Before: a, After: with(&down)}), &down, 0
	}
	kind := Kind(0)
	switch {
	case after > before:
		kind = QueueAttached
	case after < before:
		kind = QueueDetached
	case differs(was, now):
		kind = LinkChanged
	case was == nil || now == nil:
		return a
	}
	next := with(now)
	if kind == 0 {
		l.keep(next)
		return next
	}
	return l.change(Event{Kind: kind, Device: r, Before: a, After: next})
}

func (l *loop) change(e Event) *Attachment {
	l.set(e)
	return e.After
}

// keep puts what is worth no event into the picture: counters.
func (l *loop) keep(a *Attachment) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.w.picture[a.ID] = a
}

func queues(l *links.Link) int {
	if l == nil {
		return 0
	}
	return l.Queues
}

// differs tells whether something changed that is worth an event and is none of the queues'.
func differs(a, b *links.Link) bool {
	if a == nil || b == nil {
		return a != b
	}
	if a.Carrier != b.Carrier && b.Kind != "tun" { // a TAP's is its queues', and lags behind them
		return true
	}
	return a.Name != b.Name || a.Up != b.Up || a.MTU != b.MTU || a.TxQueueLen != b.TxQueueLen || a.Disabled != b.Disabled
}
