package measure_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Every namespace can be taken down while its TAP's sysfs is held: the kernel says that it did. Then what is held is let go of, so that
// the kernel can free it. Without the DEL, which nobody may send.
func TestNetnsGoWhileTheyAreMeasured(t *testing.T) {
	requireNode(t)
	const count = 20
	all := crowd(t, count)
	n := start(t, measure.Config{MaxAge: time.Nanosecond})
	held := map[watch.ID]bool{}
	for _, a := range n.sample().Attachments {
		if n.sampler.Device(a.ID) == nil || a.NAPI.FlushTimeout == nil {
			t.Fatalf("want the sysfs of %s held, got %+v", a.ContainerID, a.NAPI)
		}
		held[a.ID] = true
	}
	if len(held) != count {
		t.Fatalf("want %d attachments, got %d", count, len(held))
	}
	before := namespaces(t)
	for _, a := range all {
		if err := errors.Join(unix.Unmount(a.Netns, unix.MNT_DETACH), os.Remove(a.Netns)); err != nil {
			t.Fatal(err)
		}
	}
	testnode.Eventually(t, patience, func() error {
		if now := namespaces(t); now != before-count {
			return fmt.Errorf("want %d namespaces with an nsid, got %d", before-count, now)
		}
		for id := range held {
			if n.sampler.Device(id) != nil {
				return fmt.Errorf("the sysfs of %s is still held", id)
			}
		}
		return nil
	})
	testnode.Eventually(t, patience, func() error { // the watch hears of each by a message of its own
		s := n.sample()
		if len(s.Attachments) != count || len(s.Problems) != 0 {
			return fmt.Errorf("want %d attachments and no problems, got %d and %q", count, len(s.Attachments), s.Problems)
		}
		for _, a := range s.Attachments {
			if a.TAP != nil || a.Host != nil || a.Netns != watch.NetnsLost {
				return fmt.Errorf("want nothing of %s, got %+v", a.ContainerID, a)
			}
		}
		return nil
	})
}

// What cannot be read is told, and the rest is there; when it can be read again, it is. Here the pins of the programs go, with their bpffs or by hand.
func TestASampleGoesOnWithoutPins(t *testing.T) {
	requireNode(t)
	const pins, aside = "/sys/fs/bpf/tapir", "/sys/fs/bpf/aside"
	crowd(t, 3)
	n := start(t, measure.Config{MaxAge: time.Nanosecond})
	frames := func(want bool) {
		t.Helper()
		s := n.sample()
		if len(s.Attachments) != 3 || (len(s.Problems) == 0) != want || !want && !strings.HasPrefix(s.Problems[0], "frames: ") {
			t.Errorf("want three attachments and the problem told: %t, got %d and %q", !want, len(s.Attachments), s.Problems)
		}
		for _, a := range s.Attachments {
			if a.TAP == nil || a.NAPI.FlushTimeout == nil || (a.Frames != nil) != want {
				t.Errorf("want frames: %t, and all else, got %+v", want, a)
			}
		}
	}
	frames(true)
	if err := os.Rename(pins, aside); err != nil {
		t.Fatal(err)
	}
	frames(false)
	if err := os.Rename(aside, pins); err != nil {
		t.Fatal(err)
	}
	frames(true)
}

// namespaces counts those that this one has an nsid for (RTM_GETNSID): the kernel takes it away when it takes the namespace down.
func namespaces(t *testing.T) int {
	t.Helper()
	req := nl.NewNetlinkRequest(unix.RTM_GETNSID, unix.NLM_F_DUMP)
	req.AddRawData([]byte{unix.AF_UNSPEC, 0, 0, 0})
	list, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNSID)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Run ends with nothing left: no goroutine, no descriptor, no thread in another namespace.
func TestRunLeavesNothing(t *testing.T) {
	requireNode(t)
	crowd(t, 10)
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	for range 2 {
		n := start(t, measure.Config{})
		if got := len(n.sample().Attachments); got != 10 {
			t.Errorf("want 10 attachments, got %d", got)
		}
		n.stop()
	}
	testnode.Eventually(t, patience, func() error {
		if g, f := runtime.NumGoroutine(), openFiles(t); g > goroutines || f > files {
			return fmt.Errorf("want %d goroutines and %d files, got %d and %d", goroutines, files, g, f)
		}
		return atHome()
	})
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// atHome gives an error where a thread of the process is in another netns than the caller.
func atHome() error {
	var own unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return err
	}
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(tasks) < 2 {
		return fmt.Errorf("threads: %v, %w", tasks, err)
	}
	for _, task := range tasks {
		var st unix.Stat_t
		if err := unix.Stat(task+"/ns/net", &st); err == nil && st.Ino != own.Ino {
			return fmt.Errorf("%s is in another namespace", task)
		}
	}
	return nil
}
