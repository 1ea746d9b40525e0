package measure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/internal/sysfs"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"github.com/tapir-cni/tapir/xdp"
)

// DefaultMaxAge is how old a sample may be that is given to who asks.
const DefaultMaxAge = 250 * time.Millisecond

// ErrNotRunning is the error of a Sampler whose Run has ended.
var ErrNotRunning = errors.New("the sampler does not run")

// Config is what a [Sampler] is made of.
type Config struct {
	Watch     *watch.Watcher
	StateDirs []string      // [state.DefaultDir] where empty
	BPFFS     string        // folder of the pinned programs; [xdp.DefaultDir] where empty
	MaxAge    time.Duration // [DefaultMaxAge] where 0
	LockWait  time.Duration // of a reading of a state folder; [state.DefaultLockWait] where 0
	Logger    *slog.Logger
}

// Sampler takes samples. Its methods may be called by several goroutines at once.
type Sampler struct {
	c Config

	ask     sync.Once
	once    sync.Once
	mu      sync.Mutex
	running bool
	asked   chan struct{} // closed by the first who asks
	begun   chan struct{} // closed when Run has what the first sample needs
	last    *Sample
	flight  *flight
	devices map[watch.ID]*sysfs.Device
	opened  map[watch.ID]int // ifindexes of devices

	// Of the flight alone: there is one at a time.
	conn     *links.Conn
	iter     *queueiter.Iterator
	iterErr  error
	differ   map[watch.ID]int // queues that the last sample did not account for
	programs map[string]*xdp.Programs
	stores   map[string]*state.Store
	ipam     ipamCache
}

// flight is a sample that is being taken.
type flight struct {
	done   chan struct{}
	sample *Sample
}

// New makes a Sampler. It touches nothing.
func New(c Config) *Sampler {
	if len(c.StateDirs) == 0 {
		c.StateDirs = []string{state.DefaultDir}
	}
	if c.BPFFS == "" {
		c.BPFFS = xdp.DefaultDir
	}
	if c.MaxAge == 0 {
		c.MaxAge = DefaultMaxAge
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Sampler{c: c, asked: make(chan struct{}), begun: make(chan struct{}), devices: map[watch.ID]*sysfs.Device{}, opened: map[watch.ID]int{},
		programs: map[string]*xdp.Programs{}, stores: map[string]*state.Store{}}
	for _, dir := range c.StateDirs {
		s.stores[dir] = state.New(state.Config{Dir: dir, LockWait: c.LockWait, Logger: c.Logger})
	}
	return s
}

// Run holds what samples are taken by until ctx ends: a socket, the BPF iterator and maps, and a folder of sysfs for each TAP, which it lets go
// of when the TAP goes. It may be run again.
func (s *Sampler) Run(ctx context.Context) error {
	conn, err := links.Open()
	if err != nil {
		return err
	}
	s.conn = conn
	s.iter, s.iterErr = queueiter.Open()
	if s.iterErr != nil {
		s.c.Logger.Warn("queues of TAPs cannot be told apart", "error", s.iterErr)
	}
	s.mu.Lock()
	s.running = true
	s.mu.Unlock()
	s.keepDevices(ctx)
	return s.stop()
}

// stop waits for the sample that is being taken and lets go of everything.
func (s *Sampler) stop() error {
	s.mu.Lock()
	s.running = false
	f := s.flight
	s.mu.Unlock()
	if f != nil {
		<-f.done
	}
	errs := []error{s.conn.Close()}
	if s.iter != nil {
		errs = append(errs, s.iter.Close())
	}
	for _, p := range s.programs {
		errs = append(errs, p.Close())
	}
	clear(s.programs)
	s.conn, s.iter = nil, nil
	return errors.Join(errs...)
}

// Sample gives a sample that is at most Config.MaxAge old: the last one, the one that is being taken, or a new one. It waits for
// Run to begin and for the picture of [watch.Watcher] to be ready. What could not be read is told by the sample; the error is ctx's or [ErrNotRunning].
func (s *Sampler) Sample(ctx context.Context) (*Sample, error) {
	for i, first := range []<-chan struct{}{s.c.Watch.Ready(), s.begun} {
		if i == 1 {
			s.ask.Do(func() { close(s.asked) })
		}
		select {
		case <-first:
		case <-ctx.Done():
			return nil, fmt.Errorf("take a sample: wait for the attachments: %w", ctx.Err())
		}
	}
	f, last := s.join()
	switch {
	case last != nil:
		return last, nil
	case f == nil:
		return nil, ErrNotRunning
	}
	select {
	case <-f.done:
		return f.sample, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("take a sample: %w", ctx.Err())
	}
}

// join gives a sample that is new enough, or the flight that will have one; neither where nothing runs.
func (s *Sampler) join() (*flight, *Sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return nil, nil
	}
	if s.last != nil && time.Since(s.last.Time) < s.c.MaxAge {
		return nil, s.last
	}
	if s.flight == nil {
		f := &flight{done: make(chan struct{})}
		s.flight = f
		go func() {
			f.sample = s.take()
			s.mu.Lock()
			s.last, s.flight = f.sample, nil
			s.mu.Unlock()
			close(f.done)
		}()
	}
	return s.flight, nil
}

// Device is the folder of a TAP's sysfs, for who writes to it; nil where there is none yet, or none any more. It is closed
// when the TAP goes, and gives [os.ErrClosed] then.
func (s *Sampler) Device(id watch.ID) *sysfs.Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.devices[id]
}
