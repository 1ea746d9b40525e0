package tuner

import (
	"testing"
	"time"
)

// drive gives a ring a sample a second and sets what it says, unless the node does not do as it says.
func drive(r *ring, at *time.Time, n int, f flow, p Ring) (resizes int) {
	for range n {
		*at = at.Add(time.Second)
		if length, why := r.step(*at, f, p); length != r.length {
			if why == "" {
				panic("a resize without a reason")
			}
			r.set(*at, length, p)
			resizes++
		}
	}
	return resizes
}

func newRing() (*ring, time.Time, Ring) {
	return &ring{base: 1000, length: 1000}, epoch, Profile{}.whole().Ring
}

var (
	calm  = flow{taken: 50e3}
	drops = flow{taken: 50e3, dropped: 500}
)

func TestOneBurstOfDropsChangesNothing(t *testing.T) {
	r, at, p := newRing()
	for range 20 {
		drive(r, &at, 2, drops, p)
		drive(r, &at, 1, calm, p)
	}
	if r.length != 1000 {
		t.Errorf("want 1000, got %d", r.length)
	}
}

func TestDropsThatLastGrowTheRingUpToItsBound(t *testing.T) {
	r, at, p := newRing()
	if n := drive(r, &at, 3, drops, p); n != 1 || r.length != 2000 {
		t.Fatalf("want 2000 after 3 samples, got %d", r.length)
	}
	drive(r, &at, 20, flow{50e3, 200}, p)
	if r.length != 4000 {
		t.Errorf("want 4000 while that helps, got %d", r.length)
	}
	if n := drive(r, &at, 100, flow{50e3, 60}, p); n != 0 {
		t.Errorf("want no more than the bound, got %d", r.length)
	}
	if drive(r, &at, 299, calm, p); r.length != 4000 {
		t.Errorf("want it kept for 5 minutes, got %d", r.length)
	}
	if n := drive(r, &at, 5, calm, p); n != 1 || r.length != 1000 {
		t.Errorf("want it given back in one go, got %d by %d", r.length, n)
	}
}

// A guest that is too slow for what comes drops with every ring.
func TestARingThatDoesNotHelpDoesNotGrowOn(t *testing.T) {
	r, at, p := newRing()
	if n := drive(r, &at, 200, drops, p); n != 1 || !r.useless {
		t.Errorf("want one growth, got %d, length %d", n, r.length)
	}
}

func TestAGuestThatTakesNothingIsNotHelped(t *testing.T) {
	r, at, p := newRing()
	if n := drive(r, &at, 50, flow{0, 5000}, p); n != 0 {
		t.Errorf("want no growth, got %d", n)
	}
}

// Whatever comes: a few resizes in ten minutes, never below what it was, never above the bound.
func FuzzRingNeverFlaps(f *testing.F) {
	f.Add([]byte{200, 200, 200, 10, 10, 10, 0, 0, 0, 0, 200, 200, 200})
	f.Fuzz(func(t *testing.T, data []byte) {
		r, at, p := newRing()
		p.GiveBack = Duration(time.Second)
		var times []time.Time
		for i := range 20 * len(data) {
			at = at.Add(time.Second)
			length, _ := r.step(at, flow{50e3, uint64(data[i%len(data)]) * 40}, p)
			if length < r.base || length > p.Max {
				t.Fatalf("length %d", length)
			}
			if length == r.length {
				continue
			}
			r.set(at, length, p)
			times = append(times, at)
			if k := len(times) - 1 - maxResizes; k >= 0 && at.Sub(times[k]) < resizeSpan {
				t.Fatalf("want at most %d resizes in %s, got %v", maxResizes, resizeSpan, times[k:])
			}
		}
	})
}
