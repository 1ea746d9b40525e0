package main

import (
	"context"
	"math/rand/v2"
)

// A turn is rows that are measured one right after the other, so that what the machine does meanwhile meets all of them.
type turn []*Row

// turns gives a round's, in random order: a pair of the row without NAPI and that of the chosen setting for each load, in random order
// too and as often as repeats says, and each other row once.
func turns(rows []*Row, repeats int) []turn {
	var all []turn
	pairs := make(map[load]turn)
	for _, r := range rows {
		if r.base() || r.chosen() {
			pairs[r.load] = append(pairs[r.load], r)
			continue
		}
		all = append(all, turn{r})
	}
	for _, pair := range pairs {
		for range repeats {
			again := append(turn(nil), pair...)
			rand.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
			all = append(all, again)
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// measureRound adds the values of one round to every row that can be measured. Its error is the context's alone.
func measureRound(ctx context.Context, rows []*Row, repeats int, measure func(*Row) (measurement, error)) error {
	measured := make(map[*Row][]measurement)
	for _, t := range turns(rows, repeats) {
		for _, r := range t {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if r.Failed != "" {
				continue
			}
			m, err := measure(r)
			if err != nil {
				r.Failed = err.Error()
				continue
			}
			measured[r] = append(measured[r], m)
		}
	}
	for r, list := range measured {
		if r.Failed == "" {
			r.add(list)
		}
	}
	return nil
}
