package xdp

import (
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

func TestMain(m *testing.M) { testnode.Main(m) }

func TestSmoke(t *testing.T) {
	p, err := Ensure(DefaultDir)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Log(p.Digest())
	for r := range programNames {
		prog, err := p.program(r)
		if err != nil {
			t.Fatal(err)
		}
		info, _ := prog.Info()
		n, _ := info.VerifiedInstructions()
		t.Log(r, n)
	}
	p.Close()
	if err := Remove(DefaultDir); err != nil {
		t.Fatal(err)
	}
}
