package cni_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Faults are injected where the plugin meets the kernel: a seccomp filter hands chosen system calls to the test (user
// notification, Documentation/userspace-api/seccomp_filter.rst), which lets each one continue or makes it fail unrun. They
// are counted over all threads of the process; those of plugins that it runs go through.

// faultExec is the name under which this binary installs the filter and then becomes the plugin.
const faultExec = "fault-exec"

// Calls that change something outside the process, and those that answers of the kernel come by.
var (
	changingCalls = []uint32{
		unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_IOCTL, unix.SYS_BPF, unix.SYS_SETNS, unix.SYS_OPENAT, unix.SYS_PWRITE64,
		unix.SYS_SOCKET, unix.SYS_WRITE, unix.SYS_FTRUNCATE, unix.SYS_MKDIRAT, unix.SYS_RENAMEAT, unix.SYS_FLOCK, unix.SYS_FSYNC,
	}
	answerCalls = []uint32{unix.SYS_RECVFROM, unix.SYS_RECVMSG}
)

var callNames = map[uint32]string{
	unix.SYS_SENDTO: "sendto", unix.SYS_SENDMSG: "sendmsg", unix.SYS_IOCTL: "ioctl", unix.SYS_BPF: "bpf", unix.SYS_SETNS: "setns",
	unix.SYS_OPENAT: "openat", unix.SYS_PWRITE64: "pwrite", unix.SYS_SOCKET: "socket", unix.SYS_WRITE: "write", unix.SYS_FTRUNCATE: "ftruncate",
	unix.SYS_MKDIRAT: "mkdirat", unix.SYS_RENAMEAT: "renameat", unix.SYS_FLOCK: "flock", unix.SYS_RECVFROM: "recvfrom", unix.SYS_RECVMSG: "recvmsg", unix.SYS_FSYNC: "fsync",
}

func init() {
	if filepath.Base(os.Args[0]) == faultExec {
		runtime.LockOSThread()
		fmt.Fprintln(os.Stderr, "fault-exec:", becomeFiltered(os.Args[1], os.Args[2:]))
		os.Exit(125)
	}
}

// becomeFiltered runs the program at path with the filter for those calls. File 3 is told the listener's number, and 4
// says when the other side has it.
func becomeFiltered(path string, calls []string) error {
	arch := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	const load, equal, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	prog := []unix.SockFilter{{Code: load, K: 4}, {Code: equal, K: arch, Jt: 1}, {Code: ret, K: unix.SECCOMP_RET_ALLOW}, {Code: load, K: 0}}
	for i, c := range calls {
		nr, err := strconv.ParseUint(c, 10, 32)
		if err != nil {
			return err
		}
		prog = append(prog, unix.SockFilter{Code: equal, K: uint32(nr), Jt: uint8(len(calls) - i)})
	}
	prog = append(prog, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW}, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_USER_NOTIF})
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	path0, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	argv := []*byte{path0, nil}
	var envp []*byte
	for _, v := range os.Environ() {
		p, err := unix.BytePtrFromString(v)
		if err != nil {
			return err
		}
		envp = append(envp, p)
	}
	envp = append(envp, nil)
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return fmt.Errorf("install the filter: %w", errno)
	}
	// From here on the filtered calls wait for the other side; writev and read are none of them.
	told := binary.NativeEndian.AppendUint32(nil, uint32(fd))
	iov := unix.Iovec{Base: &told[0]}
	iov.SetLen(len(told))
	if _, _, errno = unix.RawSyscall(unix.SYS_WRITEV, 3, uintptr(unsafe.Pointer(&iov)), 1); errno != 0 {
		return errno
	}
	if _, _, errno = unix.RawSyscall(unix.SYS_READ, 4, uintptr(unsafe.Pointer(&told[0])), 1); errno != 0 {
		return errno
	}
	_, _, errno = unix.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(path0)), uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&envp[0])))
	return errno
}

// The kernel's struct seccomp_notif and seccomp_notif_resp.
type (
	notification struct {
		id          uint64
		pid, flags  uint32
		nr, arch    uint32
		instruction uint64
		args        [6]uint64
	}
	verdict struct {
		id    uint64
		val   int64
		err   int32
		flags uint32
	}
)

// A fault makes the n-th call of the process fail with EIO, counted from 1; n 0 makes none fail.
type fault struct {
	n      int
	onward bool // and every one after it
	kill   bool // the process is killed instead
	calls  []uint32
	// counts says of a call whether it is one of those that are counted; nil: all are.
	counts func(call string) bool
}

// A faulted run is what became of a call of the plugin.
type faulted struct {
	answer
	calls []string // those that were counted, in words
	hit   string   // the first that was made to fail
}

// faulty runs a command on the node with a fault.
func (n *node) faulty(f fault, env []string, stdin []byte, path string) faulted {
	n.t.Helper()
	toldR, toldW, err := os.Pipe()
	if err != nil {
		n.t.Fatal(err)
	}
	goR, goW, err := os.Pipe()
	if err != nil {
		n.t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{faultExec, path}
	for _, nr := range f.calls {
		cmd.Args = append(cmd.Args, strconv.Itoa(int(nr)))
	}
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), &out, &errOut
	cmd.ExtraFiles = []*os.File{toldW, goR}
	n.start(cmd)
	_ = errors.Join(toldW.Close(), goR.Close())
	defer func() { _ = errors.Join(toldR.Close(), goW.Close()) }()
	listener, err := takeListener(cmd.Process.Pid, toldR)
	if err != nil {
		kill(cmd)
		n.t.Fatalf("take the filter's listener: %v: %s", err, errOut.Bytes())
	}
	defer unix.Close(listener)
	watchdog := time.AfterFunc(callPatience, func() { _ = cmd.Process.Kill() })
	s := &supervisor{fault: f, pid: cmd.Process.Pid, path: path}
	done := make(chan error, 1)
	go func() { done <- s.serve(listener) }()
	if _, err := goW.Write([]byte{1}); err != nil {
		n.t.Fatal(err)
	}
	_ = cmd.Wait() // its exit code says it
	if err := <-done; err != nil {
		n.t.Errorf("supervise the plugin: %v", err)
	}
	if !watchdog.Stop() {
		n.t.Errorf("%s with %s failing did not end within %s", filepath.Base(path), s.hit, callPatience)
	}
	return faulted{answer{out.Bytes(), errOut.Bytes(), cmd.ProcessState.ExitCode()}, s.seen, s.hit}
}

// takeListener gets the listener out of the process that has installed the filter.
func takeListener(pid int, told *os.File) (int, error) {
	var number [4]byte
	if _, err := told.Read(number[:]); err != nil {
		return 0, err
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(pidfd)
	return unix.PidfdGetfd(pidfd, int(binary.NativeEndian.Uint32(number[:])), 0)
}

// A supervisor decides about each call.
type supervisor struct {
	fault
	pid  int
	path string
	seen []string
	hit  string
}

func (s *supervisor) serve(listener int) error {
	for {
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if ready[0].Revents&unix.POLLIN == 0 {
			if ready[0].Revents != 0 {
				return nil // nobody has the filter any more
			}
			continue
		}
		var req notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&req))); errno != 0 {
			if errno == unix.EINTR || errno == unix.ENOENT {
				continue // it was killed meanwhile
			}
			return errno
		}
		resp := verdict{id: req.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if s.fails(&req) {
			if s.kill {
				if err := unix.Kill(s.pid, unix.SIGKILL); err != nil {
					return err
				}
				continue
			}
			resp.flags, resp.err = 0, -int32(unix.EIO)
		}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&resp))); errno != 0 && errno != unix.ENOENT {
			return errno
		}
	}
}

// fails counts a call and says whether it is to fail.
func (s *supervisor) fails(req *notification) bool {
	call, ok := s.describe(req)
	if !ok || s.counts != nil && !s.counts(call) {
		return false
	}
	s.seen = append(s.seen, call)
	if s.n == 0 || len(s.seen) != s.n && !(s.onward && len(s.seen) > s.n) {
		return false
	}
	if s.hit == "" {
		s.hit = fmt.Sprintf("call %d, %s", s.n, call)
	}
	return true
}

// describe says in words what a call does; not ok: it is the runtime's, a child's, or an answer to the caller.
func (s *supervisor) describe(req *notification) (string, bool) {
	if tgid(req.pid) != s.pid {
		return "", false
	}
	proc := fmt.Sprintf("/proc/%d/", req.pid)
	if exe, err := os.Readlink(proc + "exe"); err != nil || exe != s.path {
		return "", false // before it became the plugin
	}
	name := callNames[req.nr]
	switch req.nr {
	case unix.SYS_SOCKET:
		return fmt.Sprintf("%s family %d protocol %d", name, req.args[0], req.args[2]), true
	case unix.SYS_BPF:
		return fmt.Sprintf("%s command %d", name, req.args[0]), true
	case unix.SYS_OPENAT, unix.SYS_MKDIRAT:
		path := readString(int(req.pid), req.args[1])
		return fmt.Sprintf("%s %s", name, path), !strings.HasPrefix(path, "/sys/kernel/mm/")
	case unix.SYS_RENAMEAT:
		return fmt.Sprintf("%s %s", name, readString(int(req.pid), req.args[1])), true
	}
	file, _ := os.Readlink(fmt.Sprintf("%sfd/%d", proc, req.args[0]))
	kind, _, _ := strings.Cut(file, ":[")
	switch req.nr {
	case unix.SYS_WRITE:
		own := req.args[0] <= 2 || kind == "pipe" || strings.HasPrefix(file, "anon_inode:")
		return name + " " + kind, !own
	case unix.SYS_IOCTL:
		return fmt.Sprintf("%s %#x of %s", name, req.args[1], kind), true
	case unix.SYS_SENDTO:
		return fmt.Sprintf("%s %s message %d", name, kind, netlinkType(int(req.pid), req.args[1])), true
	}
	return name + " " + kind, true
}

// tgid is the process that a thread belongs to.
func tgid(tid uint32) int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), "\nTgid:")
	line, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.Atoi(strings.TrimSpace(line))
	return n
}

// peek reads memory of the process.
func peek(pid int, address uint64, size int) []byte {
	buf := make([]byte, size)
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(size)
	n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(address), Len: size}}, 0)
	if err != nil {
		return nil
	}
	return buf[:n]
}

func readString(pid int, address uint64) string {
	// A string may end where the memory does: read no further than its page.
	raw := peek(pid, address, min(256, 4096-int(address%4096)))
	if end := bytes.IndexByte(raw, 0); end >= 0 {
		raw = raw[:end]
	}
	return string(raw)
}

// netlinkType is the type of the netlink message at an address (struct nlmsghdr).
func netlinkType(pid int, address uint64) uint16 {
	if raw := peek(pid, address, 8); len(raw) == 8 {
		return binary.NativeEndian.Uint16(raw[4:])
	}
	return 0
}

// The injector itself: the count is stable, a call in the middle fails, and the error comes back.
func TestFaultsAreInjected(t *testing.T) {
	n := newNode(t)
	c := conf(nil)
	n.warm(c)
	p := n.pod("c1", c)
	path, env, stdin := filepath.Join(os.Getenv(binDirEnv), "tapir"), p.env("ADD"), marshal(t, c)
	whole := n.faulty(fault{calls: changingCalls}, env, stdin, path)
	if whole.code != 0 || whole.hit != "" {
		t.Fatalf("ADD without a fault: %s", whole)
	}
	p.works("DEL", nil)
	for i, call := range whole.calls {
		if strings.HasPrefix(call, "ioctl 0x400454ca") { // TUNSETIFF
			got := n.faulty(fault{n: i + 1, calls: changingCalls}, env, stdin, path)
			wantText(t, got.hit, "ioctl 0x400454ca")
			wantText(t, wantCode(t, got.answer, 999), `"tap-eth0"`, syscall.EIO.Error())
			return
		}
	}
	t.Fatalf("ADD made no TAP by these calls:\n%s", strings.Join(whole.calls, "\n"))
}
