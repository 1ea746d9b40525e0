package reconcile

import (
	"os"
	"strings"
	"testing"
)

// docs/reconcile.md has a row for each kind, with its default, in the order of [Kinds].
func TestTheTableOfKindsIsWhatIsBuilt(t *testing.T) {
	data, err := os.ReadFile("../../docs/reconcile.md")
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, s := range specs {
		found := false
		for i, line := range strings.Split(string(data), "\n") {
			cells := strings.Split(line, "|")
			if len(cells) != 5 || strings.TrimSpace(cells[1]) != "`"+string(s.kind)+"`" {
				continue
			}
			if found = i > at; !found {
				t.Errorf("%s is not in its place", s.kind)
			}
			at = i
			if got := strings.TrimSpace(cells[3]); got != string(s.policy) {
				t.Errorf("%s: want %s, got %s", s.kind, s.policy, got)
			}
			if s.noRepair != strings.Contains(cells[2], "there is no repair") {
				t.Errorf("%s: want it to say whether there is a repair", s.kind)
			}
			found = true
		}
		if !found {
			t.Errorf("%s has no row", s.kind)
		}
	}
}

func TestPoliciesAreValidated(t *testing.T) {
	faults := map[string]string{}
	Policies{"route": Off, "ring": Repair, "rout": Off, "pins": Repair, "link": "fix"}.Validate("policies", func(path, text string) { faults[path] = text })
	for _, path := range []string{"policies.rout", "policies.pins", "policies.link"} {
		if faults[path] == "" {
			t.Errorf("%s: want a fault", path)
		}
	}
	if len(faults) != 3 {
		t.Errorf("got %v", faults)
	}
}
