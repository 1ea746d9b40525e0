package fds_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/client"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A node is a netns that stands for the host's, with attachments that ADD made and perhaps a tapird.
type node struct {
	t    testing.TB
	host string
}

func newNode(t testing.TB) *node {
	t.Helper()
	testnode.Require(t, "root", "tun", "bpf")
	n := &node{t: t, host: testnode.NewNetns(t)}
	testnode.In(t, n.host, func() { // tapird's metrics are served there
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		for _, dir := range []string{"/run/tapir", "/sys/fs/bpf/tapir"} {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
	})
	return n
}

// A pod is an attachment of the TAP "tap-eth0".
type pod struct {
	n               *node
	id, netns, conf string
	gone            bool
}

var serial int

// add runs ADD with these keys of the configuration in addition.
func (n *node) add(keys string) *pod {
	n.t.Helper()
	serial++
	p := &pod{n: n, id: fmt.Sprintf("pod%d", serial), netns: testnode.NewNetns(n.t)}
	p.conf = fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "tapir", "mtu": 1400, %s,
		"ipam": {"type": "tapir-ipam", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}`, keys)
	p.cni("ADD")
	n.t.Cleanup(p.del)
	return p
}

func (p *pod) del() {
	if !p.gone {
		p.gone = true
		p.cni("DEL")
	}
}

func (p *pod) cni(verb string) {
	p.n.t.Helper()
	cmd := exec.Command(bin("tapir"))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=eth0", "CNI_PATH=/nonexistent"}
	cmd.Stdin = strings.NewReader(p.conf)
	testnode.In(p.n.t, p.n.host, func() {
		if out, err := cmd.CombinedOutput(); err != nil {
			p.n.t.Fatalf("%s: %v: %s", verb, err, out)
		}
	})
}

func (p *pod) request(queues int) client.Request {
	return client.Request{ContainerID: p.id, IfName: "eth0", Queues: queues}
}

// wantUp fails the test where the TAP is not up.
func (p *pod) wantUp() {
	p.n.t.Helper()
	testnode.In(p.n.t, p.netns, func() {
		l, err := netlink.LinkByName("tap-eth0")
		if err != nil || l.Attrs().RawFlags&unix.IFF_UP == 0 {
			p.n.t.Errorf("the TAP of %s is not up: %v", p.id, err)
		}
	})
}

// wantQueues fails the test unless the process holds so many queues, each with NAPI, and nobody else holds them. A VMM whose guest has
// not asked for them disables all but the first.
func wantQueues(t testing.TB, pid, queues int) {
	t.Helper()
	var got []queueiter.Queue
	for until := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		all, err := queueiter.Read()
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, q := range all {
			if q.Attach != queueiter.Unattached && q.Holders[0].PID == pid && len(q.Holders) == 1 {
				got = append(got, q)
			}
		}
		if len(got) == queues {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("want %d queues that pid %d alone holds, got %d of %+v", queues, pid, len(got), all)
		}
	}
	for _, q := range got {
		if !q.NAPI {
			t.Errorf("queue %d of pid %d: want NAPI", q.Index, pid)
		}
	}
}

// wantNoQueues fails the test where any queue stays open on the node.
func wantNoQueues(t testing.TB) {
	t.Helper()
	for until := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		all, err := queueiter.Read()
		if err != nil {
			t.Fatal(err)
		}
		left := 0
		for _, q := range all {
			if q.Device.Name == "tap-eth0" && ours(q) {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d queues stay open", left)
		}
	}
}

// ours tells whether a process of this test, or one that it started, holds the queue: other tests may run on the machine.
func ours(q queueiter.Queue) bool {
	own, err := os.Readlink("/proc/self/ns/mnt")
	for _, h := range q.Holders {
		theirs, theirErr := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", h.PID))
		if err == nil && theirErr == nil && own == theirs {
			return true
		}
	}
	return false
}

func bin(name string) string { return filepath.Join(os.Getenv(binDirEnv), name) }

// A daemon is a running tapird.
type daemon struct {
	n     *node
	t     testing.TB
	cmd   *exec.Cmd
	ended chan struct{}

	mu  sync.Mutex
	log []string
}

// tapird starts one in the node's netns and waits until it serves.
func (n *node) tapird(flags ...string) *daemon {
	n.t.Helper()
	return n.run(bin("tapird"), flags...)
}

// run starts tapird by a program that becomes it.
func (n *node) run(program string, args ...string) *daemon {
	n.t.Helper()
	d := &daemon{n: n, t: n.t, cmd: exec.Command(program, args...), ended: make(chan struct{})}
	out, err := d.cmd.StderrPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	testnode.In(n.t, n.host, func() { err = d.cmd.Start() })
	if err != nil {
		n.t.Fatal(err)
	}
	go func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			d.mu.Lock()
			d.log = append(d.log, in.Text())
			d.mu.Unlock()
		}
		_ = d.cmd.Wait() // tests read ProcessState
		close(d.ended)
	}()
	n.t.Cleanup(func() { d.signal(unix.SIGKILL) })
	d.wantLog("serving")
	return d
}

func (d *daemon) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.log, "\n")
}

func (d *daemon) wantLog(text string) {
	d.t.Helper()
	for until := time.Now().Add(patience); !strings.Contains(d.text(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			d.t.Fatalf("tapird did not say %q: %s", text, d.text())
		}
	}
}

// signal ends it and waits for that.
func (d *daemon) signal(s syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		d.t.Error(err)
	}
	select {
	case <-d.ended:
	case <-time.After(patience):
		d.t.Fatalf("tapird did not end: %s", d.text())
	}
}

// fds counts its descriptors.
func (d *daemon) fds() int { return countFDs(d.t, d.cmd.Process.Pid) }

// idleFDs counts them once the number stays the same: the last connection may still be closing.
func (d *daemon) idleFDs() int {
	d.t.Helper()
	const long = 15
	got, same := d.fds(), 0
	for until := time.Now().Add(patience); same < long; same++ {
		if time.Now().After(until) {
			d.t.Fatalf("the number of tapird's descriptors does not settle; it is %d", got)
		}
		time.Sleep(20 * time.Millisecond)
		if now := d.fds(); now != got {
			got, same = now, 0
		}
	}
	return got
}

// countFDs counts a process's descriptors, but for those of TAPs' sysfs, of which tapird has four as long as an attachment lives.
func countFDs(t testing.TB, pid int) (n int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, _ := os.Readlink(filepath.Join(dir, e.Name())); !strings.HasPrefix(to, "/devices/virtual/net/") {
			n++
		}
	}
	return n
}

// wantFDs waits until it has that many: the last connection may still be closing.
func (d *daemon) wantFDs(want int) {
	d.t.Helper()
	got := 0
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if got = d.fds(); got == want {
			return
		}
	}
	d.t.Errorf("tapird has %d descriptors, and had %d", got, want)
}

// wantHome fails the test where a thread of tapird stays in another netns than the node's once it has nothing to do.
func (d *daemon) wantHome() {
	d.t.Helper()
	own := fmt.Sprintf("/proc/%d/ns/net", d.cmd.Process.Pid)
	testnode.Eventually(d.t, patience, func() error {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/ns/net", d.cmd.Process.Pid))
		var node, main unix.Stat_t
		if err = errors.Join(err, unix.Stat(d.n.host, &node), unix.Stat(own, &main)); err != nil || len(tasks) < 2 || node.Ino != main.Ino {
			return fmt.Errorf("threads of tapird: %v in netns %d, the node's is %d: %v", tasks, main.Ino, node.Ino, err)
		}
		for _, task := range tasks {
			var st unix.Stat_t
			if err := unix.Stat(task, &st); err == nil && st.Ino != node.Ino {
				return fmt.Errorf("%s is not the node's", task)
			}
		}
		return nil
	})
}
