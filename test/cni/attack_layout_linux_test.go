package cni_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// Pods of a version whose maps had another layout, by this version's commands: out of the shortcut is out for all who might lead
// frames there, and nothing stays in the old maps.
func TestModeChangeOfPodsInMapsOfAnotherLayout(t *testing.T) {
	n := newNode(t)
	c := withShortcut("auto")
	a, b := n.pod("a", c), n.pod("b", c)
	ga, gb := boot(a, a.add()), boot(b, b.add())
	ga.wantPing(gb.ip[true], gb.ip[false])
	n.wantTaken(t, a, true, true)

	const layout = "00000000000000aa"
	mustDo(t, os.Rename(filepath.Join(pinDir, "maps-"+xdp.ShortcutLayout()), filepath.Join(pinDir, "maps-"+layout)))
	mustDo(t, os.Rename(filepath.Join(pinDir, "fastpath-"+xdp.ShortcutDigest()), filepath.Join(pinDir, "fastpath-00000000000000bb")))
	for _, p := range []*pod{a, b} {
		mustDo(t, state.New(state.Config{Dir: stateDir}).Update(t.Context(), func(tx *state.Tx) error {
			rec, _, err := tx.Attachment(state.Key{Network: "pods", ContainerID: p.id, IfName: p.ifName})
			rec.XDP.Layout = layout
			if err != nil {
				return err
			}
			return tx.Put(rec)
		}))
	}
	inOld := func(want int, what string) {
		t.Helper()
		for name, each := range map[string]int{"pods": 2, "attachments": 2, "devices": 1} { // entries of an attachment
			m, err := ebpf.LoadPinnedMap(filepath.Join(pinDir, "maps-"+layout, name), nil)
			mustDo(t, err)
			got := 0
			for key := any(nil); ; got++ {
				var next []byte
				if next, err = m.NextKeyBytes(key); next == nil || err != nil {
					break
				}
				key = next
			}
			mustDo(t, err)
			mustDo(t, m.Close())
			if got != each*want {
				t.Errorf("%s: the old map %s has %d entries, want %d", what, name, got, each*want)
			}
		}
	}
	inOld(2, "before")
	if out := n.ctl("xdp", "off", a.id); out.code != 0 {
		t.Errorf("off: %s", out)
	}
	inOld(1, "after off")
	ga.wantPing(gb.ip[true], gb.ip[false])
	if out := n.ctl("xdp", "on", b.id); out.code != 0 {
		t.Errorf("on: %s", out)
	}
	inOld(0, "after on")
	if out := n.ctl("xdp", "on", a.id); out.code != 0 {
		t.Errorf("on: %s", out)
	}
	ga.wantPing(gb.ip[true], gb.ip[false])
	n.wantTaken(t, a, true, true)
	for _, p := range []*pod{a, b} {
		p.works("CHECK", nil)
		p.works("DEL", nil)
	}
	if left := shortcutLines(t); len(left) > 0 {
		t.Errorf("after DEL the shortcut still has %q", left)
	}
}
