package measure

import (
	"context"
	"errors"
	"sync"

	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/sysfs"
	"golang.org/x/sys/unix"
)

// todo are the attachments whose TAP came or went, in order and each once; wake says that there are some.
type todo struct {
	mu   sync.Mutex
	list []watch.ID
	is   map[watch.ID]bool
	wake chan struct{}
}

func newTodo() *todo { return &todo{is: map[watch.ID]bool{}, wake: make(chan struct{}, 1)} }

func (t *todo) add(id watch.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.is[id] {
		t.is[id] = true
		t.list = append(t.list, id)
	}
	t.nudge()
}

func (t *todo) nudge() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *todo) take() (id watch.ID, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.list) == 0 {
		return watch.ID{}, false
	}
	id = t.list[0]
	t.list = t.list[1:]
	delete(t.is, id)
	return id, true
}

// keepDevices opens the sysfs of TAPs as they come and closes it as they go, until ctx ends; then it closes all. Entering a namespace
// takes a part of a millisecond, and so is done here, once, and not for each sample. It begins with the first sample, which waits for it: where
// nobody asks, nothing is open.
func (s *Sampler) keepDevices(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.asked:
	}
	t := newTodo()
	cancel := s.c.Watch.Subscribe(func(e watch.Event) {
		was, is := hasTAP(e.Before), e.Kind != watch.Removed && hasTAP(e.After)
		if was != is || e.Kind == watch.Removed || e.Kind == watch.Changed {
			t.add(e.After.ID)
		}
	})
	defer cancel()
	for _, a := range s.c.Watch.Snapshot() { // those that the first sample waits for
		t.add(a.ID)
	}
	t.nudge()
	for {
		select {
		case <-ctx.Done():
			s.closeDevices()
			return
		case <-t.wake:
		}
		for id, ok := t.take(); ok && ctx.Err() == nil; id, ok = t.take() {
			s.keepDevice(id)
		}
		s.once.Do(func() { close(s.begun) })
	}
}

func hasTAP(a *watch.Attachment) bool { return a != nil && a.TAP != nil }

// keepDevice makes what is open for one attachment what should be.
func (s *Sampler) keepDevice(id watch.ID) {
	a, ok := s.c.Watch.Attachment(id)
	wanted := ok && hasTAP(a)
	s.mu.Lock()
	have := s.devices[id]
	stale := have != nil && (!wanted || s.opened[id] != a.TAP.Index)
	if stale {
		delete(s.devices, id)
		delete(s.opened, id)
	}
	s.mu.Unlock()
	if stale {
		if err := have.Close(); err != nil {
			s.c.Logger.Warn("could not close the sysfs of a TAP", "attachment", id.String(), "error", err)
		}
		have = nil
	}
	if !wanted || have != nil {
		return
	}
	path, known := a.Record.TAPNetns()
	if !known { // it was rebuilt
		s.c.Logger.Debug("the settings of a TAP cannot be read: where its network namespace is mounted is not known", "attachment", id.String())
		return
	}
	d, err := sysfs.Open(path, a.TAP.Name)
	if err != nil {
		if !errors.Is(err, unix.ENOENT) { // gone by now
			s.c.Logger.Warn("could not open the sysfs of a TAP", "attachment", id.String(), "error", err)
		}
		return
	}
	s.mu.Lock()
	s.devices[id], s.opened[id] = d, a.TAP.Index
	s.mu.Unlock()
}

func (s *Sampler) closeDevices() {
	s.mu.Lock()
	all := s.devices
	s.devices, s.opened = map[watch.ID]*sysfs.Device{}, map[watch.ID]int{}
	s.mu.Unlock()
	for id, d := range all {
		if err := d.Close(); err != nil {
			s.c.Logger.Warn("could not close the sysfs of a TAP", "attachment", id.String(), "error", err)
		}
	}
}

// readNAPI reads a TAP's settings. One that is gone has none, and no problem.
func readNAPI(d *sysfs.Device) (n NAPI, err error) {
	if d == nil {
		return NAPI{}, nil
	}
	for file, to := range map[string]**int{"threaded": &n.Threaded, "gro_flush_timeout": &n.FlushTimeout, "napi_defer_hard_irqs": &n.DeferHardIRQs} {
		v, readErr := d.Number(file)
		switch {
		case readErr == nil:
			*to = &v
		case !absent(readErr):
			err = errors.Join(err, readErr)
		}
	}
	return n, err
}
