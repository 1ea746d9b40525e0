package reconcile

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/tapir-cni/tapir/agent/cri"
	"github.com/tapir-cni/tapir/agent/journal"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// Mode says whether anything is done.
type Mode string

// The modes.
const (
	On     Mode = "on"
	Idle   Mode = "off"
	DryRun Mode = "dry-run" // all is looked at and told of, nothing is changed
)

// Defaults of [Options].
const (
	DefaultGrace      = 5 * time.Minute
	DefaultEvery      = 10 * time.Minute
	DefaultMaxRepairs = 3
	DefaultPer        = time.Hour
)

// Options are what can change while a Reconciler runs. The zero value is the default.
type Options struct {
	Mode     Mode // [On] where empty
	Policies Policies

	// Grace is how long a thing must look dead before it is removed; [DefaultGrace] where 0.
	Grace time.Duration

	// Every is the time between two looks at everything, with a tenth of chance either way; [DefaultEvery] where 0.
	Every time.Duration

	// CRIEndpoint is the socket of the node's container runtime; empty: it is not asked.
	CRIEndpoint string

	// MaxRepairs of one thing within Per, then it is reported alone. [DefaultMaxRepairs] and [DefaultPer] where 0.
	MaxRepairs int
	Per        time.Duration
}

func (o Options) withDefaults() Options {
	o.Mode = cmp.Or(o.Mode, On)
	o.Grace, o.Every = cmp.Or(o.Grace, DefaultGrace), cmp.Or(o.Every, DefaultEvery)
	o.MaxRepairs, o.Per = cmp.Or(o.MaxRepairs, DefaultMaxRepairs), cmp.Or(o.Per, DefaultPer)
	return o
}

// Config is what a [Reconciler] is made of.
type Config struct {
	Watch     *watch.Watcher
	StateDirs []string         // those of Watch; [state.DefaultDir] where empty
	Journal   *journal.Journal // of what the tuner changed; nil: nothing
	BPFFS     string           // folder of the pinned programs; [xdp.DefaultDir] where empty
	Options   Options
	Logger    *slog.Logger
}

// Waits before what was heard of is looked at: what comes in bursts is looked at once.
const (
	settle    = 300 * time.Millisecond
	heldPause = time.Second // somebody is at work on it
)

// Reconciler is the part. Its methods may be called by several goroutines at once; Run by one.
type Reconciler struct {
	c       Config
	log     *slog.Logger
	results *record
	wake    chan struct{}

	mu      sync.Mutex
	o       Options
	dirty   map[watch.ID]time.Time // attachments, and when to look at them
	at      map[task]time.Time     // what else is to be looked at, and when
	byIndex map[int]watch.ID       // of tapir's own devices
	byAddr  map[netip.Addr]watch.ID

	// Of Run's goroutine alone.
	dead, unknown, strays ledger
	limits                limiter
	criSilent             string // why the runtime was not heard last time; empty: it was
}

// task is a look at more than one attachment.
type task uint8

const (
	lookAll  task = iota + 1 // everything
	lookDead                 // attachments that may be dead
	lookStray
	lookNode
)

// New makes a Reconciler. It touches nothing.
func New(c Config) *Reconciler {
	if len(c.StateDirs) == 0 {
		c.StateDirs = []string{state.DefaultDir}
	}
	if c.BPFFS == "" {
		c.BPFFS = xdp.DefaultDir
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Reconciler{
		c: c, log: c.Logger, results: newRecord(c.Logger), wake: make(chan struct{}, 1), o: c.Options.withDefaults(),
		dirty: map[watch.ID]time.Time{}, at: map[task]time.Time{}, byIndex: map[int]watch.ID{}, byAddr: map[netip.Addr]watch.ID{},
		dead: ledger{}, unknown: ledger{}, strays: ledger{}, limits: limiter{},
	}
}

// Reload puts options in force and looks at everything.
func (r *Reconciler) Reload(o Options) {
	r.mu.Lock()
	r.o = o.withDefaults()
	r.mu.Unlock()
	r.soon(lookAll, 0)
}

func (r *Reconciler) stateDirs() []string { return r.c.StateDirs }

func (r *Reconciler) options() Options {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.o
}

// Results are what was found and done of each kind since the Reconciler was made.
func (r *Reconciler) Results() []Result { return r.results.results(r.options().Policies) }

// Findings are what is wrong now, oldest first, as far as it was looked at.
func (r *Reconciler) Findings() []Finding { return r.results.findings() }

// Run works until ctx ends. It may be run again. The error is of what it cannot work without.
func (r *Reconciler) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.c.Watch.Ready():
	}
	ear, err := listen()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := r.c.Watch.Subscribe(r.hear)
	var listening sync.WaitGroup
	listening.Go(func() {
		if err := ear.run(r.told); err != nil && ctx.Err() == nil {
			cancel(err)
		}
	})
	r.soon(lookAll, settle)
	r.work(ctx)
	stop()
	err = ear.close()
	listening.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		err = errors.Join(cause, err)
	}
	return err
}

// work does what is due, and waits for more.
func (r *Reconciler) work(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for ctx.Err() == nil {
		next := r.turn(ctx)
		var due <-chan time.Time
		if !next.IsZero() {
			t.Reset(time.Until(next))
			due = t.C
		}
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-due:
		}
	}
}

// turn does what is due and gives the time of what is next; zero: nothing is.
func (r *Reconciler) turn(ctx context.Context) time.Time {
	if r.options().Mode == Idle {
		return time.Time{} // what is heard of is kept, and looked at when a reload turns it on
	}
	for ctx.Err() == nil {
		if t, ok := r.takeTask(); ok {
			r.do(ctx, t)
			continue
		}
		id, ok := r.takeDirty()
		if !ok {
			break
		}
		r.attachment(ctx, id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var next time.Time
	earlier := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for _, at := range r.at {
		earlier(at)
	}
	for _, at := range r.dirty {
		earlier(at)
	}
	return next
}

func (r *Reconciler) do(ctx context.Context, t task) {
	o := r.options()
	switch t {
	case lookAll:
		r.limits.prune(time.Now(), o.Per)
		for _, a := range r.c.Watch.Snapshot() {
			r.mark(a.ID, 0)
		}
		now := time.Now()
		r.set(lookDead, now)
		r.set(lookStray, now)
		r.set(lookNode, now)
		r.set(lookAll, now.Add(jitter(o.Every)))
	case lookDead:
		r.lookForDead(ctx, o)
	case lookStray:
		r.lookForStrays(ctx, o)
	case lookNode:
		r.lookAtNode(ctx, o)
	}
}

// jitter is a time within a tenth of d: nodes that started together do not ask their runtimes together.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// soon has a look done after a while, or earlier where it was to be earlier.
func (r *Reconciler) soon(t task, after time.Duration) {
	r.mu.Lock()
	at := time.Now().Add(after)
	if old, ok := r.at[t]; !ok || at.Before(old) {
		r.at[t] = at
	}
	r.mu.Unlock()
	r.nudge()
}

func (r *Reconciler) set(t task, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.at[t]; !ok || at.Before(old) {
		r.at[t] = at
	}
}

// mark has an attachment looked at after a while. One that waits already keeps its place.
func (r *Reconciler) mark(id watch.ID, after time.Duration) {
	r.mu.Lock()
	if _, waits := r.dirty[id]; !waits {
		r.dirty[id] = time.Now().Add(after)
	}
	r.mu.Unlock()
	r.nudge()
}

func (r *Reconciler) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Reconciler) takeTask() (task, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, t := range []task{lookAll, lookDead, lookStray, lookNode} {
		if at, ok := r.at[t]; ok && !at.After(now) {
			delete(r.at, t)
			return t, true
		}
	}
	return 0, false
}

func (r *Reconciler) takeDirty() (watch.ID, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for id, at := range r.dirty {
		if !at.After(now) {
			delete(r.dirty, id)
			return id, true
		}
	}
	return watch.ID{}, false
}

// ValidateEndpoint says what is wrong with an endpoint of the runtime.
func ValidateEndpoint(endpoint string) error {
	_, err := cri.New(endpoint)
	return err
}
