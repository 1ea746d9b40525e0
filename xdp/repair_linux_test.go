package xdp

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
)

// loseAPin reserves an attachment, removes one pin, and gives the version's programs from before.
func loseAPin(t *testing.T, dir, name string) *Programs {
	t.Helper()
	p := mustEnsure(t, dir)
	if err := p.Reserve(attachment(40, 41)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(p.dir, name)); err != nil {
		t.Fatal(err)
	}
	return p
}

// Whatever single pin is lost, the next Ensure puts all in place again, and what is attached is in the same maps still.
func TestEnsureCompletesAVersionThatLostAPin(t *testing.T) {
	for _, name := range []string{redirectMapEndpoints, redirectMapCounters, redirectProgGuestIngress, redirectProgPodIngress, redirectProgHostIngress} {
		t.Run(name, func(t *testing.T) {
			dir := testDir(t)
			before := loseAPin(t, dir, name)
			guest := func(p *Programs) ebpf.ProgramID {
				prog, err := p.program(RoleGuest)
				if err != nil {
					t.Fatal(err)
				}
				id, err := programID(prog)
				if err != nil {
					t.Fatal(err)
				}
				return id
			}
			after := mustEnsure(t, dir)
			comparePins(t, dir)
			if _, err := after.Lookup(40); err != nil {
				t.Errorf("the endpoint of the running attachment: %v", err)
			}
			if _, err := after.Counters(40); err != nil {
				t.Errorf("the counters of the running attachment: %v", err)
			}
			if err := after.Reserve(attachment(50, 51)); err != nil {
				t.Errorf("the next attachment: %v", err)
			}
			if name == redirectProgGuestIngress {
				guest(after)
			} else if a, b := guest(before), guest(after); a != b {
				t.Errorf("guest program %d, want the attached one, %d", b, a)
			}
		})
	}
}
