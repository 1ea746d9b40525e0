package main

import (
	"os"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/xdp"
)

// Each reason of the shortcut is explained, in a trace and in docs/xdp.md, and nothing else is.
func TestEveryReasonOfTheShortcutIsExplained(t *testing.T) {
	doc, err := os.ReadFile("../../docs/xdp.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, r := range xdp.ShortcutReasons() {
		name := strings.TrimPrefix(strings.TrimPrefix(r.String(), "xdp_"), "tc_")
		known[name] = true
		if meanings[name] == "" {
			t.Errorf("%s: a trace does not explain it", r)
		}
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("%s: docs/xdp.md does not explain it", r)
		}
	}
	for name := range meanings {
		if !known[name] {
			t.Errorf("%s is explained, and no reason", name)
		}
	}
	if len(known) < 20 {
		t.Errorf("want all reasons walked, got %d", len(known))
	}
}
