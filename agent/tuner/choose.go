package tuner

import (
	"fmt"
	"time"

	"github.com/tapir-cni/tapir/tap"
)

// What keeps the choice from flapping. A change needs the same other rule in two samples in a row and over a time, which grows with the
// number of changes in the last minute; and there are never more than maxChanges in one.
const (
	maxChanges  = 6
	window      = time.Minute
	confirm     = 900 * time.Millisecond
	confirmCalm = 10 * time.Second // before a rule for few frames: a pause is no end
)

// margins are how far traffic must leave a rule's bounds before another is thought of.
const (
	sizeMargin = 0.1
	rateMargin = 0.25
)

// confirmAfter is the time after so many changes in the last minute; of the ones that are missing, none.
var confirmAfter = [maxChanges]time.Duration{confirm, confirm, confirm, confirm, 3 * time.Second, 8 * time.Second}

// chooser is the choice of one TAP. It is driven by samples alone, and knows no clock.
type chooser struct {
	rules   []tap.Rule
	current int // index in rules

	candidate int // what the last samples say; current where they agree with it
	since     time.Time
	changes   []time.Time // in the last minute
}

func newChooser(rules []tap.Rule) *chooser {
	c := &chooser{rules: rules}
	c.current = c.choose(tap.Traffic{MTU: 1500})
	c.candidate = c.current
	return c
}

func (c *chooser) rule() tap.Rule { return c.rules[c.current] }

func (c *chooser) choose(t tap.Traffic) int {
	for i, r := range c.rules {
		if r.Applies(t) {
			return i
		}
	}
	return len(c.rules) - 1
}

// adopt takes the first rule whose setting is what the TAP has already, and tells whether there is one.
func (c *chooser) adopt(s tap.Setting) bool {
	for i, r := range c.rules {
		if device(r.Setting) == device(s) {
			c.current, c.candidate = i, i
			return true
		}
	}
	return false
}

// device is what of a setting belongs to the device.
func device(s tap.Setting) tap.Setting {
	return tap.Setting{Threaded: s.Threaded, GROFlushTimeout: s.GROFlushTimeout, DeferHardIRQs: s.DeferHardIRQs}
}

// step takes the traffic since the last sample, and tells whether another rule applies from now on.
func (c *chooser) step(at time.Time, t tap.Traffic) (why string, changed bool) {
	for len(c.changes) > 0 && at.Sub(c.changes[0]) >= window {
		c.changes = c.changes[1:]
	}
	next := c.choose(t)
	if next == c.current || c.near(t) {
		c.candidate = c.current
		return "", false
	}
	if next != c.candidate {
		c.candidate, c.since = next, at
		return "", false
	}
	if len(c.changes) >= maxChanges {
		return "", false
	}
	need := confirmAfter[len(c.changes)]
	if r := c.rules[next]; r.FramesBelow > 0 && r.SizeBelow == 0 {
		need = max(need, confirmCalm)
	}
	if at.Sub(c.since) < need {
		return "", false
	}
	c.current = next
	c.changes = append(c.changes, at)
	return fmt.Sprintf("%.0f frames/s of %.0f bytes: %s", t.FramesPerSecond, t.BytesPerFrame, c.rule().Why), true
}

// undecided tells whether the last sample said something else than what is.
func (c *chooser) undecided() bool { return c.candidate != c.current }

// near tells whether the traffic is so close to what the current rule is for that it stays. Frames of the MTU's size are not close to
// larger ones: there are none between.
func (c *chooser) near(t tap.Traffic) bool {
	for _, size := range []float64{1 - sizeMargin, 1, 1 + sizeMargin} {
		for _, rate := range []float64{1 - rateMargin, 1, 1 + rateMargin} {
			moved := t
			moved.BytesPerFrame *= size
			if whole := float64(t.MTU + 18); t.BytesPerFrame <= whole {
				moved.BytesPerFrame = min(moved.BytesPerFrame, whole)
			}
			moved.FramesPerSecond *= rate
			if c.choose(moved) == c.current {
				return true
			}
		}
	}
	return false
}
