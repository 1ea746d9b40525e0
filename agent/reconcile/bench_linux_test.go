package reconcile_test

import (
	"testing"

	"github.com/tapir-cni/tapir/plugin"
	"github.com/tapir-cni/tapir/state"
)

// What a look at everything costs is this much for each attachment.
func BenchmarkLook(b *testing.B) {
	requireNode(b)
	p := add(b, `"ipMasq": true, "xdp": {"mode": "auto"},`)
	rec := p.recorded()
	d := plugin.Drift{StateDir: p.dir, BPFFS: bpffs}
	for b.Loop() {
		if got, err := d.Look(rec); err != nil || len(got) > 0 {
			b.Fatal(got, err)
		}
	}
}

func BenchmarkDead(b *testing.B) {
	requireNode(b)
	var recs []state.Attachment
	for range 50 {
		recs = append(recs, add(b, "").recorded())
	}
	for b.Loop() {
		if got, err := plugin.Dead(state.DefaultDir, recs); err != nil || len(got) > 0 {
			b.Fatal(got, err)
		}
	}
}

func BenchmarkStrays(b *testing.B) {
	requireNode(b)
	for range 50 {
		add(b, "")
	}
	for b.Loop() {
		if got, err := plugin.Strays(b.Context(), []string{state.DefaultDir}, bpffs); err != nil || len(got) > 0 {
			b.Fatal(got, err)
		}
	}
}
