package reconcile

import (
	"slices"
	"time"
)

// sightings is how often a thing must be seen dead before it is removed, in looks that are well apart.
const sightings = 3

// ledger remembers since when things look dead. Times are of the monotonic clock (package time), so that no jump of the wall clock makes
// a thing older.
type ledger map[string]*sighting

type sighting struct {
	first, last time.Time
	n           int
}

// see takes one look, which found those things dead, and gives those that have been so for the grace time. What it did not find is forgotten.
func (l ledger) see(now time.Time, grace time.Duration, found []string) (due []string) {
	for name := range l {
		if !slices.Contains(found, name) {
			delete(l, name)
		}
	}
	for _, name := range found {
		s := l[name]
		if s == nil {
			s = &sighting{first: now, last: now, n: 1}
			l[name] = s
		} else if now.Sub(s.last) >= grace/(2*sightings) {
			s.last = now
			s.n++
		}
		if s.n >= sightings && now.Sub(s.first) >= grace {
			due = append(due, name)
		}
	}
	return due
}

// again tells whether a thing looked dead more than once.
func (l ledger) again(name string) bool { return l[name] != nil && l[name].n > 1 }

// next is when to look again; zero where there is nothing to wait for. What is due and is there all the same could not be removed, or
// is reported alone: the next full pass sees it.
func (l ledger) next(grace time.Duration) (at time.Time) {
	for _, s := range l {
		t := s.last.Add(grace / sightings)
		if end := s.first.Add(grace); s.n >= sightings {
			if s.last.Sub(s.first) >= grace {
				continue
			}
			t = end
		}
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	return at
}

// limiter bounds repairs of one thing: what comes back is the work of others, and they are not fought.
type limiter map[string][]time.Time

// allow counts a repair, unless there were as many as most within per.
func (l limiter) allow(name string, now time.Time, most int, per time.Duration) bool {
	list := slices.DeleteFunc(l[name], func(t time.Time) bool { return now.Sub(t) >= per })
	if len(list) >= most {
		l[name] = list
		return false
	}
	l[name] = append(list, now)
	return true
}

// prune forgets what is long past.
func (l limiter) prune(now time.Time, per time.Duration) {
	for name, list := range l {
		if len(list) == 0 || now.Sub(list[len(list)-1]) >= per {
			delete(l, name)
		}
	}
}
