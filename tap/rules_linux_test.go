package tap_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap"
	"golang.org/x/sys/unix"
)

// attributes reads what Apply sets, from a sysfs that shows the namespace.
func attributes(t *testing.T, ns, name string) map[string]string {
	t.Helper()
	got := make(map[string]string)
	testnode.In(t, ns, func() {
		dir := t.TempDir()
		if err := unix.Mount("sysfs", dir, "sysfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		}()
		for _, attribute := range []string{"threaded", "gro_flush_timeout", "napi_defer_hard_irqs"} {
			data, err := os.ReadFile(filepath.Join(dir, "class/net", name, attribute))
			if err != nil {
				t.Fatal(err)
			}
			got[attribute] = strings.TrimSpace(string(data))
		}
	})
	return got
}

func TestSettingIsAppliedAndTakenBack(t *testing.T) {
	testnode.Require(t, "tun")
	ns, index := newTAP(t, "tap-eth0", 1)
	threaded := tap.Setting{NAPI: true, Threaded: true, GROFlushTimeout: 50 * time.Microsecond, DeferHardIRQs: 1}
	if err := threaded.Apply(ns, "tap-eth0"); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("threaded without a queue: want EOPNOTSUPP, got %v", err)
	}
	if err := (tap.Setting{}).Apply(ns, "tap-eth0"); err != nil {
		t.Errorf("nothing set, without a queue: %v", err)
	}
	open(t, tap.QueueOptions{Netns: ns, Name: "tap-eth0", Index: index, Count: 1, NAPI: true})
	for _, tt := range []struct {
		setting tap.Setting
		want    map[string]string
	}{
		{threaded, map[string]string{"threaded": "1", "gro_flush_timeout": "50000", "napi_defer_hard_irqs": "1"}},
		{tap.Setting{NAPI: true}, map[string]string{"threaded": "0", "gro_flush_timeout": "0", "napi_defer_hard_irqs": "0"}},
	} {
		if err := tt.setting.Apply(ns, "tap-eth0"); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, attributes(t, ns, "tap-eth0")); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tt.setting, diff)
		}
	}
	if err := threaded.Apply(ns, "tap-eth1"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("another TAP: want ENOENT, got %v", err)
	}
}

// pollThread finds the thread of a queue of the TAP, whose name no other on the machine may have.
func pollThread(t *testing.T, name string) int {
	t.Helper()
	comms, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range comms {
		comm, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(comm), "napi/"+name+"-") {
			continue
		}
		var tid int
		if _, err := fmt.Sscanf(path, "/proc/%d/comm", &tid); err != nil {
			t.Fatal(err)
		}
		return tid
	}
	t.Fatalf("no NAPI thread of %q", name)
	return 0
}

func TestNAPIThreadTakesThePolicyAndGivesItBack(t *testing.T) {
	testnode.Require(t, "tun")
	name := fmt.Sprintf("nt%d", os.Getpid())
	ns, index := newTAP(t, name, 1)
	open(t, tap.QueueOptions{Netns: ns, Name: name, Index: index, Count: 1, NAPI: true})
	for _, batch := range []bool{true, false, true} {
		s := tap.Setting{NAPI: true, Threaded: true, Batch: batch}
		if err := s.Apply(ns, name); err != nil {
			t.Fatal(err)
		}
		tid := pollThread(t, name)
		if err := s.ApplyThread(tid); err != nil {
			t.Fatal(err)
		}
		attr, err := unix.SchedGetAttr(tid, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := attr.Policy == unix.SCHED_BATCH; got != batch {
			t.Errorf("SCHED_BATCH: want %t, got policy %d", batch, attr.Policy)
		}
	}
	if err := (tap.Setting{}).ApplyThread(1 << 30); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a thread that is not there: want ESRCH, got %v", err)
	}
}
