package tuner

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/agent/journal"
	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/internal/sysfs"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"github.com/tapir-cni/tapir/xdp"
	"golang.org/x/sys/unix"
)

// Files of a TAP's sysfs, and what the journal calls the settings of its threads.
const (
	threadedFile = "threaded"
	timeoutFile  = "gro_flush_timeout"
	deferFile    = "napi_defer_hard_irqs"
	ringFile     = "tx_queue_len"
	policyOf     = "threads/policy"
	cpusOf       = "threads/cpus"
)

// The policies of threads, as sched(7) names them.
const (
	policyOther = "SCHED_OTHER"
	policyBatch = "SCHED_BATCH"
)

// absent tells whether an error says that a device or a file of it is not there.
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, os.ErrClosed)
}

// entry is a change of the TAP, for the journal.
func (tp *tuned) entry(setting, before, after, why string) journal.Change {
	return journal.Change{Part: Part, Object: tp.object, Index: tp.index, Setting: setting, Before: before, After: after, Why: why}
}

// file is the change of a file of the TAP's sysfs; a TAP that is gone needs none.
func (tp *tuned) file(d *sysfs.Device, name, before, after, why string) change {
	return change{Change: tp.entry(name, before, after, why), write: func() error {
		if err := d.Write(name, after); err != nil && !absent(err) {
			return err
		}
		return nil
	}}
}

// settle makes the device what the rule and the profile say.
func (t *Tuner) settle(tp *tuned, a *measure.Attachment, d *sysfs.Device, about Decision) step {
	s := step{Decision: tp.about(a, about)}
	tp.noNAPI = !runs(a)
	want := tp.chooser.rule().Setting
	if tp.noNAPI {
		want = tap.Setting{} // the kernel would refuse threads, and make nothing of the rest
		s.Why += "; no queue runs NAPI, so there is nothing to set"
	}
	if d != nil {
		for _, f := range []struct {
			name string
			want int
		}{{threadedFile, flag(want.Threaded)}, {deferFile, want.DeferHardIRQs}, {timeoutFile, int(want.GROFlushTimeout)}} {
			// Not the sample's value: that may be of before the last change, which then looked as if it were still to be made, or made already.
			before, err := d.Number(f.name)
			if err != nil || before == f.want || tp.noNAPI && f.name == threadedFile {
				continue
			}
			s.changes = append(s.changes, tp.file(d, f.name, strconv.Itoa(before), strconv.Itoa(f.want), about.Why))
			if f.name == threadedFile && want.Threaded {
				tp.unsettle("threads are made") // and have their policy when they are there
			}
		}
	}
	if d != nil && about.Kind == KindAttach {
		s.changes = append(s.changes, t.masks(tp, a, d, about.Why)...)
	}
	return s
}

func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}

// masks are RPS and XPS of all queues. Those of queue 1 and above are new with each attach (netif_set_real_num_rx_queues).
func (t *Tuner) masks(tp *tuned, a *measure.Attachment, d *sysfs.Device, why string) (list []change) {
	for _, m := range []struct{ word, format string }{{tp.profile.RPS, "queues/rx-%d/rps_cpus"}, {tp.profile.XPS, "queues/tx-%d/xps_cpus"}} {
		if m.word == keepCPUs {
			continue
		}
		want := t.cpusFor(tp, a, m.word)
		for queue := range a.TAP.Queues {
			name := fmt.Sprintf(m.format, queue)
			text, err := d.Read(name)
			if err != nil { // a device with one queue has no XPS, and says so with ENOENT
				continue
			}
			if have, err := parseMask(text); err == nil && have.String() == want.String() {
				continue
			}
			list = append(list, tp.file(d, name, text, want.mask(), why))
		}
	}
	return list
}

// cpusFor are the CPUs that a word of a profile means.
func (t *Tuner) cpusFor(tp *tuned, a *measure.Attachment, word string) cpus {
	switch word {
	case noCPUs:
		return nil
	case nearCPUs:
		if near := t.near(tp, a); near != nil {
			return near
		}
		return t.topology.online
	}
	list, err := parseCPUs(word)
	if err != nil {
		return nil // a configuration is validated
	}
	return list
}

// near are the CPUs near to the VMM; nil: all are as near.
func (t *Tuner) near(tp *tuned, a *measure.Attachment) cpus {
	node := -1
	for name := range t.now.Uplinks {
		node = max(node, deviceNode(t.c.Sys, name))
	}
	return t.topology.near(tp.vmmCPUs(a), node)
}

// threads gives those of the TAP's queues the rule's policy and the profile's CPUs. It is asked at each look, since the kernel makes a
// thread when it pleases.
func (t *Tuner) threads(tp *tuned, a *measure.Attachment) (list []change) {
	rule := tp.chooser.rule().Setting
	if !rule.Threaded {
		return nil
	}
	want := policyOther
	if rule.Batch {
		want = policyBatch
	}
	var on cpus
	switch tp.profile.ThreadCPUs {
	case anyCPUs:
	case nearCPUs:
		on = t.near(tp, a)
	default:
		on = t.cpusFor(tp, a, tp.profile.ThreadCPUs)
	}
	for _, q := range a.Queues {
		if q.Thread == 0 || q.Attach != queueiter.Enabled {
			continue
		}
		if have := policy(q.Thread); have != "" && have != want {
			list = append(list, change{Change: tp.entry(policyOf, have, want, "the rule's policy"), write: func() error { return setPolicy(q.Thread, want) }})
		}
		if have, ok := affinity(q.Thread); ok && on != nil && have.String() != on.String() {
			list = append(list, change{Change: tp.entry(cpusOf, have.String(), on.String(), "near to the VMM"), write: func() error { return setAffinity(q.Thread, on) }})
		}
	}
	return list
}

// policy is that of a thread; empty where it has gone, or is neither of the two.
func policy(tid int) string {
	attr, err := unix.SchedGetAttr(tid, 0)
	switch {
	case err != nil:
		return ""
	case attr.Policy == unix.SCHED_NORMAL:
		return policyOther
	case attr.Policy == unix.SCHED_BATCH:
		return policyBatch
	}
	return ""
}

func setPolicy(tid int, name string) error {
	if err := (tap.Setting{Batch: name == policyBatch}).ApplyThread(tid); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

func affinity(tid int) (cpus, bool) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &set); err != nil {
		return nil, false
	}
	var list cpus
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			list = append(list, cpu)
		}
	}
	return list, true
}

func setAffinity(tid int, list cpus) error {
	var set unix.CPUSet
	for _, cpu := range list {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("keep NAPI thread %d on CPUs %s: %w", tid, list, err)
	}
	return nil
}

// resize gives the ring another length, which never is 0: that would drop every frame.
func (t *Tuner) resize(tp *tuned, a *measure.Attachment, d *sysfs.Device, at time.Time, length int, why string) step {
	from, to := strconv.Itoa(tp.ring.length), strconv.Itoa(length)
	c := tp.file(d, ringFile, from, to, why)
	write := c.write
	c.write = func() error {
		tp.lost.begin(func(lost uint64) {
			t.history.mu.Lock()
			defer t.history.mu.Unlock()
			t.history.lost += lost
		})
		return write()
	}
	return step{
		Decision: tp.about(a, Decision{Kind: KindRing, From: from, To: to, Why: why}), changes: []change{c},
		done: func() { tp.ring.set(at, length, tp.profile.Ring) },
	}
}

// unaccounted are frames that the redirect program sent to the TAP and that were neither read nor counted as dropped, or are in the ring.
func unaccounted(a *measure.Attachment) (frames int64, ok bool) {
	if a.Frames == nil || a.TAP == nil {
		return 0, false
	}
	return int64(a.Frames[xdp.ReasonToGuest].Frames) - int64(a.TAP.Stats.TxFrames) - int64(a.TAP.Stats.TxDropped), true
}

// giveBack makes the TAP what it was before the tuner came, by the journal. Threads cannot be switched off while no queue with NAPI is
// attached; that waits for the next one.
func (t *Tuner) giveBack(tp *tuned, a *measure.Attachment) []step {
	d := t.c.Measure.Device(a.ID)
	switch {
	case tp.unsettled == "":
		return nil
	case d == nil:
		if tp.tries++; tp.tries >= settleTries {
			tp.unsettled = ""
		}
		return nil
	}
	tp.last, tp.unsettled = nil, ""
	why := "the tuner is off"
	if t.now.Mode != Off {
		why = fmt.Sprintf("profile %q", OffProfile)
	}
	s := step{Decision: tp.about(a, Decision{Kind: KindGiveBack, To: OffProfile, Why: why})}
	for _, c := range t.journaled()[tp.object] {
		if c.Index != tp.index || c.Setting == threadedFile && (a.TAP.Queues == 0 || !runs(a)) {
			continue
		}
		back := tp.file(d, c.Setting, c.After, c.Before, s.Why)
		if strings.HasPrefix(c.Setting, "threads/") {
			back.write = func() error { return restoreThreads(a, c) }
		}
		back.Change, back.forget = tp.entry(c.Setting, c.After, c.Before, s.Why), true
		s.changes = append(s.changes, back)
	}
	if len(s.changes) == 0 {
		return nil
	}
	return []step{s}
}

func restoreThreads(a *measure.Attachment, c journal.Change) error {
	var errs []error
	for _, q := range a.Queues {
		if q.Thread == 0 {
			continue
		}
		if c.Setting == policyOf {
			errs = append(errs, setPolicy(q.Thread, c.Before))
			continue
		}
		list, err := parseCPUs(c.Before)
		if err == nil {
			err = setAffinity(q.Thread, list)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
