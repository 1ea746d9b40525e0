package reconcile

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAThingIsDueAfterSeveralLooksAndTheGraceTime(t *testing.T) {
	const grace = time.Minute
	start := time.Now()
	l := ledger{}
	looks := 0
	for at := start; looks < 100; looks++ { // by the ledger's own times, none of which is past the grace time
		if due := l.see(at, grace, []string{"a"}); len(due) > 0 {
			if took := at.Sub(start); took != grace || l["a"].n < sightings {
				t.Errorf("due after %v and %d looks", took, l["a"].n)
			}
			return
		}
		next := l.next(grace)
		if !next.After(at) || next.After(start.Add(grace)) {
			t.Fatalf("next look: got %v after the start, at %v", next.Sub(start), at.Sub(start))
		}
		at = next
	}
	t.Error("it is never due")
}

func TestLooksThatFollowCloselyCountOnce(t *testing.T) {
	l, now := ledger{}, time.Now()
	for i := range 1000 {
		l.see(now.Add(time.Duration(i)*time.Microsecond), time.Minute, []string{"a"})
	}
	if l["a"].n != 1 {
		t.Errorf("want one, got %d", l["a"].n)
	}
	if due := l.see(now.Add(time.Hour), time.Minute, []string{"a"}); len(due) != 0 { // after a pause, as of a suspended machine
		t.Errorf("two looks are enough: %q", due)
	}
}

func TestWhatWasSeenAliveBeginsAnew(t *testing.T) {
	const grace = time.Minute
	l, now := ledger{}, time.Now()
	for i := range 6 {
		found := []string{"a", "b"}
		if i == 3 {
			found = []string{"b"}
		}
		due := l.see(now.Add(time.Duration(i)*grace/5), grace, found)
		if slices.Contains(due, "a") || slices.Contains(due, "b") != (i == 5) {
			t.Errorf("look %d: due %q", i, due)
		}
	}
}

// Readings of the clock that were taken in this process have a monotonic part, and that alone is compared.
func TestAJumpOfTheClockMakesNothingOlder(t *testing.T) {
	l, now := ledger{}, time.Now()
	l.see(now, time.Minute, []string{"a"})
	if !strings.Contains(now.String(), " m=") {
		t.Fatal("the reading has no monotonic part")
	}
	if !strings.Contains(l["a"].first.String(), " m=") {
		t.Error("the ledger lost the monotonic part: a jump of the clock would count")
	}
}

func TestRepairsAreBoundedByTime(t *testing.T) {
	l, now := limiter{}, time.Now()
	for i := range 3 {
		if !l.allow("a", now.Add(time.Duration(i)*time.Minute), 3, time.Hour) {
			t.Errorf("repair %d is refused", i)
		}
	}
	if l.allow("a", now.Add(59*time.Minute), 3, time.Hour) || !l.allow("b", now, 3, time.Hour) || !l.allow("a", now.Add(61*time.Minute), 3, time.Hour) {
		t.Error("want the fourth refused within the hour, another thing's and a later one allowed")
	}
	l.prune(now.Add(3*time.Hour), time.Hour)
	if len(l) != 0 {
		t.Errorf("want nothing kept, got %v", l)
	}
}
