package exec_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/output"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"golang.org/x/sys/unix"
)

// patience bounds each wait for an answer or an end.
const patience = 20 * time.Second

// How VMMs open a TAP.
const (
	oneQueue = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR
	multi    = oneQueue | unix.IFF_MULTI_QUEUE
)

// A sandbox is a netns with the TAP "tap-eth0" that an ADD made.
type sandbox struct {
	t     testing.TB
	netns string
	host  string
	id    string
}

// newSandbox runs ADD with these keys of the configuration in addition, such as `"queues": 2`.
func newSandbox(t testing.TB, keys string) *sandbox {
	t.Helper()
	testnode.Require(t, "root", "tun", "bpf")
	s := &sandbox{t: t, host: testnode.NewNetns(t), netns: testnode.NewNetns(t), id: fmt.Sprintf("sandbox%d", time.Now().UnixNano())}
	conf := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "tapir", "mtu": 1500, %s,
		"ipam": {"type": "tapir-ipam", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}`, keys)
	s.cni("ADD", conf)
	t.Cleanup(func() {
		s.cni("DEL", conf)
		for _, dir := range []string{"/run/tapir", "/sys/fs/bpf/tapir"} {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

func (s *sandbox) cni(verb, conf string) {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(os.Getenv(binDirEnv), "tapir"))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + s.id, "CNI_NETNS=" + s.netns, "CNI_IFNAME=eth0", "CNI_PATH=/nonexistent"}
	cmd.Stdin = strings.NewReader(conf)
	testnode.In(s.t, s.host, func() {
		if out, err := cmd.CombinedOutput(); err != nil {
			s.t.Fatalf("%s: %v: %s", verb, err, out)
		}
	})
}

// A session is a running command whose program is the stand-in.
type session struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	log   *output.Buffer
	vmm   int // its pid
	ended chan struct{}
}

// supervised starts the stand-in with "tapirctl exec" and these flags in the sandbox.
func (s *sandbox) supervised(flags []string, vmmArgs ...string) *session {
	s.t.Helper()
	args := append([]string{tapirctl(), "exec"}, flags...)
	return s.start(s.netns, append(append(args, "--", self(s.t), vmmArg), vmmArgs...))
}

// alone starts it without.
func (s *sandbox) alone() *session {
	s.t.Helper()
	return s.start(s.netns, []string{self(s.t), vmmArg})
}

func tapirctl() string { return filepath.Join(os.Getenv(binDirEnv), "tapirctl") }

func self(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// start starts a command that ends up in the stand-in and waits for that.
func (s *sandbox) start(netns string, argv []string) *session {
	s.t.Helper()
	return s.startCmd(netns, exec.Command(argv[0], argv[1:]...))
}

func (s *sandbox) startCmd(netns string, cmd *exec.Cmd) *session {
	s.t.Helper()
	v := &session{t: s.t, cmd: cmd, lines: make(chan string, 64), log: &output.Buffer{}, ended: make(chan struct{})}
	var err error
	if v.in, err = v.cmd.StdinPipe(); err != nil {
		s.t.Fatal(err)
	}
	out, w := io.Pipe()
	v.cmd.Stdout, v.cmd.Stderr = w, v.log
	testnode.In(s.t, netns, func() { err = v.cmd.Start() })
	if err != nil {
		s.t.Fatal(err)
	}
	go func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			v.lines <- in.Text()
		}
	}()
	go func() {
		_ = v.cmd.Wait() // tests read ProcessState
		_ = w.Close()
		close(v.ended)
	}()
	s.t.Cleanup(func() {
		_ = v.in.Close() // ends a stand-in
		v.wait()
	})
	v.vmm = v.ready()
	return v
}

// ready waits for the next stand-in and gives its pid.
func (v *session) ready() (pid int) {
	v.t.Helper()
	if _, err := fmt.Sscanf(v.next(), "ready %d", &pid); err != nil {
		v.t.Fatalf("the stand-in did not start: %v; %s", err, v.log)
	}
	return pid
}

func (v *session) next() string {
	v.t.Helper()
	select {
	case line := <-v.lines:
		return line
	case <-time.After(patience):
		v.t.Fatalf("no answer within %s; log: %s", patience, v.log)
	}
	return ""
}

func (v *session) say(format string, args ...any) string {
	v.t.Helper()
	if _, err := fmt.Fprintf(v.in, format+"\n", args...); err != nil {
		v.t.Fatal(err)
	}
	return v.next()
}

// wait waits for the command's end; one that does not come is forced.
func (v *session) wait() *os.ProcessState {
	v.t.Helper()
	select {
	case <-v.ended:
	case <-time.After(patience):
		_ = v.cmd.Process.Kill()
		v.t.Errorf("the command did not end within %s; log: %s", patience, v.log)
		<-v.ended
	}
	return v.cmd.ProcessState
}

// open opens a queue, which must work, and gives its number in the stand-in. The ifreq must come back as it was sent.
func (v *session) open(name string, flags int) (fd int) {
	v.t.Helper()
	got := v.say("open %s %#x", name, flags)
	var back int
	var as string
	if _, err := fmt.Sscanf(got, "fd %d %v %s", &fd, &back, &as); err != nil {
		v.t.Fatalf("open %s %#x: %s; log: %s", name, flags, got, v.log)
	}
	if back != flags || as != name {
		v.t.Errorf("the ifreq came back with %q and flags %#x, want %q and %#x", as, back, name, flags)
	}
	return fd
}

// refused wants an open to fail with this errno.
func (v *session) refused(name string, flags int, errno string) {
	v.t.Helper()
	if got := v.say("open %s %#x", name, flags); got != "errno "+errno {
		v.t.Errorf("open %s %#x: %s, want errno %s; log: %s", name, flags, got, errno, v.log)
	}
}

// flags asks the driver by TUNGETIFF on a process's own fd.
func flags(t testing.TB, pid, fd int) uint16 {
	t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	got, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(got)
	ifr, err := unix.NewIfreq("")
	if err == nil {
		err = unix.IoctlIfreq(got, unix.TUNGETIFF, ifr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ifr.Uint16()
}

// wantFlags wants NAPI and IFF_MULTI_QUEUE to be as given on the stand-in's fd.
func (v *session) wantFlags(fd int, napi, multiQueue bool) {
	v.t.Helper()
	if wrong := differs(v.t, v.vmm, fd, napi, multiQueue); wrong != "" {
		v.t.Errorf("%s; log: %s", wrong, v.log)
	}
}

// differs compares a process's queue with what it should be: the flags of its device, and the NAPI of the queue itself.
func differs(t testing.TB, pid, fd int, napi, multiQueue bool) string {
	t.Helper()
	got := flags(t, pid, fd)
	if (got&unix.IFF_NAPI != 0) != napi || (got&unix.IFF_MULTI_QUEUE != 0) != multiQueue {
		return fmt.Sprintf("fd %d: flags %#x, want NAPI %t and MULTI_QUEUE %t", fd, got, napi, multiQueue)
	}
	queues, err := queueiter.Read()
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range queues {
		if !slices.ContainsFunc(q.Holders, func(h queueiter.Holder) bool { return h.PID == pid && h.FD == fd }) {
			continue
		}
		if q.NAPI != napi || q.Attach != queueiter.Enabled {
			return fmt.Sprintf("fd %d: the queue has NAPI %t and is %s, want NAPI %t and enabled", fd, q.NAPI, q.Attach, napi)
		}
		return ""
	}
	return fmt.Sprintf("fd %d of process %d is no queue", fd, pid)
}

// wantLog wants each of these in the log, on so many lines. What was logged before an answer may be read after it.
func (v *session) wantLog(lines int, words ...string) {
	v.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		found := 0
		for line := range strings.Lines(v.log.String()) {
			if hasAll(line, words) {
				found++
			}
		}
		if found == lines {
			return
		}
		if found > lines || time.Now().After(deadline) {
			v.t.Errorf("%d lines with %q, want %d, in the log: %s", found, words, lines, v.log)
			return
		}
	}
}

func hasAll(line string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(line, w) {
			return false
		}
	}
	return true
}
