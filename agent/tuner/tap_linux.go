package tuner

import (
	"slices"
	"strconv"
	"time"

	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/sysfs"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/tap/queueiter"
)

// tuned is what is known of one TAP from one look to the next.
type tuned struct {
	id      watch.ID
	object  string // in the journal
	index   int
	name    string // of the profile
	told    string // what was said of the profile that the pod asks for
	profile Profile
	chooser *chooser // nil: it is left alone
	ring    *ring
	lost    losses

	last       *measure.Attachment // that the next sample is held against; nil: none
	lastAt     time.Time
	traffic    tap.Traffic
	unsettled  string // why its settings are to be looked at; empty: they are not
	tries      int    // looks since, that did not find all there
	attachedAt time.Time
	noNAPI     bool
	queues     int       // at the last look
	retry      time.Time // of what failed; zero: nothing did
	vmm        cpus      // on which the VMM may run
}

// retryAfter is the time after which what failed is tried again.
const retryAfter = 30 * time.Second

// settleTries bounds how often it looks for what an attach brings.
const settleTries = 20

// minInterval is the least time between two samples that are held against each other.
const minInterval = 900 * time.Millisecond

// of gives what is known of an attachment's TAP.
func (t *Tuner) of(a *measure.Attachment) *tuned {
	tp := t.taps[a.ID]
	if tp == nil || tp.index != a.TAP.Index {
		tp = &tuned{id: a.ID, object: a.Key.String(), index: a.TAP.Index}
		tp.unsettle("there is a VMM")
		t.taps[a.ID] = tp
	}
	if a.TAP.Queues > 0 && tp.queues == 0 && tp.unsettled == "" { // before the watcher told
		tp.unsettle("there is a VMM")
	}
	tp.queues = a.TAP.Queues
	t.use(tp, a)
	return tp
}

// use gives the TAP its profile.
func (t *Tuner) use(tp *tuned, a *measure.Attachment) {
	name, why := t.now.Profiles.pick(a.Record.Profile, t.now.Profile, t.now.PodProfiles)
	profile, _ := t.now.Profiles.get(name)
	if why != tp.told {
		if tp.told = why; why != "" {
			t.conclude(step{Decision: Decision{Time: time.Now(), Attachment: a.ID, Device: a.TAP.Name, Kind: KindProfile, From: a.Record.Profile, To: name, Why: why, Result: Done}}, nil, false)
		}
	}
	if t.now.Mode == Off || name == OffProfile {
		if tp.chooser != nil {
			tp.unsettle("off")
		}
		tp.name, tp.chooser, tp.ring = name, nil, nil
		return
	}
	if tp.chooser != nil && tp.name == name && slices.Equal(tp.profile.Rules, profile.Rules) {
		tp.profile = profile
		return
	}
	if tp.chooser != nil {
		tp.unsettle("its profile is another")
	}
	tp.name, tp.profile = name, profile
	tp.chooser = newChooser(profile.rules())
	if s, ok := setting(a); ok && len(t.journaled()[tp.object]) > 0 {
		tp.chooser.adopt(s) // an earlier tapird chose
	}
	if tp.ring == nil {
		tp.ring = t.ringOf(tp, a)
	}
}

// ringOf goes on from what an earlier tapird made of the ring.
func (t *Tuner) ringOf(tp *tuned, a *measure.Attachment) *ring {
	r := &ring{base: a.TAP.TxQueueLen, length: a.TAP.TxQueueLen}
	for _, c := range t.journaled()[tp.object] {
		if before, err := strconv.Atoi(c.Before); err == nil && c.Setting == ringFile && c.Index == tp.index {
			r.base, r.dropped = before, time.Now()
		}
	}
	return r
}

// setting is what the device has; ok is false where it could not be read.
func setting(a *measure.Attachment) (s tap.Setting, ok bool) {
	n := a.NAPI
	if n.Threaded == nil || n.FlushTimeout == nil || n.DeferHardIRQs == nil {
		return s, false
	}
	return tap.Setting{Threaded: *n.Threaded != 0, GROFlushTimeout: time.Duration(*n.FlushTimeout), DeferHardIRQs: *n.DeferHardIRQs}, true
}

func (tp *tuned) unsettle(why string) { tp.unsettled, tp.tries = why, 0 }

func (tp *tuned) attached(e event, at time.Time) {
	tp.unsettle(e.why)
	tp.attachedAt, tp.last, tp.vmm = at, nil, nil
}

// next is when to look again.
func (tp *tuned) next(at time.Time) time.Duration {
	switch {
	case tp.unsettled != "":
		return lookSoon
	case tp.chooser == nil:
		return lookIdle
	case tp.busy(at):
		return lookBusy
	}
	return lookIdle
}

// busy tells whether there could be something to decide.
func (tp *tuned) busy(at time.Time) bool {
	return tp.last != nil && (tp.chooser.undecided() || tp.ring.busy() || tp.lost.counting() || at.Sub(tp.attachedAt) < confirmCalm ||
		tp.chooser.choose(tp.traffic) != tp.chooser.choose(tap.Traffic{MTU: tp.traffic.MTU}) || tp.chooser.current != tp.chooser.choose(tap.Traffic{MTU: tp.traffic.MTU}))
}

// look decides what is to be done about one TAP.
func (t *Tuner) look(tp *tuned, a *measure.Attachment, at time.Time) (steps []step) {
	if tp.chooser == nil {
		return t.giveBack(tp, a)
	}
	if a.TAP.Queues == 0 {
		tp.last, tp.unsettled = nil, ""
		return nil
	}
	dry := t.now.Mode == Look
	before := tp.chooser.rule().Name
	why, changed, length, whyRing := tp.learn(a, at, dry)
	if !tp.retry.IsZero() && at.After(tp.retry) {
		tp.retry = time.Time{}
		tp.unsettle("the last time failed")
	}
	d := t.c.Measure.Device(a.ID)
	switch {
	case changed:
		steps = append(steps, t.settle(tp, a, d, Decision{Kind: KindRule, From: before, To: tp.chooser.rule().Name, Why: why}))
	case tp.unsettled != "" && d != nil:
		steps = append(steps, t.settle(tp, a, d, Decision{Kind: KindAttach, To: tp.chooser.rule().Name, Why: tp.unsettled}))
	}
	if length != tp.ring.length && d != nil {
		steps = append(steps, t.resize(tp, a, d, at, length, whyRing))
	}
	if threads := t.threads(tp, a); len(threads) > 0 && tp.retry.IsZero() && (!dry || tp.unsettled != "") {
		steps = append(steps, step{Decision: tp.about(a, Decision{Kind: KindThreads, To: tp.chooser.rule().Name, Why: "threads are new"}), changes: threads})
	}
	tp.settled(a, d)
	for i := range steps {
		steps[i].failed = func() { tp.retry = at.Add(retryAfter) }
	}
	for i := range steps { // what was right already and nobody wants to know
		if s := &steps[i]; s.Kind == KindAttach && len(s.changes) == 0 {
			steps = slices.Delete(steps, i, i+1)
			break
		}
	}
	return steps
}

// about fills in whose decision it is.
func (tp *tuned) about(a *measure.Attachment, d Decision) Decision {
	d.Attachment, d.Device = tp.id, a.TAP.Name
	return d
}

// learn holds the sample against the last one.
func (tp *tuned) learn(a *measure.Attachment, at time.Time, dry bool) (why string, changed bool, length int, whyRing string) {
	length = tp.ring.length
	if tp.last == nil {
		tp.last, tp.lastAt = a, at
		return why, changed, length, whyRing
	}
	span := at.Sub(tp.lastAt)
	if span < minInterval {
		return why, changed, length, whyRing
	}
	now, was := a.TAP.Stats, tp.last.TAP.Stats
	frames, bytes := float64(now.RxFrames-was.RxFrames), float64(now.RxBytes-was.RxBytes)
	tp.traffic = tap.Traffic{MTU: a.TAP.MTU, FramesPerSecond: frames / span.Seconds()}
	if frames > 0 {
		tp.traffic.BytesPerFrame = bytes / frames
	}
	why, changed = tp.chooser.step(at, tp.traffic)
	tp.lost.learn(a)
	if a.TAP.TxQueueLen != tp.ring.length && !dry { // somebody else's will
		tp.ring = &ring{base: a.TAP.TxQueueLen, length: a.TAP.TxQueueLen}
	}
	length, whyRing = tp.ring.step(at, flow{now.TxFrames - was.TxFrames, now.TxDropped - was.TxDropped}, tp.profile.Ring)
	tp.last, tp.lastAt = a, at
	return why, changed, length, whyRing
}

// settled tells whether everything that an attach brings is there, or will not come.
func (tp *tuned) settled(a *measure.Attachment, d *sysfs.Device) {
	if tp.unsettled == "" {
		return
	}
	tp.tries++
	missing := d == nil || a.NAPI.Threaded == nil
	if tp.chooser.rule().Setting.Threaded && !tp.noNAPI {
		missing = missing || slices.ContainsFunc(a.Queues, func(q queueiter.Queue) bool { return q.NAPI && q.Attach == queueiter.Enabled && q.Thread == 0 })
	}
	if !missing || tp.tries >= settleTries {
		tp.unsettled = ""
	}
}

func (tp *tuned) state() State {
	s := State{Attachment: tp.id, Profile: tp.name, Rule: tp.chooser.rule().Name, Why: tp.chooser.rule().Why, Ring: tp.ring.length, RingBefore: tp.ring.base, Lost: tp.lost.total, NoNAPI: tp.noNAPI}
	if tp.chooser.undecided() {
		s.Candidate = tp.chooser.rules[tp.chooser.candidate].Name
	}
	return s
}

// runs tells whether a queue runs NAPI; where the kernel cannot be asked, it may.
func runs(a *measure.Attachment) bool {
	return a.Queues == nil || slices.ContainsFunc(a.Queues, func(q queueiter.Queue) bool { return q.NAPI })
}

// vmmCPUs are those on which the process that holds the TAP's first queue may run.
func (tp *tuned) vmmCPUs(a *measure.Attachment) cpus {
	if tp.vmm != nil || len(a.Queues) == 0 {
		return tp.vmm
	}
	tp.vmm, _ = affinity(a.Queues[0].Holders[0].PID) // none where it has ended
	return tp.vmm
}

// losses count what resizes of the ring cost: frames that the redirect program sent to the TAP, and that were neither taken nor counted as dropped.
// Frames in the ring are among those, so the least of some samples before is held against the least of some after.
type losses struct {
	recent []int64 // before a resize
	before int64
	after  []int64
	active bool
	total  uint64
	report func(uint64)
}

// lossSamples is how many are looked at on each side of a resize.
const lossSamples = 5

func (l *losses) counting() bool { return l.active }

func (l *losses) begin(report func(uint64)) {
	if len(l.recent) == 0 || l.active { // an earlier resize is still looked at: both are counted in one
		return
	}
	l.before, l.after, l.active, l.report = slices.Min(l.recent), nil, true, report
}

func (l *losses) learn(a *measure.Attachment) {
	gap, ok := unaccounted(a)
	if !ok {
		l.recent, l.active = nil, false
		return
	}
	if !l.active {
		if l.recent = append(l.recent, gap); len(l.recent) > lossSamples {
			l.recent = l.recent[1:]
		}
		return
	}
	if l.after = append(l.after, gap); len(l.after) < lossSamples {
		return
	}
	least := slices.Min(l.after)
	l.active, l.recent = false, []int64{least}
	if least > l.before {
		l.total += uint64(least - l.before)
		l.report(uint64(least - l.before))
	}
}
