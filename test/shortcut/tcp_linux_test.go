package shortcut_test

import (
	"testing"

	"github.com/tapir-cni/tapir/test/bench/guest"
)

// bulk is what one transfer moves each way, in bytes.
const bulk = 4 << 20

// TCP is right whatever the cards of both guests do, and takes the shortcut: single frames by XDP, those of several segments by
// tc. With the shortcut off the same transfers go by the default path alone.
func TestTCP(t *testing.T) {
	for _, how := range []struct{ mode, redirect string }{{"native", "auto"}, {"native", "clsact"}, {"generic", "auto"}, {"off", "auto"}} {
		t.Run(how.mode+", "+how.redirect, func(t *testing.T) {
			n, mode := newNode(t), how.mode
			c := conf(mode, object{"redirect": how.redirect})
			a, b := n.boot("a", c), n.boot("b", c)
			for _, tt := range []struct {
				name string
				a, b int // cards
				mss  int
			}{
				{"no offloads", guest.OffloadNone, guest.OffloadNone, 0},
				{"checksums alone", guest.OffloadChecksum, guest.OffloadChecksum, 0},
				{"TSO", guest.OffloadTSO, guest.OffloadTSO, 0},
				{"TSO, small segments", guest.OffloadTSO, guest.OffloadTSO, 300},
				{"TSO to none", guest.OffloadTSO, guest.OffloadNone, 0},
				{"TSO to none, small segments", guest.OffloadTSO, guest.OffloadNone, 300},
			} {
				if how.redirect == "clsact" && tt.name != "TSO" { // where tc's part is the larger
					continue
				}
				a.offload(tt.a)
				b.offload(tt.b)
				for family, name := range families {
					what := tt.name + ", " + name
					size := int64(bulk)
					if tt.mss > 0 {
						size /= 8
					}
					ofA, ofB := both(a, b, func() {
						if err := a.move(b.server(family), size, connection{mss: tt.mss}); err != nil {
							t.Errorf("%s: %v", what, err)
						}
					})
					wantTCP(t, what+", from a", ofA, mode, tt.a)
					wantTCP(t, what+", from b", ofB, mode, tt.b)
				}
			}
			for _, m := range []*machine{a, b} {
				if r := m.row(); r.Mode != mode {
					t.Errorf("%s: mode %q, want %q: %s", m.id, r.Mode, mode, r.Why)
				}
			}
		})
	}
}

// wantTCP wants a sender's frames where they belong by the mode and what its card does.
func wantTCP(t *testing.T, what string, w ways, mode string, card int) {
	t.Helper()
	switch {
	case mode == "off":
		if len(w) > 0 {
			t.Errorf("%s: with the shortcut off, got %v", what, w)
		}
		return
	case card == guest.OffloadNone:
		w.wantTaken(t, what, "xdp_to_guest")
	case mode == "native": // acknowledgements are single frames, whose checksum the card leaves partial
		w.wantTaken(t, what, "xdp_to_guest", "xdp_checksum_completed")
	default: // a partial checksum is the skb's in generic mode
		w.wantTaken(t, what, "tc_to_guest", "xdp_pass_checksum")
	}
	if card == guest.OffloadTSO {
		w.wantTaken(t, what, "tc_to_guest", "xdp_pass_generic")
	}
	if n := w["tc_pass_conntrack"] + w["xdp_pass_conntrack"]; n > 0 {
		t.Errorf("%s: conntrack knew %d frames' flows: %v", what, n, w)
	}
}
