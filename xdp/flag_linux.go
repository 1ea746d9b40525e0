package xdp

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// SetNoShortcut flags a participant, or takes the flag away. It acts on the next frame, in the middle of flows. A flow
// that had the default path since then keeps it.
func (s *Shortcut) SetNoShortcut(tap uint32, no bool) error {
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	v, err := s.attachment(tap)
	if err != nil {
		return fmt.Errorf("flag TAP %d: %w", tap, err)
	}
	v.Flags &^= flagNoShortcut
	if no {
		v.Flags |= flagNoShortcut
	} else if err := s.newEpoch(); err != nil { // before the first frame may take the shortcut again
		return err
	}
	m, err := s.ownMap(shortcutMapAttachments)
	if err != nil {
		return err
	}
	var errs []error
	for _, ifindex := range []uint32{v.Tap, v.Host} {
		if err := m.Update(ifindex, v, ebpf.UpdateExist); err != nil {
			errs = append(errs, fmt.Errorf("flag ifindex %d: %w", ifindex, err))
		}
	}
	return errors.Join(append(errs, s.flagPods(v))...)
}

// flagPods rewrites the entries of map pods that lead to the attachment.
func (s *Shortcut) flagPods(v shortcutAttachment) error {
	pods, err := s.ownMap(shortcutMapPods)
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range v.addresses() {
		var old shortcutPod
		err := pods.Lookup(mapped(a), &old)
		if errors.Is(err, ebpf.ErrKeyNotExist) || err == nil && old.Tap != v.Tap {
			continue
		}
		if err == nil {
			err = pods.Update(mapped(a), v.pod(a), ebpf.UpdateExist)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("flag address %s: %w", a, err))
		}
	}
	return errors.Join(errs...)
}

// NoShortcut says whether a participant is flagged.
func (s *Shortcut) NoShortcut(tap uint32) (bool, error) {
	p, err := s.Participant(tap)
	return p.NoShortcut, err
}
