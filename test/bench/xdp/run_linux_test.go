package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
)

func TestMain(m *testing.M) { testnode.MainWithCommands(m, "tapir", "tapir-ipam", "tapirctl") }

// sandboxes makes netns that the test removes.
type sandboxes struct{ t *testing.T }

func (s sandboxes) NewNetnses(count int) ([]string, error) {
	paths := make([]string, count)
	for i := range paths {
		paths[i] = testnode.NewNetns(s.t)
	}
	return paths, nil
}

// short are options for rounds that only show that everything works.
func short(t *testing.T) options {
	t.Helper()
	testnode.Require(t, "root", "bpf", "btf", "tun")
	o := options{rounds: 1, duration: 40 * time.Millisecond, bin: os.Getenv(testnode.BinDirEnv), refplugins: os.Getenv("TAPIR_REFPLUGINS")}
	if o.refplugins == "" {
		if testnode.Required("refplugins") {
			t.Fatal("TAPIR_REFPLUGINS is not set")
		}
		t.Skip(`needs the reference plugins: TAPIR_REFPLUGINS, "make refplugins"`)
	}
	t.Cleanup(func() {
		for _, command := range [][]string{{"ip", "link", "del", "bench0"}, {filepath.Join(o.bin, "tapirctl"), "cleanup", "--yes"}} {
			if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", strings.Join(command, " "), err, out)
			}
		}
	})
	return o
}

// Each forwarding variant must deliver; paths and drops are checked by the measurements themselves.
func TestEachVariantIsMeasured(t *testing.T) {
	o := short(t)
	report, err := measure(o, sandboxes{t}, tests)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range tests {
		for _, c := range one.cases {
			for _, variant := range one.variants {
				for _, metric := range one.metrics {
					if variant == dropped && metric == delivered {
						continue
					}
					s := report.find(one.name, c.name, variant, metric)
					if s == nil || len(s.Values) != 1 || s.Values[0] <= 0 {
						t.Errorf("%s, %s, %s: want one %s above 0, got %+v", one.name, c.name, variant, metric, s)
					}
				}
			}
		}
	}
	if len(report.Goals) != 8 {
		t.Errorf("want all 8 goals judged, got %v", report.Goals)
	}
}

// The checks of the path must be able to fail.
func TestPathsThatAreNotTheVariantsAreErrors(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
	}{
		{"a shortcut whose frames reach the node", passages{host: 500}.sent(shortcut, 1000)},
		{"a default path whose frames do not", passages{host: 500}.sent(routed, 1000)},
		{"a bridge whose frames do not", passages{host: 500}.sent(bridged, 1000)},
		{"a limit that drops half", passages{tapDropped: 500}.sent(dropped, 1000)},
		{"forged frames that XDP did not drop", passages{tapDropped: 500}.forged(shortcut, 1000)},
		{"forged frames that reach the node", passages{host: 500}.forged(routed, 1000)},
		{"forged frames that the node did not drop", passages{host: 1000, hostShot: 500}.forged(guarded, 1000)},
		{"a shortcut that took half", shortcutRow{Mode: "native", Taken: 500}.check(shortcut, 1000)},
		{"a shortcut that never ran", shortcutRow{Mode: "native"}.check(shortcut, 0)},
		{"a generic shortcut", shortcutRow{Mode: "generic", Taken: 1000}.check(shortcut, 1000)},
		{"a default path that took the shortcut", shortcutRow{Mode: "off", Taken: 1}.check(routed, 1000)},
	} {
		if tt.err == nil {
			t.Errorf("%s: want an error, got none", tt.name)
		}
	}
	for _, err := range []error{
		passages{host: 20}.sent(shortcut, 1000), passages{host: 1001}.sent(routed, 1000), passages{tapDropped: 1000}.sent(dropped, 1000),
		passages{tapDropped: 1000}.forged(shortcut, 1000), passages{host: 1000, hostShot: 1000}.forged(guarded, 1000),
		shortcutRow{Mode: "native", Taken: 1200}.check(shortcut, 1000), shortcutRow{Mode: "off"}.check(routed, 1000),
	} {
		if err != nil {
			t.Errorf("want no error, got %v", err)
		}
	}
}
