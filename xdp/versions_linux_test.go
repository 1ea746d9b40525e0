package xdp

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
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
