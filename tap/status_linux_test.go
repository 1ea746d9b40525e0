package tap_test

import (
	"os/exec"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap"
)

func TestStatusIsTheTAPsOwnInItsNetns(t *testing.T) {
	other, otherIndex := newTAP(t, "tap-eth0", 2)
	ns, index := newTAP(t, "tap-eth0", 2)
	open(t, tap.QueueOptions{Netns: other, Name: "tap-eth0", Count: 1, NAPI: true})
	open(t, tap.QueueOptions{Netns: ns, Name: "tap-eth0", Count: 2, NAPI: true})
	// A read-only sysfs of that netns cannot set it, so the test mounts one of its own, in a process of its own.
	testnode.In(t, ns, func() {
		const set = `mount -t sysfs sysfs /sys && echo 1 > /sys/class/net/tap-eth0/threaded && ip link set tap-eth0 txqueuelen 77`
		if out, err := exec.Command("unshare", "-m", "sh", "-c", set).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
	for _, tt := range []struct {
		ns              string
		index           int
		queues, ringLen int
		threaded        bool
	}{{ns, index, 2, 77, true}, {other, otherIndex, 1, 1000, false}} {
		s, err := tap.ReadStatus(tt.ns, tt.index)
		if err != nil {
			t.Fatal(err)
		}
		if s.Name != "tap-eth0" || s.Queues != tt.queues || s.TxQueueLen != tt.ringLen || s.Threaded == nil || *s.Threaded != tt.threaded {
			t.Errorf("want %d queues, txqueuelen %d, threaded %t, got %+v", tt.queues, tt.ringLen, tt.threaded, s)
		}
	}
}
