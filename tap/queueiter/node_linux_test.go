package queueiter_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { testnode.Main(m) }

// patience is how long a process may take to open its queues on a busy machine.
const patience = 20 * time.Second

func require(t *testing.T) {
	t.Helper()
	testnode.Require(t, "root", "bpf", "btf", "tun")
}

// newTAP creates a TAP in a netns of its own and gives the netns's path and inode.
func newTAP(t *testing.T, name string, queues int) (string, uint32) {
	t.Helper()
	ns := testnode.NewNetns(t)
	testnode.In(t, ns, func() {
		if err := tap.Create(tap.Spec{Name: name, Queues: queues}); err != nil {
			t.Fatal(err)
		}
	})
	return ns, inode(t, ns)
}

func inode(t *testing.T, path string) uint32 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return uint32(st.Ino)
}

func openQueues(t *testing.T, o tap.QueueOptions) *tap.Queues {
	t.Helper()
	q, err := tap.OpenQueues(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() }) // a test may have closed it
	return q
}

func iterator(t *testing.T) *queueiter.Iterator {
	t.Helper()
	it, err := queueiter.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := it.Close(); err != nil {
			t.Error(err)
		}
	})
	return it
}

// of are the queues of the devices in that netns.
func of(t *testing.T, it *queueiter.Iterator, netns uint32) []queueiter.Queue {
	t.Helper()
	all, err := it.Read()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(q queueiter.Queue) bool { return q.Device.Netns != netns })
}

// heldBy are the descriptors of a process.
func heldBy(t *testing.T, it *queueiter.Iterator, pid int) []queueiter.Holder {
	t.Helper()
	all, err := it.Read()
	if err != nil {
		t.Fatal(err)
	}
	var held []queueiter.Holder
	for _, q := range all {
		for _, h := range q.Holders {
			if h.PID == pid {
				held = append(held, h)
			}
		}
	}
	return held
}

// process is a program that waits for its standard input to end.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start runs a program with descriptors 3 and above; it is ended with the test.
func start(t *testing.T, fds []int, args ...string) *process {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	for _, fd := range fds {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(dup), "queue")
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	return &process{Cmd: cmd, in: in, out: bufio.NewReader(out)}
}

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}
