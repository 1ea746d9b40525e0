package tap_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { testnode.Main(m) }

// newTAP creates a TAP in a netns of its own, and gives the netns and the TAP's ifindex.
func newTAP(t *testing.T, name string, queues int) (string, int) {
	t.Helper()
	testnode.Require(t, "root", "tun")
	ns, index := testnode.NewNetns(t), 0
	testnode.In(t, ns, func() {
		if err := tap.Create(tap.Spec{Name: name, Queues: queues}); err != nil {
			t.Fatal(err)
		}
		conn, err := rtnl.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		link, err := conn.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		index = link.Attrs().Index
	})
	return ns, index
}

func open(t *testing.T, o tap.QueueOptions) *tap.Queues {
	t.Helper()
	q, err := tap.OpenQueues(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
	return q
}

func attached(t *testing.T, ns string, index int) (n int) {
	t.Helper()
	testnode.In(t, ns, func() {
		conn, err := rtnl.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		info, err := tap.Read(conn, index)
		if err != nil {
			t.Fatal(err)
		}
		n = info.Queues
	})
	return n
}

func TestQueuesRunNAPIExactlyWhereAsked(t *testing.T) {
	testnode.Require(t, "bpf")
	ns, index := newTAP(t, "tap-eth0", 2)
	// The first opener writes the device's flags, so the others are what flags of the device would tell wrongly.
	for _, napi := range []bool{true, false, true} {
		open(t, tap.QueueOptions{Netns: ns, Name: "tap-eth0", Index: index, Count: 2, NAPI: napi})
	}
	all, err := queueiter.Read()
	if err != nil {
		t.Fatal(err)
	}
	want := []bool{true, true, false, false, true, true}
	var got []bool
	for _, q := range all {
		if q.Device.Index == index && q.Holders[0].PID == os.Getpid() {
			got = append(got, q.NAPI)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("want %d queues, got %d", len(want), len(got))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("queue %d runs NAPI: want %t, got %t", i, want[i], got[i])
		}
	}
}

func TestQueuesTakeOffloadAndHeaderSize(t *testing.T) {
	ns, _ := newTAP(t, "tap-eth0", 4)
	offload := unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
	q := open(t, tap.QueueOptions{Netns: ns, Name: "tap-eth0", Count: 4, Offload: &offload, VnetHdrSize: 12})
	if q.Attached != 4 {
		t.Errorf("want 4 queues attached, got %d", q.Attached)
	}
	for i, fd := range q.FDs() {
		size, err := unix.IoctlGetInt(fd, unix.TUNGETVNETHDRSZ)
		if err != nil || size != 12 {
			t.Errorf("queue %d: want a header of 12 bytes, got %d (%v)", i, size, err)
		}
	}
	wrong := 1 << 30
	_, err := tap.OpenQueues(tap.QueueOptions{Netns: ns, Name: "tap-eth0", Count: 1, Offload: &wrong})
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "offload mask 0x40000000") {
		t.Errorf("unknown offload: want EINVAL that names the mask, got %v", err)
	}
}

func TestRefusalsSayWhatDiffersAndLeaveNothingOpen(t *testing.T) {
	single, _ := newTAP(t, "tap-eth0", 1)
	multi, multiIndex := newTAP(t, "tap-eth0", 2)
	open(t, tap.QueueOptions{Netns: single, Name: "tap-eth0", Count: 1})

	for _, tt := range []struct {
		name    string
		options tap.QueueOptions
		is      error
		want    string
	}{
		{"a VMM without multi_queue on a TAP with it", tap.QueueOptions{Netns: multi, Name: "tap-eth0", Count: 1, Flags: tap.Flags(1)}, unix.EINVAL,
			`open tap "tap-eth0": it was created with multi_queue and the VMM did not ask for it; set "queues": 1`},
		{"two queues of a TAP with one", tap.QueueOptions{Netns: single, Name: "tap-eth0", Count: 2}, unix.EINVAL, "created without multi_queue"},
		{"a TAP that is in use", tap.QueueOptions{Netns: single, Name: "tap-eth0", Count: 1}, unix.EBUSY, "its only queue is attached already"},
		{"another TAP of that name", tap.QueueOptions{Netns: multi, Name: "tap-eth0", Index: multiIndex + 1, Count: 1}, nil, "another device has that name"},
		{"no such TAP", tap.QueueOptions{Netns: multi, Name: "tap-eth1", Count: 1}, nil, `open tap "tap-eth1"`},
		{"no tap", tap.QueueOptions{Netns: multi, Name: "lo", Count: 1}, nil, "want a tap"},
		{"too many", tap.QueueOptions{Netns: multi, Name: "tap-eth0", Count: 257}, nil, "want 1 to 256, got 257"},
		{"no netns", tap.QueueOptions{Netns: "/run/netns/none", Name: "tap-eth0", Count: 1}, unix.ENOENT, "/run/netns/none"},
	} {
		q, err := tap.OpenQueues(tt.options)
		if err == nil {
			t.Errorf("%s: want an error, got queues %v", tt.name, errors.Join(q.Close()))
			continue
		}
		if tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: want %v and %q, got %v", tt.name, tt.is, tt.want, err)
		}
	}
	if n := attached(t, multi, multiIndex); n != 0 {
		t.Errorf("the multi-queue TAP: want no queue, got %d", n)
	}
}

func TestQueueAboveTheLimitClosesThoseBefore(t *testing.T) {
	ns, index := newTAP(t, "tap-eth0", 2)
	open(t, tap.QueueOptions{Netns: ns, Name: "tap-eth0", Count: tap.MaxQueues - 1})
	_, err := tap.OpenQueues(tap.QueueOptions{Netns: ns, Name: "tap-eth0", Count: 2})
	var busy *tap.BusyError
	if !errors.As(err, &busy) || !errors.Is(err, unix.E2BIG) {
		t.Errorf("want a BusyError that is E2BIG, got %v", err)
	}
	if n := attached(t, ns, index); n != tap.MaxQueues-1 {
		t.Errorf("want the %d queues of before, got %d", tap.MaxQueues-1, n)
	}
}

func TestTAPOfAnotherProcessIsNotOpened(t *testing.T) {
	testnode.Require(t, "root", "tun")
	ns := testnode.NewNetns(t)
	testnode.In(t, ns, func() {
		mine, err := unix.Open(tap.Device, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(mine) })
		ifr, err := unix.NewIfreq("tap-mine")
		if err != nil {
			t.Fatal(err)
		}
		ifr.SetUint16(tap.Flags(2))
		if err := unix.IoctlIfreq(mine, unix.TUNSETIFF, ifr); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := tap.OpenQueues(tap.QueueOptions{Netns: ns, Name: "tap-mine", Count: 1}); err == nil || !strings.Contains(err.Error(), "not persistent") {
		t.Errorf("want a refusal of a TAP that is not persistent, got %v", err)
	}
}
