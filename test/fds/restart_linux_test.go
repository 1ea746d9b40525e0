package fds_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/client"
	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// A peer whose tapird is killed in the middle sees the end of the connection, not a hang.
func TestKilledInTheMiddle(t *testing.T) {
	n := newNode(t)
	d := n.tapird()
	conn, err := net.Dial("unix", client.DefaultSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(`{"version": 1, "containerID": `)); err != nil {
		t.Fatal(err)
	}
	d.signal(unix.SIGKILL)
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); len(got) > 0 || err != nil && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("want the end, got %q, %v", got, err)
	}
}

// Peers that go on asking while tapird is killed and restarted at any moment all get all their queues, or, where they do not
// ask again, a clear error and nothing.
func TestRestartUnderLoad(t *testing.T) {
	n := newNode(t)
	var pods []*pod
	for range 4 {
		pods = append(pods, n.add(`"queues": 4`))
	}
	d := n.tapird()
	before := countFDs(t, os.Getpid())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var done, cut atomic.Int64
	var workers sync.WaitGroup
	for i, p := range pods {
		for _, wait := range []time.Duration{0, patience} {
			workers.Go(func() {
				for ctx.Err() == nil {
					q, err := client.Client{Wait: wait}.Queues(context.Background(), p.request(2))
					var refused *client.Error
					switch {
					case err == nil && len(q.FDs) == 2:
						done.Add(1)
						err = q.Close()
					case err == nil:
						err = fmt.Errorf("got %d descriptors: %w", len(q.FDs), q.Close())
					case wait == 0 && !errors.As(err, &refused):
						cut.Add(1)
						err = nil
						time.Sleep(time.Millisecond)
					}
					if err != nil {
						t.Errorf("peer %d: %v", i, err)
						return
					}
				}
			})
		}
	}
	for round := range 16 {
		time.Sleep(time.Duration(10+7*round) * time.Millisecond)
		if round%2 == 0 {
			d.signal(unix.SIGKILL)
		} else {
			d.signal(unix.SIGTERM)
			if code := d.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("SIGTERM: exit code %d: %s", code, d.text())
			}
		}
		d = n.tapird()
	}
	time.Sleep(300 * time.Millisecond)
	cancel()
	workers.Wait()
	if !strings.Contains(d.text(), "handed over") {
		t.Error("the last tapird handed nothing over: its threads show nothing")
	}
	d.wantHome()
	t.Logf("%d hand-overs, %d cut short", done.Load(), cut.Load())
	if done.Load() < 20 || cut.Load() == 0 {
		t.Errorf("the load was too small to show anything: %d hand-overs, %d cut short", done.Load(), cut.Load())
	}
	wantNoQueues(t)
	for _, p := range pods {
		p.wantUp()
	}
	testnode.Eventually(t, patience, func() error {
		if after := countFDs(t, os.Getpid()); after > before+4 { // pipes of the tapird that replaced the first
			return fmt.Errorf("the peers have %d descriptors, and had %d", after, before)
		}
		return nil
	})
}

// A second tapird ends and says why; the first serves on. The socket of one that was killed is no obstacle.
func TestTwoDaemons(t *testing.T) {
	n := newNode(t)
	pod := n.add(`"queues": 1`)
	first := n.tapird()
	out, err := exec.Command(bin("tapird")).CombinedOutput()
	want := fmt.Sprintf("another tapird runs there, pid %d", first.cmd.Process.Pid)
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 || !bytes.Contains(out, []byte(want)) {
		t.Errorf("want exit code 1 and %q, got %v: %s", want, err, out)
	}
	if p := ask(t, asking{Request: pod.request(0)}); len(p.FDs) != 1 {
		t.Errorf("the first: %+v", p.answer)
	} else {
		p.end()
	}
	first.signal(unix.SIGKILL)
	if _, err := os.Stat(client.DefaultSocket); err != nil {
		t.Fatal(err)
	}
	n.tapird("--log-format", "json")
	if p := ask(t, asking{Request: pod.request(0)}); len(p.FDs) != 1 {
		t.Errorf("the second: %+v", p.answer)
	}
}

// Flags, file and signals.
func TestDaemon(t *testing.T) {
	n := newNode(t)
	file := filepath.Join(t.TempDir(), "tapird.json")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		text, args string
		code       int
		want       string
	}{
		{`{"logLevel": "warn", "timeout": "2s"}`, "", 0, "ok: socket " + client.DefaultSocket},
		{`{"loglevel": "warn"}`, "", 1, `did you mean "logLevel"`},
		{`{"logLevel": "loud"}`, "", 1, `got "loud"`},
		{`{"timeout": 5}`, "", 1, "timeout"},
		{`{`, "", 1, "JSON"},
		{`{}`, "--max-peers=0", 2, "maxPeers: want 1 to 4096, got 0"},
		{`{}`, "--nonsense", 2, "nonsense"},
		{`{"maxPeers": 0}`, "--max-peers=9", 1, "maxPeers"},
	} {
		write(tt.text)
		args := append([]string{"--check", "--config", file}, strings.Fields(tt.args)...)
		cmd := exec.Command(bin("tapird"), args...)
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != tt.code || !strings.Contains(string(out), tt.want) {
			t.Errorf("%s %s: want exit code %d and %q, got %v: %s", tt.text, tt.args, tt.code, tt.want, err, out)
		}
	}
	write(`{"socket": "/run/tapir/other.sock", "logFormat": "json"}`)
	d := n.tapird("--config", file)
	d.wantLog(`"msg":"serving","socket":"/run/tapir/other.sock"`)
	write(`{"logLevel": "debug"}`)
	if err := d.cmd.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	d.wantLog(`"msg":"set the log level","level":"DEBUG"`)
	write(`{"logLevel": "loud"}`)
	if err := d.cmd.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	d.wantLog(`"msg":"kept the log level"`)
	if st, err := os.Stat("/run/tapir/other.sock"); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("socket: %v, %v", st, err)
	}
	d.signal(unix.SIGTERM)
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("SIGTERM: exit code %d: %s", code, d.text())
	}
	if _, err := os.Stat("/run/tapir/other.sock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// QEMU, unmodified, gets its queues as root from tapird, as root without, and as the TAP's owner: from the start with NAPI.
func TestQEMU(t *testing.T) {
	testnode.Require(t, "qemu")
	n := newNode(t)
	d := n.tapird()
	for _, how := range []string{"root", "direct", "owner"} {
		for _, queues := range []int{1, 2, 4} {
			t.Run(fmt.Sprint(how, " ", queues), func(t *testing.T) {
				pod := n.add(fmt.Sprintf(`"queues": %d, "owner": 4711`, queues))
				argv := []string{bin("tapirctl"), "fds", "--attachment", pod.id + "/eth0"}
				switch how {
				case "direct":
					argv = append(argv, "--direct")
				case "owner":
					argv = append([]string{"setpriv", "--reuid=4711", "--regid=4711", "--clear-groups"}, argv...)
				}
				argv = append(argv, "--", "qemu-system-x86_64", "-M", "microvm,accel=tcg", "-nodefaults", "-display", "none", "-S", "-m", "64",
					"-netdev", "tap,id=n0,vhost=off,fds={fds}", "-device", "virtio-net-device,netdev=n0,mq=on,mac=02:00:00:00:00:01")
				cmd := exec.Command(argv[0], argv[1:]...)
				cmd.Stderr = os.Stderr
				testnode.In(t, n.host, func() {
					if err := cmd.Start(); err != nil {
						t.Fatal(err)
					}
				})
				defer func() {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
					wantNoQueues(t)
					pod.wantUp()
				}()
				wantQueues(t, cmd.Process.Pid, queues)
			})
		}
	}
	d.wantHome()
}

// The placeholders, the exit status, and what is refused before a queue is opened.
func TestFDsCommand(t *testing.T) {
	n := newNode(t)
	n.tapird()
	pod := n.add(`"queues": 2`)
	name := pod.id + "/eth0"
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--attachment", name, "--", "sh", "-c", `echo "$0 $1"; exit 7`, "fds={fds}", "fd={fd}"}, 7, "fds=A:B fd=[A,B]"},
		{[]string{"--attachment", name, "--queues", "1", "--direct", "--", "sh", "-c", `echo "$0 $1"`, "fds={fds}", "fd={fd}"}, 0, "fds=A fd=[A]"},
		{[]string{"--attachment", name, "--", "sh", "-c", "readlink /proc/$$/fd/${0%%:*}", "{fds}"}, 0, "/dev/net/tun"},
		{[]string{"--attachment", name, "--", "no-such-program", "{fds}"}, 127, "no-such-program"},
		{[]string{"--attachment", name, "--", "/etc/passwd", "{fds}"}, 126, "/etc/passwd"},
		{[]string{"--attachment", name, "--", "true"}, 2, "want {fds} or {fd}"},
		{[]string{"--attachment", pod.id, "--", "true", "{fd}"}, 2, "want CONTAINER-ID/IFNAME"},
		{[]string{"--attachment", name, "--queues", "257", "--", "true", "{fd}"}, 2, "want 1 to 256"},
		{[]string{"--attachment", name, "--queues", "3", "--", "true", "{fd}"}, 1, "want at most 2"},
		{[]string{"--attachment", "none/eth0", "--", "true", "{fd}"}, 1, "no attachment"},
		{[]string{"--attachment", name, "--socket", "/run/none", "--wait", "0", "--", "true", "{fd}"}, 1, "/run/none"},
	} {
		cmd := exec.Command(bin("tapirctl"), append([]string{"fds"}, tt.args...)...)
		out, err := cmd.CombinedOutput()
		want := tt.want
		var a, b int // whatever was free
		if _, scanErr := fmt.Sscanf(string(out), "fds=%d:%d ", &a, &b); scanErr == nil {
			want = strings.NewReplacer("A", fmt.Sprint(a), "B", fmt.Sprint(b)).Replace(want)
		} else if _, scanErr := fmt.Sscanf(string(out), "fds=%d ", &a); scanErr == nil {
			want = strings.ReplaceAll(want, "A", fmt.Sprint(a))
		}
		if code := cmd.ProcessState.ExitCode(); code != tt.code || !strings.Contains(string(out), want) {
			t.Errorf("%q: want exit code %d and %q, got %v: %s", tt.args, tt.code, want, err, out)
		}
	}
	wantNoQueues(t)
}
