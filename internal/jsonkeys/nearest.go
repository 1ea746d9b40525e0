package jsonkeys

import (
	"fmt"
	"slices"
	"strings"
)

// Unknown is the problem of a key that is not among known: it names the nearest one, or all where none is near.
func Unknown(key string, known []string) string {
	if near := Nearest(key, known); near != "" {
		return fmt.Sprintf("unknown key %q; did you mean %q?", key, near)
	}
	if len(known) == 0 {
		return fmt.Sprintf("unknown key %q; no key is known here", key)
	}
	return fmt.Sprintf("unknown key %q; known keys: %s", key, strings.Join(slices.Sorted(slices.Values(known)), ", "))
}

// Nearest is the known word that key was probably meant to be, empty where none is near: at most a third of the
// letters, or two, differ. Case does not count.
func Nearest(key string, known []string) string {
	best, bestDistance := "", max(2, len(key)/3)+1
	for _, word := range slices.Sorted(slices.Values(known)) {
		d := distance(strings.ToLower(key), strings.ToLower(word))
		if d < bestDistance && d < len(word) {
			best, bestDistance = word, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete, replace, or swap with their neighbour, to make b of a (optimal
// string alignment).
func distance(a, b string) int {
	from, to := []rune(a), []rune(b)
	if len(from) > 64 { // no key is as long: what is cut differs anyway
		from = from[:64]
	}
	var before []int
	last := make([]int, len(to)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(from); i++ {
		row := make([]int, len(to)+1)
		row[0] = i
		for j := 1; j <= len(to); j++ {
			cost := 1
			if from[i-1] == to[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && from[i-1] == to[j-2] && from[i-2] == to[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(to)]
}
