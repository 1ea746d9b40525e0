package xdp

import (
	"fmt"
)

// ShortcutCounters gives the counters under a key, a TAP's ifindex or an uplink's, summed over the CPUs: reasons that
// were counted at all. Where there are none the error is [fs.ErrNotExist].
func (s *Shortcut) ShortcutCounters(key uint32) (map[ShortcutReason]Counter, error) {
	m, err := s.ownMap(shortcutMapPaths)
	if err != nil {
		return nil, err
	}
	var cpus []shortcutPathCounts
	if err := m.Lookup(key, &cpus); err != nil {
		return nil, fmt.Errorf("look up shortcut counters of ifindex %d: %w", key, notExist(err))
	}
	out := map[ShortcutReason]Counter{}
	for _, cpu := range cpus {
		for hook, reasons := range cpu.ByHook {
			for i, c := range reasons {
				if c.Frames == 0 {
					continue
				}
				r := ShortcutReason(hook)*tcReasons + ShortcutReason(i)
				sum := out[r]
				out[r] = Counter{Frames: sum.Frames + c.Frames, Bytes: sum.Bytes + c.Bytes}
			}
		}
	}
	return out, nil
}

// Refused gives what XDP dropped of a TAP's frames because the guest claimed to be somebody else, under the reasons by which
// the redirect programs count the like: [Programs.Counters] has those alone that came as far as there. A key without
// counters has none.
func (s *Shortcut) Refused(key uint32) (map[Reason]Counter, error) {
	all, err := s.ShortcutCounters(key)
	if notPinned(err) != nil {
		return nil, err
	}
	out := map[Reason]Counter{}
	for r, reason := range refused {
		if c, ok := all[r]; ok {
			out[reason] = c
		}
	}
	return out, nil
}

// refusedOnce is Refused of a shortcut that may not be pinned, and closes it.
func (s *Shortcut) refusedOnce(key uint32) (map[Reason]Counter, error) {
	defer s.Close()
	return s.Refused(key)
}
