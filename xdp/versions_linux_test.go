package xdp

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
)

// A remover must not fail for ever where the counters' pin is gone.
func TestDeleteWithoutTheCountersPin(t *testing.T) {
	dir := testDir(t)
	loseAPin(t, dir, redirectMapCounters)
	p, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Delete(40, 41); err != nil {
		t.Error(err)
	}
	if _, err := p.Lookup(40); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the endpoint is still there: %v", err)
	}
}

// A clean-up lists and deletes the entries of every version, also of one whose endpoints are larger.
func TestIndexesOfAnotherLayout(t *testing.T) {
	dir := testDir(t)
	other := filepath.Join(dir, versionPrefix+"0123456789abcdef")
	if err := os.MkdirAll(other, 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 500, MaxEntries: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, ifindex := range []uint32{7, 3} {
		if err := m.Put(ifindex, make([]byte, 500)); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Pin(filepath.Join(other, redirectMapEndpoints)); err != nil {
		t.Fatal(err)
	}
	p, err := OpenVersion(dir, "0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	got, err := p.Indexes()
	if want := []uint32{3, 7}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Indexes: %v, %v, want %v", got, err, want)
	}
	if err := p.Delete(3, 7); err != nil {
		t.Error(err)
	}
	if got, err := p.Indexes(); err != nil || len(got) > 0 {
		t.Errorf("Indexes after Delete: %v, %v, want none", got, err)
	}
}

// The counters of pods that run with another version's programs are read all the same: a version more or less knows a reason more or
// less.
func TestCountersOfAnotherLayout(t *testing.T) {
	dir := testDir(t)
	other := filepath.Join(dir, versionPrefix+"0123456789abcdef")
	if err := os.MkdirAll(other, 0o700); err != nil {
		t.Fatal(err)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	type counts [int(redirectReasonREASON_MAX) + 2]Counter
	for name, spec := range map[string]*ebpf.MapSpec{
		redirectMapEndpoints: {Type: ebpf.Hash, KeySize: 4, ValueSize: 500, MaxEntries: 8},
		redirectMapCounters:  {Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: uint32(len(counts{}) * 16), MaxEntries: 8},
	} {
		m, mapErr := ebpf.NewMap(spec)
		if mapErr != nil {
			t.Fatal(mapErr)
		}
		defer m.Close()
		if name == redirectMapCounters {
			values := make([]counts, cpus)
			for i := range values {
				values[i][ReasonSpoofMAC] = Counter{Frames: 2, Bytes: 120}
				values[i][redirectReasonREASON_MAX+1] = Counter{Frames: 1, Bytes: 60}
			}
			if err := m.Put(uint32(7), values); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Pin(filepath.Join(other, name)); err != nil {
			t.Fatal(err)
		}
	}
	p, err := OpenVersion(dir, "0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	n := uint64(cpus)
	want := map[Reason]Counter{ReasonSpoofMAC: {2 * n, 120 * n}, Reason(redirectReasonREASON_MAX + 1): {n, 60 * n}}
	got, err := p.Counters(7)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("counters (-want +got): %v\n%s", err, diff)
	}
	if _, err := p.Counters(8); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("counters of nobody: %v, want fs.ErrNotExist", err)
	}
}
