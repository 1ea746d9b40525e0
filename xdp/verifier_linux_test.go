package xdp

import (
	"testing"

	"github.com/cilium/ebpf"
)

// verifierShare is the part of the verifier's limit, a million instructions, that a program may use here: kernels differ in how many
// states they follow.
const verifierShare = 250_000

func TestProgramsAreFarFromTheVerifiersLimit(t *testing.T) {
	for role, prog := range newPrograms(t).programs {
		wantFewStates(t, role.String(), prog)
	}
}

func TestShortcutsProgramsAreFarFromTheVerifiersLimit(t *testing.T) {
	for name, prog := range newShortcutPrograms(t, false).programs {
		wantFewStates(t, name, prog)
	}
}

func wantFewStates(t *testing.T, name string, prog *ebpf.Program) {
	t.Helper()
	info, err := prog.Info()
	if err != nil {
		t.Fatal(err)
	}
	n, ok := info.VerifiedInstructions()
	if !ok {
		t.Skip("kernels before 5.16 do not tell how many instructions they verified")
	}
	t.Logf("%s: %d instructions verified", name, n)
	if n > verifierShare {
		t.Errorf("%s: %d instructions verified, want at most %d", name, n, verifierShare)
	}
}
