package watch

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tapir-cni/tapir/state"
)

// Defaults of a [Config].
const (
	DefaultReadEvery = 100 * time.Millisecond
	DefaultBuffer    = 4 << 20
)

// Config is what a [Watcher] is made of.
type Config struct {
	StateDirs []string      // [state.DefaultDir] where empty
	LockWait  time.Duration // of a reading of a state folder; [state.DefaultLockWait] where 0
	ReadEvery time.Duration // between two readings of a folder that changes all the time; [DefaultReadEvery] where 0
	Buffer    int           // bytes of the kernel's messages that wait; [DefaultBuffer] where 0
	Logger    *slog.Logger
}

// Watcher is the picture. Its methods may be called by several goroutines at once.
type Watcher struct {
	c     Config
	wake  chan struct{} // somebody subscribed
	ready chan struct{}
	once  sync.Once

	mu      sync.Mutex
	picture map[ID]*Attachment
	subs    []*subscriber

	counts struct{ readings, failedReadings, messages, overruns, events atomic.Uint64 }
}

// Stats count what a Watcher did since it was made.
type Stats struct {
	Readings       uint64 `json:"readings"`       // of state folders
	FailedReadings uint64 `json:"failedReadings"` // the picture of that folder stayed as it was
	Changes        uint64 `json:"changes"`        // links and namespaces that the kernel told of, those of others included
	Overruns       uint64 `json:"overruns"`       // the kernel had more to tell than the buffer held: everything was read anew
	Events         uint64 `json:"events"`         // given to subscribers, each counted once
}

type subscriber struct {
	f      func(Event)
	fresh  bool // of the loop alone: it has not been told what is there
	closed atomic.Bool
}

// New makes a Watcher. It touches nothing.
func New(c Config) *Watcher {
	if len(c.StateDirs) == 0 {
		c.StateDirs = []string{state.DefaultDir}
	}
	if c.ReadEvery == 0 {
		c.ReadEvery = DefaultReadEvery
	}
	if c.Buffer == 0 {
		c.Buffer = DefaultBuffer
	}
	return &Watcher{c: c, wake: make(chan struct{}, 1), ready: make(chan struct{}), picture: map[ID]*Attachment{}}
}

// Ready is closed when [Watcher.Run] has read everything once.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

// Snapshot is the picture: every attachment, by network, container id and ifname. Without a Run, or before the first one is
// ready, it is empty.
func (w *Watcher) Snapshot() []*Attachment {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]*Attachment, 0, len(w.picture))
	for _, a := range w.picture {
		list = append(list, a)
	}
	return sortedByID(list)
}

// Attachment is one attachment of the picture.
func (w *Watcher) Attachment(id ID) (a *Attachment, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, ok = w.picture[id]
	return a, ok
}

// Subscribe has f called with every event from now on, after one [Added] for each attachment that is there, by the goroutine of Run: f must not
// wait, and may call the Watcher's methods. cancel ends it; f may still be running when cancel returns.
func (w *Watcher) Subscribe(f func(Event)) (cancel func()) {
	s := &subscriber{f: f, fresh: true}
	w.mu.Lock()
	w.subs = append(w.subs, s)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return func() {
		s.closed.Store(true)
		w.mu.Lock()
		defer w.mu.Unlock()
		for i, other := range w.subs {
			if other == s {
				w.subs = append(w.subs[:i:i], w.subs[i+1:]...)
				return
			}
		}
	}
}

// Stats is what was counted.
func (w *Watcher) Stats() Stats {
	return Stats{
		Readings: w.counts.readings.Load(), FailedReadings: w.counts.failedReadings.Load(), Changes: w.counts.messages.Load(),
		Overruns: w.counts.overruns.Load(), Events: w.counts.events.Load(),
	}
}

// Run keeps the picture until ctx ends. It may be run again, but not twice at once: the picture that is there is held against
// what is read then. The error is of what it cannot work without.
func (w *Watcher) Run(ctx context.Context) error {
	l, err := newLoop(w)
	if err != nil {
		return err
	}
	return l.run(ctx)
}
