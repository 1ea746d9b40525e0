package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"golang.org/x/sys/unix"
)

// sandbox is a netns with a TAP and its attachment, as an ADD leaves them.
func sandbox(t *testing.T, dir, id string, index, queues int) state.Attachment {
	t.Helper()
	testnode.Require(t, "root", "bpf", "btf", "tun")
	a := state.Attachment{
		Key: state.Key{Network: "net", ContainerID: id, IfName: "eth0"}, Status: state.Ready, Created: time.Now(),
		Netns: testnode.NewNetns(t), TAP: state.Device{Name: "tap-eth0", Index: index}, Queues: queues, TxQueue: 1000, MTU: 1500,
		GuestMAC: fmt.Sprintf("02:00:00:00:00:%02x", index%256),
	}
	testnode.In(t, a.Netns, func() {
		if err := tap.Create(tap.Spec{Name: a.TAP.Name, Index: index, Queues: queues}); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("ip", "link", "set", a.TAP.Name, "up").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
	err := state.New(state.Config{Dir: dir}).Update(t.Context(), func(tx *state.Tx) error { return tx.Put(a) })
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func openTAP(t *testing.T, a state.Attachment, count int, napi bool) *tap.Queues {
	t.Helper()
	q, err := tap.OpenQueues(tap.QueueOptions{Netns: a.Netns, Name: a.TAP.Name, Index: a.TAP.Index, Count: count, NAPI: napi, VnetHdrSize: 12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() }) // a test may have closed it
	return q
}

// command runs tapirctl as main does and gives what it printed.
func command(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&out)
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("tapirctl %v: %v\n%s", args, err, &out)
	}
	return out.String()
}

func rowsOf(t *testing.T, dir string, args ...string) []queueRow {
	t.Helper()
	var rows []queueRow
	out := command(t, append([]string{"queues", "-o", "json", "--state-dir", dir}, args...)...)
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	return rows
}

func TestQueuesShowsWhatTheKernelHas(t *testing.T) {
	dir := t.TempDir()
	a := sandbox(t, dir, "aaaa", 2000001, 2)
	b := sandbox(t, dir, "bbbb", 2000002, 1)
	// The record says nothing of NAPI, and the first opener's flags are the device's: both would tell queue 1 wrongly.
	first := openTAP(t, a, 1, true)
	second := openTAP(t, a, 1, false)

	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	row := queueRow{
		Key: a.Key, Netns: a.Netns, TAP: "tap-eth0", State: "enabled", PID: os.Getpid(), Program: exe[strings.LastIndex(exe, "/")+1:],
		Opened: "by name", Opener: os.Getpid(), VnetHdr: 12, MultiQueue: true, Threaded: "no", Ring: 1000, TxQueueLen: 1000,
	}
	napi, plain := row, row
	napi.Queue, napi.FD, napi.NAPI = new(0), first.FDs()[0], "yes"
	plain.Queue, plain.FD, plain.NAPI = new(1), second.FDs()[0], "no"
	idle := queueRow{
		Key: b.Key, Netns: b.Netns, TAP: "tap-eth0", State: "not open", Opened: "unknown", NAPI: "unknown", Threaded: "no", Ring: 1000, TxQueueLen: 1000,
	}
	dropped := cmp.Options{cmpopts.IgnoreFields(queueRow{}, "Dropped"), cmpopts.IgnoreUnexported(queueRow{})}
	if diff := cmp.Diff([]queueRow{napi, plain, idle}, rowsOf(t, dir), dropped); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]queueRow{idle}, rowsOf(t, dir, "bbbb/eth0"), dropped); diff != "" {
		t.Errorf("rows of the attachment that is named (-want +got):\n%s", diff)
	}
	table := command(t, "queues", "--state-dir", dir)
	if lines := strings.Split(strings.TrimSpace(table), "\n"); len(lines) != 4 || !strings.Contains(lines[2], "by name") {
		t.Errorf("want a heading and three lines, got\n%s", table)
	}
}

func TestQueueThatNoProcessHoldsIsCounted(t *testing.T) {
	dir := t.TempDir()
	for i, queues := range []int{1, 2} {
		a := sandbox(t, dir, strings.Repeat("abc"[i:i+1], 4), 2000011+i, queues)
		q := openTAP(t, a, 1, true)
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(pair[0])
		defer unix.Close(pair[1])
		if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(q.FDs()...), nil, 0); err != nil {
			t.Fatal(err)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		rows := rowsOf(t, dir, a.ContainerID)
		if len(rows) != 1 || rows[0].State != nobodys || rows[0].NAPI != unknown || !strings.HasPrefix(rows[0].Note, "1 more") {
			t.Errorf("TAP of %d queues: want one queue that no process holds, got %+v", queues, rows)
		}
	}
}

func TestQueuesCountsWhatFoundNoRoom(t *testing.T) {
	dir := t.TempDir()
	a := sandbox(t, dir, "aaaa", 2000021, 1)
	testnode.In(t, a.Netns, func() {
		const set = "ip link set tap-eth0 txqueuelen 4; ip addr add 192.0.2.1/24 dev tap-eth0; ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:01 dev tap-eth0"
		if out, err := exec.Command("sh", "-ec", set).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
	openTAP(t, a, 1, true) // and nobody reads
	before := *rowsOf(t, dir)[0].Dropped
	testnode.In(t, a.Netns, func() {
		conn, err := net.Dial("udp", "192.0.2.2:9")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for range 200 {
			_, _ = conn.Write([]byte("x")) // a full queue may say so
		}
	})
	row := rowsOf(t, dir)[0]
	if row.Ring != 4 || *row.Dropped < before+100 {
		t.Errorf("want a ring of 4 and 100 or more frames dropped above %d, got ring %d and %d dropped", before, row.Ring, *row.Dropped)
	}
}

func TestNetnsThatIsGoneIsSaid(t *testing.T) {
	dir := t.TempDir()
	a := sandbox(t, dir, "aaaa", 2000031, 1)
	if err := unix.Unmount(a.Netns, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(a.Netns); err != nil {
		t.Fatal(err)
	}
	rows := rowsOf(t, dir)
	if len(rows) != 1 || rows[0].State != unknown || !strings.Contains(rows[0].Note, "is gone") {
		t.Errorf("want one row that says that the netns is gone, got %+v", rows)
	}
}

func TestDoctorExplainsEachQueueWithoutNAPI(t *testing.T) {
	dir := t.TempDir()
	a := sandbox(t, dir, "aaaa", 2000041, 4)
	openTAP(t, a, 1, true)
	openTAP(t, a, 2, false)
	o := &options{stateDirs: []string{dir}}
	got, err := queueFindings(t.Context(), o, "aaaa/eth0")
	if err != nil {
		t.Fatal(err)
	}
	pid := fmt.Sprintf("of pid %d (", os.Getpid())
	want := []struct{ verdict, detail, why string }{
		{good, "queue 0 " + pid, "NAPI"},
		{limited, "queues 1, 2 " + pid, "no NAPI: it opened the TAP by name"},
	}
	if len(got) != len(want) {
		t.Fatalf("want %d findings, got %+v", len(want), got)
	}
	for i, w := range want {
		f := got[i]
		if f.Verdict != w.verdict || !strings.HasPrefix(f.Detail, w.detail) || !strings.Contains(f.Detail, w.why) || (f.Advice == "") != (w.verdict == good) {
			t.Errorf("finding %d: want %+v and advice where it is limited, got %+v", i, w, f)
		}
	}
}

func TestDoctorFindsNothingAmissWhereNAPIIsNotAskedFor(t *testing.T) {
	dir := t.TempDir()
	a := sandbox(t, dir, "aaaa", 2000042, 1)
	a.NoNAPI = true
	if err := state.New(state.Config{Dir: dir}).Update(t.Context(), func(tx *state.Tx) error { return tx.Put(a) }); err != nil {
		t.Fatal(err)
	}
	openTAP(t, a, 1, false)
	got, err := queueFindings(t.Context(), &options{stateDirs: []string{dir}}, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Verdict != good || !strings.Contains(got[0].Detail, "no NAPI, as the configuration says") {
		t.Errorf("want one good finding, got %+v", got)
	}
}

func TestQueuesWithoutTheIteratorAreUnknownAndNotGuessed(t *testing.T) {
	dir := t.TempDir()
	a := sandbox(t, dir, "aaaa", 2000051, 2)
	openTAP(t, a, 2, true)
	reader := &queueReader{why: &queueiter.UnsupportedError{Needs: "BTF", Err: unix.EOPNOTSUPP}}
	rows, err := reader.rows([]recorded{{a, dir}})
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 1 || rows[0].NAPI != unknown || rows[0].State != unknown || !strings.Contains(rows[0].Note, "2 queues are open") ||
		!strings.Contains(rows[0].Note, "it needs BTF") {
		t.Errorf("want one row of two queues that says why NAPI is unknown, got %+v", rows)
	}
}

func TestWatchSeesAQueueComeAndGo(t *testing.T) {
	dir := t.TempDir()
	a := sandbox(t, dir, "aaaa", 2000061, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	root := newRoot()
	root.SetArgs([]string{"queues", "aaaa", "--watch", "20ms", "-o", "json", "--state-dir", dir})
	root.SetOut(in)
	ended := make(chan error, 1)
	go func() {
		err := root.ExecuteContext(ctx)
		_ = in.Close()
		ended <- err
	}()
	lines := json.NewDecoder(out)
	await := func(want string) {
		t.Helper()
		for range 200 {
			var rows []queueRow
			if err := lines.Decode(&rows); err != nil {
				t.Fatal(err)
			}
			if len(rows) == 1 && rows[0].State == want {
				return
			}
		}
		t.Fatalf("no line says %q", want)
	}
	await(notOpen)
	q := openTAP(t, a, 1, true)
	await("enabled")
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	await(notOpen)
	cancel()
	go func() { _, _ = io.Copy(io.Discard, out) }() // the line that is being written
	if err := <-ended; err != nil {
		t.Errorf("interrupted: want no error, got %v", err)
	}
}

func TestIntervalIsToldFromAContainer(t *testing.T) {
	for _, tt := range []struct {
		args []string
		left int
		want time.Duration
	}{
		{nil, 0, 0}, {[]string{"500ms"}, 0, 500 * time.Millisecond}, {[]string{"7f3a/eth0", "2s"}, 1, 2 * time.Second}, {[]string{"7f3a"}, 1, 0}, {[]string{"0"}, 1, 0},
	} {
		var got time.Duration
		if left := interval(tt.args, &got); len(left) != tt.left || got != tt.want {
			t.Errorf("%q: want %d arguments and %s, got %q and %s", tt.args, tt.left, tt.want, left, got)
		}
	}
}
