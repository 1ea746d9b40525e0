package tuner

import (
	"fmt"
	"time"
)

// A ring grows on drops that last: in so many samples in a row, each with at least so many and so large a part of all frames.
const (
	dropSamples = 3
	dropFrames  = 10
	dropPart    = 0.001

	growPause   = 5 * time.Second  // between two growths
	stillDrops  = 0.7              // growing brought nothing where this part of the drops is still there
	maxResizes  = 6                // within resizeSpan
	resizeSpan  = 10 * time.Minute //
	maxGiveBack = time.Hour
)

// ring is the length of one TAP's ring. It is driven by samples alone.
type ring struct {
	base   int // as it was before it was grown
	length int // as it is

	dropping int     // samples in a row
	part     float64 // of the frames that were dropped in those
	grown    float64 // part before the last growth; 0: it has not grown since drops ended
	useless  bool    // growing did not help: until drops end
	dropped  time.Time
	resized  []time.Time
	wait     time.Duration // before the length is given back; 0: the profile's
}

// flow is what a sample adds: frames that the guest took, and those that found no room.
type flow struct{ taken, dropped uint64 }

// step tells which length the ring should have; the same where nothing is to be done.
func (r *ring) step(at time.Time, f flow, p Ring) (length int, why string) {
	for len(r.resized) > 0 && at.Sub(r.resized[0]) >= resizeSpan {
		r.resized = r.resized[1:]
	}
	if f.dropped > 0 {
		r.dropped = at
	}
	part := float64(f.dropped) / float64(max(f.taken+f.dropped, 1))
	if f.dropped < dropFrames || part < dropPart || f.taken == 0 { // a guest that takes nothing is not helped by room
		r.dropping = 0
		if length, why := r.giveBack(at, p); length != r.length {
			return length, why
		}
		return r.length, ""
	}
	r.dropping++
	if r.part = part; r.dropping < dropSamples || r.useless || 2*r.length > p.Max || len(r.resized) >= maxResizes-1 { // one is for giving back
		return r.length, ""
	}
	if n := len(r.resized); n > 0 && at.Sub(r.resized[n-1]) < growPause {
		return r.length, ""
	}
	if r.grown > 0 && part > stillDrops*r.grown {
		r.useless = true
		return r.length, ""
	}
	return 2 * r.length, fmt.Sprintf("%.1f %% of the frames to the guest found no room in %d samples in a row", 100*part, r.dropping)
}

// giveBack is the length after a time without drops.
func (r *ring) giveBack(at time.Time, p Ring) (int, string) {
	wait := max(r.wait, time.Duration(p.GiveBack))
	if r.length <= r.base || r.dropped.IsZero() || at.Sub(r.dropped) < wait || len(r.resized) >= maxResizes {
		return r.length, ""
	}
	return r.base, fmt.Sprintf("no drop for %s", wait)
}

// set says that the ring has another length now.
func (r *ring) set(at time.Time, length int, p Ring) {
	if length > r.length {
		r.grown = r.part
	} else {
		r.wait = min(2*max(r.wait, time.Duration(p.GiveBack)), max(maxGiveBack, time.Duration(p.GiveBack)))
		r.grown, r.useless = 0, false
	}
	r.length, r.dropping = length, 0
	r.resized = append(r.resized, at)
}

// busy tells whether the next samples matter.
func (r *ring) busy() bool { return r.dropping > 0 }
