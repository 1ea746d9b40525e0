package exec_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap"
	"golang.org/x/sys/unix"
)

// A queue gets NAPI, and the queue flag of its TAP, whatever the VMM says; without exec it gets neither.
func TestOpenGetsNAPIAndTheQueueFlag(t *testing.T) {
	for _, tt := range []struct {
		name       string
		queues     string
		asks       int
		multiQueue bool
		alone      string // without exec: the errno, or that it opens
	}{
		{"one queue", `"queues": 1`, oneQueue, false, "fd"},
		{"one queue, asked for as several", `"queues": 1`, multi, false, "errno EINVAL"},
		{"two queues", `"queues": 2`, multi, true, "fd"},
		{"two queues, Firecracker's flags", `"queues": 2`, oneQueue, true, "errno EINVAL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSandbox(t, tt.queues)
			control := s.alone()
			if got := control.say("open tap-eth0 %#x", tt.asks); !strings.HasPrefix(got, tt.alone) {
				t.Errorf("without exec: %s, want %s", got, tt.alone)
			} else if tt.alone == "fd" {
				fd := 0
				for _, c := range strings.Fields(got)[1] {
					fd = fd*10 + int(c-'0')
				}
				control.wantFlags(fd, false, tt.multiQueue)
				control.say("close %d", fd)
			}
			v := s.supervised(nil)
			fd := v.open("tap-eth0", tt.asks)
			v.wantFlags(fd, true, tt.multiQueue)
			v.wantLog(1, "opened tap", "tap-eth0", "pods/"+s.id+"/eth0")
		})
	}
}

// Queues are opened one after the other, closed, and opened again long after the start.
func TestHotPlug(t *testing.T) {
	s := newSandbox(t, `"queues": 2`)
	v := s.supervised([]string{"--queues", "2"})
	first, second := v.open("tap-eth0", multi), v.open("tap-eth0", multi)
	v.refused("tap-eth0", multi, "E2BIG")
	v.wantLog(1, "refused to open tap", "E2BIG", "--queues allows 2")
	v.say("close %d", first)
	again := v.open("tap-eth0", multi)
	for _, fd := range []int{second, again} {
		v.wantFlags(fd, true, true)
	}
}

// Threads that open at once each get their queue, up to the limit and no further.
func TestConcurrentOpens(t *testing.T) {
	s := newSandbox(t, `"queues": 8`)
	v := s.supervised([]string{"--queues", "8"})
	if got := v.say("storm tap-eth0 %#x 12", multi); got != "8 opened" {
		t.Errorf("12 opens of 8 queues: %s; log: %s", got, v.log)
	}
	v.wantLog(8, "opened tap", "tap-eth0")
	v.wantLog(4, "refused to open tap", "E2BIG")
}

// What is not a TAP of tapir's, or not by its name, is as without exec.
func TestOthersAreLeftAlone(t *testing.T) {
	s := newSandbox(t, `"queues": 1`)
	testnode.In(t, s.netns, func() {
		if err := tap.Create(tap.Spec{Name: "foreign", Queues: 1}); err != nil {
			t.Fatal(err)
		}
	})
	v := s.supervised(nil)
	fd := v.open("foreign", oneQueue)
	v.wantFlags(fd, false, false)
	v.refused("foreign", multi, "EINVAL")
	v.refused("tap-eth0", oneQueue|0x8000, "EBUSY") // IFF_TUN_EXCL
	v.refused("tap-eth0", unix.IFF_TUN, "EINVAL")
	fd = v.open("new", oneQueue) // is made
	v.wantFlags(fd, false, false)
	if got := v.say("open pattern%%d %#x", oneQueue); !strings.HasSuffix(got, " pattern0") {
		t.Errorf("a pattern: %s, want the device pattern0", got)
	}
	v.open("tap-eth0", oneQueue)
	v.wantLog(1, "opened tap") // that one
}

// A tag alone makes no TAP of tapir's: the record must have its ifindex.
func TestForgedTagIsLeftAlone(t *testing.T) {
	s := newSandbox(t, `"queues": 1`)
	testnode.In(t, s.netns, func() {
		if err := tap.Create(tap.Spec{Name: "forged", Queues: 1}); err != nil {
			t.Fatal(err)
		}
		setAlias(t, "forged", "tapir:pods/"+s.id+"/eth0")
	})
	v := s.supervised(nil)
	v.wantFlags(v.open("forged", oneQueue), false, false)
	v.wantLog(1, "left a TAP alone", "forged", "no record")
}

// --attachment supervises one TAP.
func TestAttachmentIsTheOnlyOne(t *testing.T) {
	one, other := newSandbox(t, `"queues": 1`), newSandbox(t, `"queues": 1`)
	v := one.supervised([]string{"--attachment", one.id + "/eth0"})
	v.wantFlags(v.open("tap-eth0", oneQueue), true, false)
	v = other.supervised([]string{"--attachment", one.id})
	v.wantFlags(v.open("tap-eth0", oneQueue), false, false)
	v.wantLog(1, "left a TAP alone", other.id)
}

// The driver's refusals reach the VMM as they are, and the operator with a reason.
func TestKernelErrnoReachesTheVMM(t *testing.T) {
	s := newSandbox(t, `"queues": 1, "owner": 1000`)
	v := s.supervised(nil)
	v.open("tap-eth0", oneQueue) // root may, owner or not
	v.refused("tap-eth0", oneQueue, "EBUSY")
	v.wantLog(1, "could not open tap", "device or resource busy", "open already")
}

// "napi": false is the operator's word; the queue flag is still put right.
func TestConfigurationTurnsNAPIOff(t *testing.T) {
	s := newSandbox(t, `"queues": 2, "napi": false`)
	v := s.supervised(nil)
	v.wantFlags(v.open("tap-eth0", oneQueue), false, true)
	v.wantLog(1, "opened tap", "opened=0x5102")
}

// A signal to the VMM restarts no call that was carried out already: the second one would find the fd taken.
func TestSignalsDoNotRepeatOpens(t *testing.T) {
	s := newSandbox(t, `"queues": 1`)
	v := s.supervised([]string{"--log-file", t.TempDir() + "/log"})
	if got := v.say("pelted tap-eth0 %#x 300", oneQueue); got != "300 opened" {
		t.Errorf("300 opens under signals: %s", got)
	}
}

// BenchmarkOpen is one open of /dev/net/tun, TUNSETIFF and close, as the VMM sees it.
func BenchmarkOpen(b *testing.B) {
	s := newSandbox(b, `"queues": 1`)
	for name, v := range map[string]*session{"alone": s.alone(), "supervised": s.supervised([]string{"--log-file", b.TempDir() + "/log"})} {
		b.Run(name, func(b *testing.B) {
			var ns int
			if _, err := fmt.Sscanf(v.say("time tap-eth0 %#x %d", oneQueue, b.N), "%d ns", &ns); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(ns), "ns/op")
		})
	}
}
