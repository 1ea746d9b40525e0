package measure

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/state"
)

// ipamMaxAge is how old the use of ranges may be where no state folder changed meanwhile.
const ipamMaxAge = 10 * time.Second

// ipamCache is the use of ranges, which changes with the state, and with time where addresses rest.
type ipamCache struct {
	readings uint64 // of state folders that the watch had made
	read     time.Time
	ranges   []Range
}

// readIPAM reads the use of the ranges that addresses were given out of.
func (s *Sampler) readIPAM(out *Sample) error {
	readings := s.c.Watch.Stats().Readings
	if !s.ipam.read.IsZero() && s.ipam.readings == readings && time.Since(s.ipam.read) < ipamMaxAge {
		out.IPAM = s.ipam.ranges
		return nil
	}
	var all []Range
	var errs []error
	for _, dir := range s.c.StateDirs {
		var here []Range
		err := s.stores[dir].View(context.Background(), func(tx *state.Tx) (err error) {
			here, err = ranges(tx, dir)
			return err
		})
		if err != nil {
			errs = append(errs, err)
		}
		all = append(all, here...)
	}
	if len(errs) == 0 {
		s.ipam = ipamCache{readings: readings, read: time.Now(), ranges: all}
	}
	out.IPAM = all
	return errors.Join(errs...)
}

// ranges are those of one state folder. A set's name is its ranges, "first-last," one after the other (ipam's cursorKey); sets may share some.
func ranges(tx *state.Tx, dir string) ([]Range, error) {
	seen := map[string]bool{}
	var list []Range
	err := tx.ForEachCursor(func(set string) error {
		for name := range strings.SplitSeq(strings.TrimSuffix(set, ","), ",") {
			if seen[name] {
				continue
			}
			seen[name] = true
			from, to, _ := strings.Cut(name, "-")
			first, firstErr := netip.ParseAddr(from)
			last, lastErr := netip.ParseAddr(to)
			if err := errors.Join(firstErr, lastErr); err != nil {
				return fmt.Errorf("range %q of the state: %w", name, err)
			}
			use, err := tx.Usage(first, last)
			if err != nil {
				return err
			}
			list = append(list, Range{Dir: dir, Range: name, Size: size(first, last), Leased: use.Leased, Resting: use.Resting})
		}
		return nil
	})
	return list, err
}

// size is how many addresses there are from first to last; the largest number there is where they are more.
func size(first, last netip.Addr) uint64 {
	n := new(big.Int).Sub(new(big.Int).SetBytes(last.AsSlice()), new(big.Int).SetBytes(first.AsSlice()))
	if n.Add(n, big.NewInt(1)); !n.IsUint64() {
		return 1<<64 - 1
	}
	return n.Uint64()
}
