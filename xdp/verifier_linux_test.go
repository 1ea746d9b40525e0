package xdp

import (
	"testing"

	"github.com/cilium/ebpf"
)

// verifierShare is the part of the verifier's limit, a million instructions, that a program may use here: kernels differ in how many
// states they follow.
const verifierShare = 250_000

func TestProgramsAreFarFromTheVerifiersLimit(t *testing.T) {
	programs := map[string]*ebpf.Program{}
	p := newPrograms(t)
	for role, prog := range p.programs {
		programs[role.String()] = prog
	}
	s := newShortcutPrograms(t, false)
	for name, prog := range s.programs {
		programs[name] = prog
	}
	for name, prog := range programs {
		info, err := prog.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, ok := info.VerifiedInstructions()
		if !ok {
			t.Skip("this kernel does not tell how many instructions it verified")
		}
		t.Logf("%s: %d instructions verified", name, n)
		if n > verifierShare {
			t.Errorf("%s: %d instructions verified, want at most %d", name, n, verifierShare)
		}
	}
}
