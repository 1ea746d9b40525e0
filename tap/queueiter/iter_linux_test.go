package queueiter_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"golang.org/x/sys/unix"
)

func TestTAPsOfOneNameInTwoNetnsAreToldApart(t *testing.T) {
	require(t)
	withNAPI, a := newTAP(t, "tap-eth0", 1)
	without, b := newTAP(t, "tap-eth0", 2)
	openQueues(t, tap.QueueOptions{Netns: withNAPI, Name: "tap-eth0", Count: 1, NAPI: true, VnetHdrSize: 12})
	openQueues(t, tap.QueueOptions{Netns: without, Name: "tap-eth0", Count: 2})
	it := iterator(t)

	got := of(t, it, a)
	if len(got) != 1 {
		t.Fatalf("want 1 queue in the first netns, got %+v", got)
	}
	q := got[0]
	if !q.NAPI || q.Attach != queueiter.Enabled || q.Device.Name != "tap-eth0" || q.Device.VnetHdr() != 12 || q.OpenedIn != a || q.Ring < 500 {
		t.Errorf("want an enabled queue of tap-eth0 with NAPI, a header of 12 bytes and a ring, got %+v", q)
	}
	if h := q.Holders[0]; len(q.Holders) != 1 || h.PID != os.Getpid() || h.Opened != queueiter.ByName {
		t.Errorf("want this process %d, by name, got %+v", os.Getpid(), q.Holders)
	}
	got = of(t, it, b)
	if len(got) != 2 || got[0].NAPI || got[1].NAPI || got[0].Index != 0 || got[1].Index != 1 {
		t.Errorf("want queues 0 and 1 without NAPI in the second netns, got %+v", got)
	}
	if d := got[0].Device; d.Queues != 2 || d.Disabled != 0 || d.Flags&unix.IFF_MULTI_QUEUE == 0 {
		t.Errorf("want a multi-queue device with 2 queues, got %+v", d)
	}
}

func TestDisabledAndClosedQueues(t *testing.T) {
	require(t)
	ns, inode := newTAP(t, "tap0", 2)
	q := openQueues(t, tap.QueueOptions{Netns: ns, Name: "tap0", Count: 2, NAPI: true})
	it := iterator(t)

	ifr, err := unix.NewIfreq("")
	if err != nil {
		t.Fatal(err)
	}
	const detachQueue = 0x0400 // IFF_DETACH_QUEUE
	ifr.SetUint16(detachQueue)
	if err := unix.IoctlIfreq(q.FDs()[1], unix.TUNSETQUEUE, ifr); err != nil {
		t.Fatal(err)
	}
	var states []queueiter.Attach
	for _, q := range of(t, it, inode) {
		states = append(states, q.Attach)
		if q.Device.Queues != 1 || q.Device.Disabled != 1 {
			t.Errorf("want one queue enabled and one disabled on the device, got %+v", q.Device)
		}
	}
	if diff := cmp.Diff([]queueiter.Attach{queueiter.Enabled, queueiter.Disabled}, states); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if got := of(t, it, inode); len(got) != 0 {
		t.Errorf("want no queue after close, got %+v", got)
	}
}

func TestFilesThatAreNoQueues(t *testing.T) {
	require(t)
	it := iterator(t)
	before := heldBy(t, it, os.Getpid())
	for _, flags := range []int{unix.O_PATH, unix.O_RDWR} {
		fd, err := unix.Open(tap.Device, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	// O_PATH has no driver behind it, and /dev/null is another device: only the open file is listed, as unattached.
	if after := heldBy(t, it, os.Getpid()); len(after) != len(before)+1 {
		t.Errorf("want one descriptor more than %+v, got %+v", before, after)
	}
	for _, q := range of(t, it, 0) {
		if q.Attach != queueiter.Unattached || q.NAPI {
			t.Errorf("want an unattached file without NAPI, got %+v", q)
		}
	}
}

func TestDeletedTAPLeavesItsFilesUnattached(t *testing.T) {
	require(t)
	ns := testnode.NewNetns(t)
	it := iterator(t)
	testnode.In(t, ns, func() {
		if err := tap.Create(tap.Spec{Name: "tap0", Queues: 1}); err != nil {
			t.Fatal(err)
		}
	})
	q := openQueues(t, tap.QueueOptions{Netns: ns, Name: "tap0", Count: 1, NAPI: true})
	ino := inode(t, ns)
	got := of(t, it, ino)
	if len(got) != 1 || !got[0].NAPI {
		t.Fatalf("want a queue with NAPI, got %+v", got)
	}
	testnode.In(t, ns, func() {
		conn, err := rtnl.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.DeleteLink(q.Index); err != nil {
			t.Fatal(err)
		}
	})
	if got := of(t, it, ino); len(got) != 0 {
		t.Errorf("want no queue of a device that is gone, got %+v", got)
	}
	if got := heldBy(t, it, os.Getpid()); len(got) != 1 {
		t.Errorf("want the descriptor still listed, got %+v", got)
	}
}

func TestWhoOpenedAQueueIsToldByCredentials(t *testing.T) {
	require(t)
	ns, inode := newTAP(t, "tap0", 2)
	q := openQueues(t, tap.QueueOptions{Netns: ns, Name: "tap0", Count: 1, NAPI: true})
	it := iterator(t)
	me := os.Getpid()
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}

	cat := start(t, q.FDs(), "cat")
	sh := start(t, nil, "sh", "-c", "exec 5<>/dev/net/tun; echo ready; read x; exec cat")
	if _, err := sh.out.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	// cat shows up as itself once it has executed.
	eventually(t, "cat runs", func() bool {
		return len(of(t, it, inode)[0].Holders) == 2 && of(t, it, inode)[0].Holders[1].Comm == "cat"
	})
	want := []queueiter.Holder{
		{PID: me, FD: q.FDs()[0], Comm: strings.TrimSpace(string(comm)), Opened: queueiter.ByName, Opener: me},
		{PID: cat.Process.Pid, FD: 3, Comm: "cat", Opened: queueiter.HandedOver, Opener: me},
	}
	if diff := cmp.Diff(want, of(t, it, inode)[0].Holders); diff != "" {
		t.Errorf("holders (-want +got):\n%s", diff)
	}

	pid := sh.Process.Pid
	want = []queueiter.Holder{{PID: pid, FD: 5, Comm: "sh", Opened: queueiter.ByName, Opener: pid}}
	if diff := cmp.Diff(want, heldBy(t, it, pid)); diff != "" {
		t.Errorf("a shell that opened it (-want +got):\n%s", diff)
	}
	// After exec the program is another one, with credentials of its own: who opened the file is not known any more.
	if _, err := sh.in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "sh executes cat", func() bool { return heldBy(t, it, pid)[0].Comm == "cat" })
	want = []queueiter.Holder{{PID: pid, FD: 5, Comm: "cat", Opened: queueiter.OpenedUnknown}}
	if diff := cmp.Diff(want, heldBy(t, it, pid)); diff != "" {
		t.Errorf("what it executed (-want +got):\n%s", diff)
	}
}

func TestQueuePassedThroughASocket(t *testing.T) {
	require(t)
	ns, inode := newTAP(t, "tap0", 1)
	q := openQueues(t, tap.QueueOptions{Netns: ns, Name: "tap0", Count: 1, NAPI: true})
	it := iterator(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(q.FDs()...), nil, 0); err != nil {
		t.Fatal(err)
	}
	// In flight no process has it, and the device still counts it.
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if got := of(t, it, inode); len(got) != 0 {
		t.Errorf("want no descriptor of a queue in flight, got %+v", got)
	}
	receiver := start(t, []int{pair[1]}, "/proc/self/exe", "-test.run=^TestReceive$", "-test.v")
	eventually(t, "the queue arrives", func() bool { return len(of(t, it, inode)) == 1 })
	got := of(t, it, inode)[0]
	if h := got.Holders[0]; !got.NAPI || h.PID != receiver.Process.Pid || h.Opened != queueiter.HandedOver || h.Opener != os.Getpid() {
		t.Errorf("want the queue with NAPI, handed over to %d by %d, got %+v", receiver.Process.Pid, os.Getpid(), got)
	}
}

// TestReceive is the body of the process that takes a queue from descriptor 3 and holds it until its input ends.
func TestReceive(t *testing.T) {
	var st unix.Stat_t
	if err := unix.Fstat(3, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		t.Skip("run by TestQueuePassedThroughASocket")
	}
	oob := make([]byte, unix.CmsgSpace(4))
	if _, _, _, _, err := unix.Recvmsg(3, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC); err != nil {
		t.Skip("run by TestQueuePassedThroughASocket")
	}
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test ends
}
