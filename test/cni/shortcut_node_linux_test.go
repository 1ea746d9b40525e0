package cni_test

import (
	"path/filepath"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/xdp"
)

// shortcut opens the pinned shortcut, which must be there.
func (n *node) shortcut() *xdp.Shortcut {
	n.t.Helper()
	s, err := xdp.OpenShortcut(pinDir)
	mustDo(n.t, err)
	n.t.Cleanup(func() { _ = s.Close() })
	return s
}

// tapIndex is the ifindex of the pod's TAP.
func (p *pod) tapIndex() (index int) {
	p.n.t.Helper()
	testnode.In(p.n.t, p.netns, func() { index = link(p.n.t, "tap-"+p.ifName).Attrs().Index })
	return index
}

// paths are the shortcut's counters of the pod's frames.
func (n *node) paths(p *pod) map[xdp.ShortcutReason]xdp.Counter {
	n.t.Helper()
	c, err := n.shortcut().ShortcutCounters(uint32(p.tapIndex()))
	mustDo(n.t, err)
	return c
}

// taken is how many of the pod's frames took the shortcut.
func (n *node) taken(p *pod) (frames uint64) {
	n.t.Helper()
	for reason, c := range n.paths(p) {
		if reason.Taken() {
			frames += c.Frames
		}
	}
	return frames
}

// wantTaken wants frames of the pod to have taken the shortcut, or none; where it is off, nothing of it is pinned.
func (n *node) wantTaken(t *testing.T, p *pod, on, some bool) {
	t.Helper()
	if !on {
		if pins, err := filepath.Glob(filepath.Join(pinDir, "*", "guest_xdp")); err != nil || len(pins) > 0 {
			t.Errorf("the shortcut is off, and pinned: %q, %v", pins, err)
		}
		return
	}
	switch frames := n.taken(p); {
	case some && frames == 0:
		t.Errorf("%s: no frame took the shortcut: %v", p.id, n.paths(p))
	case !some && frames > 0:
		t.Errorf("%s: %d frames took the shortcut, want none: %v", p.id, frames, n.paths(p))
	}
}
