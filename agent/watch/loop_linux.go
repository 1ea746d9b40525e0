package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/tapir-cni/tapir/internal/links"
	"golang.org/x/sys/unix"
)

// place is whose device a link is.
type place struct {
	id   ID
	role Role
}

// loop is one Run. All but the mutexed part of the Watcher belongs to its goroutine.
type loop struct {
	w        *Watcher
	log      *slog.Logger
	conn     *links.Conn
	listener *links.Listener
	own      unix.Stat_t // the namespace that tapird is in
	readers  []*reader

	readings chan reading
	changes  chan []links.Change // nil: some were lost

	byRef  map[links.Ref]place
	byNSID map[int]map[ID]bool
	unread map[string]bool // state folders that have not been read yet
}

func newLoop(w *Watcher) (_ *loop, err error) {
	l := &loop{
		w: w, log: w.c.Logger, readings: make(chan reading), changes: make(chan []links.Change),
		byRef: map[links.Ref]place{}, byNSID: map[int]map[ID]bool{}, unread: map[string]bool{},
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if err := unix.Stat("/proc/thread-self/ns/net", &l.own); err != nil {
		return nil, fmt.Errorf("read the network namespace: %w", err)
	}
	// First the ear, then the eyes: what changes while it is read is heard of.
	if l.listener, err = links.Listen(w.c.Buffer); err != nil {
		return nil, err
	}
	if l.conn, err = links.Open(); err != nil {
		return nil, err
	}
	for _, dir := range w.c.StateDirs {
		r, err := newReader(w, dir, l.log, l.readings)
		if err != nil {
			return nil, err
		}
		l.readers = append(l.readers, r)
		l.unread[dir] = true
	}
	return l, nil
}

func (l *loop) close() error {
	var errs []error
	for _, r := range l.readers {
		errs = append(errs, r.close())
	}
	if l.conn != nil {
		errs = append(errs, l.conn.Close())
	}
	if l.listener != nil {
		errs = append(errs, l.listener.Close())
	}
	return errors.Join(errs...)
}

// run ends when ctx does or the listener fails; nothing that it started runs on.
func (l *loop) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var started sync.WaitGroup
	started.Go(func() {
		if err := l.listen(ctx); err != nil {
			cancel(err)
		}
	})
	for _, r := range l.readers {
		started.Go(func() { r.run(ctx) })
	}
	err := l.adopt()
	if err == nil {
		err = l.serve(ctx)
	}
	cancel(nil)
	closeErr := l.close() // ends the listening
	started.Wait()
	return errors.Join(err, closeErr)
}

func (l *loop) serve(ctx context.Context) error {
	for {
		l.greet()
		select {
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			return nil
		case <-l.w.wake:
		case r := <-l.readings:
			if err := l.take(r); err != nil {
				return err
			}
		case list := <-l.changes:
			if err := l.hear(list); err != nil {
				return err
			}
		}
	}
}

// listen passes on what the kernel says. While the loop is busy the kernel's buffer fills; what that cannot hold is read anew.
func (l *loop) listen(ctx context.Context) error {
	for {
		list, err := l.listener.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, links.ErrOverrun):
			l.w.counts.overruns.Add(1)
			list = nil
		case err != nil:
			return err
		case len(list) == 0:
			continue
		}
		l.w.counts.messages.Add(uint64(len(list)))
		select {
		case l.changes <- list:
		case <-ctx.Done():
			return nil
		}
	}
}

// adopt takes over the picture of an earlier Run, and looks what changed since.
func (l *loop) adopt() error {
	for _, a := range l.w.Snapshot() {
		l.index(a)
	}
	return l.resync()
}

// index makes the attachment's devices and namespace known, so that messages find it.
func (l *loop) index(a *Attachment) {
	for _, r := range roles {
		if ref, ok := a.Ref(r); ok {
			l.byRef[ref] = place{a.ID, r}
		}
	}
	if a.Netns == NetnsThere && a.NSID != links.Here {
		if l.byNSID[a.NSID] == nil {
			l.byNSID[a.NSID] = map[ID]bool{}
		}
		l.byNSID[a.NSID][a.ID] = true
	}
}

func (l *loop) unindex(a *Attachment) {
	for _, r := range roles {
		if ref, ok := a.Ref(r); ok && l.byRef[ref].id == a.ID {
			delete(l.byRef, ref)
		}
	}
	if set := l.byNSID[a.NSID]; set[a.ID] {
		if delete(set, a.ID); len(set) == 0 {
			delete(l.byNSID, a.NSID)
		}
	}
}

// set puts an attachment into the picture in place of what was there, and tells of it.
func (l *loop) set(e Event) {
	if e.Before != nil {
		l.unindex(e.Before)
	}
	l.w.mu.Lock()
	if e.Kind == Removed {
		delete(l.w.picture, e.Before.ID)
	} else {
		l.w.picture[e.After.ID] = e.After
	}
	subs := append([]*subscriber(nil), l.w.subs...)
	l.w.mu.Unlock()
	if e.Kind != Removed {
		l.index(e.After)
	}
	l.w.counts.events.Add(1)
	for _, s := range subs {
		if !s.fresh && !s.closed.Load() {
			s.f(e)
		}
	}
}

// greet tells new subscribers what is there.
func (l *loop) greet() {
	l.w.mu.Lock()
	var fresh []*subscriber
	for _, s := range l.w.subs {
		if s.fresh {
			s.fresh = false
			fresh = append(fresh, s)
		}
	}
	l.w.mu.Unlock()
	if len(fresh) == 0 {
		return
	}
	for _, a := range l.w.Snapshot() {
		for _, s := range fresh {
			if !s.closed.Load() {
				s.f(Event{Kind: Added, After: a})
			}
		}
	}
}
