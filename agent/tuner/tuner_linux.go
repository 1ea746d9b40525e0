package tuner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/tapir-cni/tapir/agent/journal"
	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
)

// Mode is whether anything is tuned.
type Mode string

// The modes.
const (
	Off  Mode = "off" // what was tuned is given back
	On   Mode = "on"
	Look Mode = "dry-run" // decide, log and count, and change nothing
)

// Part is the tuner's name in the journal.
const Part = "tuner"

// Config is what a [Tuner] is made of.
type Config struct {
	Watch   *watch.Watcher
	Measure *measure.Sampler
	Journal *journal.Journal // open
	Options                  // can change while it runs
	Sys     fs.FS            // of CPUs and devices of the node; /sys where nil
	Logger  *slog.Logger
}

// Options are what [Tuner.Reload] can change.
type Options struct {
	Mode        Mode     // empty: On
	Profile     string   // of attachments that ask for none; empty: [DefaultProfile]
	Profiles    Profiles // by name, beside those that are always there
	PodProfiles []string // that an attachment may ask for
	Uplinks     map[string]Uplink
}

// Refused says why an attachment cannot have the profile that it asks for; empty where it can.
func (o Options) Refused(asked string) string {
	_, why := o.Profiles.pick(asked, o.Profile, o.PodProfiles)
	return why
}

// Tuner tunes. Its methods may be called by several goroutines at once.
type Tuner struct {
	c       Config
	wake    chan struct{}
	history history

	mu     sync.Mutex // of what comes from outside
	o      Options
	fresh  bool // o is new
	events map[watch.ID]event
	prune  bool // attachments went

	// Of Run alone.
	now      Options
	taps     map[watch.ID]*tuned
	topology topology
	irqDir   string                      // /proc/irq
	looks    int                         // since it was made
	journal  map[string][]journal.Change // by object, of this pass; nil: not read
}

// event is an attach that was told.
type event struct {
	at  time.Time
	why string
}

// New makes a Tuner. It touches nothing.
func New(c Config) *Tuner {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Sys == nil {
		c.Sys = os.DirFS("/sys")
	}
	t := &Tuner{c: c, wake: make(chan struct{}, 1), events: map[watch.ID]event{}, taps: map[watch.ID]*tuned{}, irqDir: "/proc/irq"}
	t.o = c.Options.whole()
	return t
}

func (o Options) whole() Options {
	if o.Mode == "" {
		o.Mode = On
	}
	if o.Profile == "" {
		o.Profile = DefaultProfile
	}
	return o
}

// Reload gives it other options, which count from the next look at the TAPs on: in a moment.
func (t *Tuner) Reload(o Options) {
	t.mu.Lock()
	t.o, t.fresh = o.whole(), true
	t.mu.Unlock()
	t.nudge()
}

func (t *Tuner) nudge() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// hear notes what the watcher tells.
func (t *Tuner) hear(e watch.Event) {
	t.mu.Lock()
	switch e.Kind {
	case watch.QueueAttached:
		t.events[e.After.ID] = event{time.Now(), "a VMM attached"}
	case watch.Added, watch.Changed:
		if e.After.Attached() > 0 {
			t.events[e.After.ID] = event{time.Now(), "there is a VMM"}
		}
	case watch.Removed:
		delete(t.events, e.After.ID)
		t.prune = true
	default:
		t.mu.Unlock()
		return
	}
	t.mu.Unlock()
	t.nudge()
}

// How often it looks. A TAP is looked at again soon while something of an attach is missing, such as a thread that the kernel is about to make.
const (
	lookSoon = measure.DefaultMaxAge + 10*time.Millisecond
	lookBusy = time.Second
	lookIdle = 10 * time.Second
)

// Run tunes until ctx ends. What TAPs have then they keep, for the next tapird to go on from; uplinks are as they were. It may be run again.
func (t *Tuner) Run(ctx context.Context) error {
	var err error
	if t.topology, err = readTopology(t.c.Sys); err != nil {
		t.c.Logger.Warn("CPUs that are near to each other are not known", "error", err)
	}
	t.mu.Lock()
	t.prune, t.fresh = true, true
	t.mu.Unlock()
	clear(t.taps)
	defer t.c.Watch.Subscribe(t.hear)()
	select {
	case <-t.c.Watch.Ready():
	case <-ctx.Done():
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			t.restoreUplinks(func(string) bool { return false }, "tapird ends")
			return nil
		case <-t.wake:
		case <-timer.C:
		}
		next, err := t.pass(ctx)
		switch {
		case ctx.Err() != nil:
			continue
		case err != nil:
			return err
		}
		if timer.Stop(); next > 0 {
			timer.Reset(next)
		}
	}
}

// pass looks at all TAPs once and does what is to be done; next is when it wants to look again, 0: when it is told something.
func (t *Tuner) pass(ctx context.Context) (next time.Duration, err error) {
	t.journal = nil
	t.looks++
	events, fresh, prune := t.news()
	if fresh {
		t.tuneUplinks()
	}
	if t.now.Mode == Off && len(t.journaled()) == 0 {
		t.forgetTaps()
		return 0, nil
	}
	s, err := t.sample(ctx, events)
	if err != nil {
		return 0, err
	}
	var steps []step
	there := map[watch.ID]bool{}
	next = lookIdle
	for _, a := range s.Attachments {
		there[a.ID] = true
		if a.TAP == nil || !a.Ready() {
			continue
		}
		tp := t.of(a)
		if e, ok := events[a.ID]; ok {
			tp.attached(e, s.Time)
		} else if fresh && tp.unsettled == "" {
			tp.unsettle("the configuration was read")
		}
		steps = append(steps, t.look(tp, a, s.Time)...)
		next = min(next, tp.next(s.Time))
	}
	if prune {
		t.drop(there, s)
	}
	t.carryOut(steps, s.Time)
	t.publish()
	if t.now.Mode == Off && next == lookIdle {
		return 0, nil
	}
	return next, nil
}

// news takes what was told since the last time.
func (t *Tuner) news() (events map[watch.ID]event, fresh, prune bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	events, fresh, prune = t.events, t.fresh, t.prune
	t.events, t.fresh, t.prune = map[watch.ID]event{}, false, false
	if fresh {
		t.now = t.o
	}
	return events, fresh, prune
}

// sample gives one that shows what the events told.
func (t *Tuner) sample(ctx context.Context, events map[watch.ID]event) (*measure.Sample, error) {
	var newest time.Time
	for _, e := range events {
		if e.at.After(newest) {
			newest = e.at
		}
	}
	for {
		s, err := t.c.Measure.Sample(ctx)
		if err != nil || s.Time.After(newest) {
			return s, err
		}
		select {
		case <-time.After(lookSoon - time.Since(s.Time)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// drop forgets attachments that went, and what the journal has of them or of a TAP that was made anew: there is nothing to give back.
func (t *Tuner) drop(there map[watch.ID]bool, s *measure.Sample) {
	for id := range t.taps {
		if !there[id] {
			delete(t.taps, id)
		}
	}
	index := map[string]map[int]bool{} // by object; -1: one that could not be read
	for _, a := range s.Attachments {
		of := index[a.Key.String()]
		if of == nil {
			of = map[int]bool{}
			index[a.Key.String()] = of
		}
		of[a.Record.TAP.Index] = true
	}
	var gone []journal.Change
	for object, changes := range t.journaled() {
		for _, c := range changes {
			if !strings.HasPrefix(object, uplinkObject) && !index[object][c.Index] {
				gone = append(gone, c)
			}
		}
	}
	if len(gone) > 0 {
		if err := t.c.Journal.Forget(gone...); err != nil {
			t.c.Logger.Warn("the journal keeps what is gone", "error", err)
		}
		t.journal = nil
	}
}

// journaled are the tuner's changes by object.
func (t *Tuner) journaled() map[string][]journal.Change {
	if t.journal == nil {
		t.journal = map[string][]journal.Change{}
		for _, c := range t.c.Journal.Changes(Part) {
			t.journal[c.Object] = append(t.journal[c.Object], c)
		}
	}
	return t.journal
}

func (t *Tuner) forgetTaps() {
	clear(t.taps)
	t.publish()
}

// publish shows what it thinks.
func (t *Tuner) publish() {
	states := make(map[watch.ID]State, len(t.taps))
	for id, tp := range t.taps {
		if tp.chooser != nil {
			states[id] = tp.state()
		}
	}
	t.history.mu.Lock()
	defer t.history.mu.Unlock()
	t.history.states = states
}

// step is one decision with what is to be done for it.
type step struct {
	Decision
	changes []change
	done    func() // after all changes were made
	failed  func() // after some were not; may be nil, as done may
}

// change is one setting to write.
type change struct {
	journal.Change
	write  func() error
	moot   bool // it cannot be made, and write says why
	forget bool // it is given back: the journal does not need it any more
}

// carryOut writes the journal first, once for all.
func (t *Tuner) carryOut(steps []step, at time.Time) {
	var record, forget []journal.Change
	for _, s := range steps {
		for _, c := range s.changes {
			if !c.forget && !c.moot {
				record = append(record, c.Change)
			}
		}
	}
	dry := t.now.Mode == Look
	var broken error
	if len(record) > 0 && !dry {
		broken = t.c.Journal.Record(record...)
	}
	for _, s := range steps {
		s.Time, s.Result = at, Done
		var errs []error
		for _, c := range s.changes {
			s.Settings = append(s.Settings, Setting{c.Setting, c.Before, c.After})
			switch {
			case dry && !c.moot:
			case broken != nil && !c.forget:
				errs = append(errs, broken)
			default:
				err := c.write()
				if err == nil && c.forget {
					forget = append(forget, c.Change)
				}
				errs = append(errs, err)
			}
		}
		t.conclude(s, errors.Join(errs...), dry)
	}
	if len(forget) > 0 {
		if err := t.c.Journal.Forget(forget...); err != nil {
			t.c.Logger.Warn("the journal keeps what was given back", "error", err)
		}
	}
}

// conclude logs and counts a decision.
func (t *Tuner) conclude(s step, err error, dry bool) {
	switch {
	case err != nil:
		if s.failed != nil {
			s.failed()
		}
		s.Result, s.Error = Failed, strings.ReplaceAll(err.Error(), "\n", "; ")
	case dry:
		s.Result = DryRun
	}
	if s.done != nil && (err == nil || dry) {
		s.done()
	}
	t.history.note(s.Decision)
	text := make([]string, 0, len(s.Settings))
	for _, one := range s.Settings {
		text = append(text, fmt.Sprintf("%s %s → %s", one.Name, one.Before, one.After))
	}
	args := []any{"kind", string(s.Kind), "device", s.Device, "from", s.From, "to", s.To, "why", s.Why, "settings", text, "result", string(s.Result)}
	if s.Attachment.ContainerID != "" {
		args = append(args, "attachment", s.Attachment.String())
	}
	if err != nil {
		t.c.Logger.Warn("could not tune all of it", append(args, "error", s.Error)...)
		return
	}
	t.c.Logger.Info("tuned", args...)
}
