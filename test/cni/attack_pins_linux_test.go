package cni_test

import (
	"os"
	"path/filepath"
	"testing"
)

// Somebody deletes the pins under running pods. Their programs go on with the maps that they have; a flag that cannot reach those
// must not be taken for set, later ADDs make new maps, and "tapirctl xdp on" brings the pods and the uplink back together.
func TestPinsDeletedUnderRunningPods(t *testing.T) {
	n := newNode(t)
	c := withShortcut("auto").with(object{"xdp": object{"mode": "auto", "uplink": "up0"}})
	a, b := n.pod("a", c), n.pod("b", c)
	ga, gb := boot(a, a.add()), boot(b, b.add())
	ga.wantPing(gb.ip[true], gb.ip[false])
	n.wantTaken(t, a, true, true)

	left, err := filepath.Glob(filepath.Join(pinDir, "*"))
	mustDo(t, err)
	for _, path := range left {
		mustDo(t, os.RemoveAll(path))
	}
	ga.wantPing(gb.ip[true], gb.ip[false])
	if out := n.ctl("xdp", "flag", a.id); out.code == 0 {
		t.Errorf("a flag in maps that are not to be found: %s", out)
	}
	d := n.pod("d", c)
	gd := boot(d, d.add())
	if out := n.ctl("xdp", "flag", a.id); out.code == 0 {
		t.Errorf("a flag in maps that its programs do not read: %s", out)
	}
	for _, g := range []*guest{ga, gb} {
		g.wantPing(gd.ip[true], gd.ip[false])
		gd.wantPing(g.ip[true], g.ip[false])
	}
	ga.wantPing(gb.ip[true], gb.ip[false])
	var uplinks []struct{ Current bool }
	n.ctlJSON(&uplinks, "xdp", "uplink", "status")
	if len(uplinks) != 1 || !uplinks[0].Current {
		t.Errorf("uplinks after an ADD: %+v, want the program of the new pins", uplinks)
	}
	for _, p := range []*pod{a, b} {
		if out := n.ctl("xdp", "on", p.id); out.code != 0 {
			t.Errorf("on: %s", out)
		}
	}
	ga.wantPing(gd.ip[true], gb.ip[false])
	if row := a.xdpRow(); !row.Flagged || row.Taken > 0 {
		t.Errorf("the flag that was asked for before: %+v", row)
	}
	if out := n.ctl("xdp", "unflag", a.id); out.code != 0 {
		t.Errorf("unflag: %s", out)
	}
	ga.wantPing(gd.ip[true], gb.ip[false])
	n.wantTaken(t, a, true, true)
	for _, p := range []*pod{a, b, d} {
		p.works("DEL", nil)
	}
	if left := shortcutLines(t); len(left) > 0 {
		t.Errorf("after DEL the shortcut still has %q", left)
	}
	n.ctl("cleanup", "--yes")
}
