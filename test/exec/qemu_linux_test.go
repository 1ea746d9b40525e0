package exec_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/output"
	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// QEMU, unmodified and opening by name, runs each of its queues with NAPI under exec, and none without.
func TestQEMU(t *testing.T) {
	testnode.Require(t, "qemu")
	for _, tt := range []struct {
		made, asks int
		napi       bool
	}{
		{1, 1, false}, {1, 1, true}, {2, 2, false}, {2, 2, true}, {4, 4, true},
		{2, 1, true}, // which QEMU alone could not open
	} {
		t.Run(fmt.Sprintf("%d made %d asked exec %t", tt.made, tt.asks, tt.napi), func(t *testing.T) {
			s := newSandbox(t, fmt.Sprintf(`"queues": %d`, tt.made))
			netdev := "tap,id=n0,ifname=tap-eth0,script=no,downscript=no,vhost=off"
			if tt.asks > 1 {
				netdev += fmt.Sprint(",queues=", tt.asks)
			}
			q := s.qemu(tt.napi, netdev)
			q.wantQueues(tt.asks, tt.napi, tt.made > 1)
		})
	}
}

// A card that is added to a running QEMU is supervised like one at its start.
func TestQEMUHotPlug(t *testing.T) {
	testnode.Require(t, "qemu")
	s := newSandbox(t, `"queues": 2`)
	q := s.qemu(true, "user,id=u0,restrict=on")
	q.wantQueues(0, true, true)
	q.do("netdev_add", `{"type": "tap", "id": "n1", "ifname": "tap-eth0", "script": "no", "downscript": "no", "queues": 2}`)
	q.wantQueues(2, true, true)
	q.do("netdev_del", `{"id": "n1"}`)
	q.wantQueues(0, true, true)
}

// A machine is a QEMU whose CPU is never started, driven by QMP.
type machine struct {
	t   testing.TB
	cmd *exec.Cmd
	log *output.Buffer
	qmp net.Conn
	in  *bufio.Reader
}

func (s *sandbox) qemu(supervised bool, netdev string) *machine {
	s.t.Helper()
	socket := filepath.Join(s.t.TempDir(), "qmp")
	argv := []string{
		"qemu-system-x86_64", "-M", "microvm,accel=tcg", "-nodefaults", "-display", "none", "-S", "-m", "64",
		"-qmp", "unix:" + socket + ",server=on,wait=off", "-netdev", netdev,
	}
	if supervised {
		argv = append([]string{tapirctl(), "exec", "--"}, argv...)
	}
	m := &machine{t: s.t, cmd: exec.Command(argv[0], argv[1:]...), log: &output.Buffer{}}
	m.cmd.Stdout, m.cmd.Stderr = m.log, m.log
	var err error
	testnode.In(s.t, s.netns, func() { err = m.cmd.Start() })
	if err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- m.cmd.Wait() }()
	s.t.Cleanup(func() {
		_ = m.cmd.Process.Signal(unix.SIGTERM) // QEMU ends with 0, and exec too
		select {
		case err = <-ended:
		case <-time.After(patience):
			_ = m.cmd.Process.Kill()
			err = <-ended
		}
		if err != nil {
			s.t.Errorf("QEMU: %v; %s", err, m.log)
		}
	})
	for deadline := time.Now().Add(patience); m.qmp == nil; time.Sleep(20 * time.Millisecond) {
		if m.qmp, err = net.Dial("unix", socket); err != nil && time.Now().After(deadline) {
			s.t.Fatalf("QEMU does not answer: %v; %s", err, m.log)
		}
	}
	s.t.Cleanup(func() { _ = m.qmp.Close() })
	m.in = bufio.NewReader(m.qmp)
	m.do("qmp_capabilities", "{}")
	return m
}

// do runs a QMP command, which must succeed.
func (m *machine) do(command, arguments string) {
	m.t.Helper()
	_ = m.qmp.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(m.qmp, `{"execute": %q, "arguments": %s}`+"\n", command, arguments); err != nil {
		m.t.Fatal(err)
	}
	for {
		line, err := m.in.ReadBytes('\n')
		if err != nil {
			m.t.Fatalf("%s: %v", command, err)
		}
		var answer map[string]json.RawMessage
		if err := json.Unmarshal(line, &answer); err != nil {
			m.t.Fatal(err)
		}
		if answer["error"] != nil {
			m.t.Fatalf("%s: %s; %s", command, answer["error"], m.log)
		}
		if answer["return"] != nil {
			return
		}
	}
}

// wantQueues looks at every tun fd of the QEMU process. The queues are those with a device.
func (m *machine) wantQueues(count int, napi, multiQueue bool) {
	m.t.Helper()
	pid := m.pid()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		m.t.Fatal(err)
	}
	found := 0
	for _, e := range entries {
		target, _ := os.Readlink(filepath.Join(dir, e.Name()))
		if target != "/dev/net/tun" {
			continue
		}
		found++
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			m.t.Fatal(err)
		}
		if wrong := differs(m.t, pid, fd, napi, multiQueue); wrong != "" {
			m.t.Errorf("%s; %s", wrong, m.log)
		}
	}
	if found != count {
		m.t.Errorf("QEMU has %d queues open, want %d; %s", found, count, m.log)
	}
}

// pid is QEMU's own: the command's, or its child's.
func (m *machine) pid() int {
	m.t.Helper()
	pid := m.cmd.Process.Pid
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		m.t.Fatal(err)
	}
	if strings.HasPrefix(string(name), "qemu") {
		return pid
	}
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, f := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(f)
			if err == nil {
				return child
			}
		}
	}
	m.t.Fatalf("no QEMU below %d (%q)", pid, name)
	return 0
}
