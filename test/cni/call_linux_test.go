package cni_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// callPatience bounds every call: nothing that the plugin does may take longer.
const callPatience = 30 * time.Second

// object is a JSON object of a configuration.
type object map[string]any

// conf is the configuration that tests start from, with the given keys on top; a nil value takes a key away.
func conf(over object) object {
	c := object{
		"cniVersion": "1.1.0", "name": "pods", "type": "tapir",
		"ipam": object{
			"type":   "tapir-ipam",
			"ranges": [][]object{{{"subnet": "10.9.0.0/24"}}, {{"subnet": "fd00:9::/64"}}},
			"routes": []object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
		},
	}
	return c.with(over)
}

func (c object) with(over object) object {
	c = maps.Clone(c)
	for k, v := range over {
		if c[k] = v; v == nil {
			delete(c, k)
		}
	}
	return c
}

// ranges is an ipam object with one set for each subnet.
func ranges(subnets ...string) object {
	sets := [][]object{}
	for _, s := range subnets {
		sets = append(sets, []object{{"subnet": s}})
	}
	return object{"type": "tapir-ipam", "ranges": sets, "routes": []object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}}}
}

// answer is what a command said.
type answer struct {
	stdout, stderr []byte
	code           int
}

func (a answer) String() string {
	return fmt.Sprintf("exit code %d\nstdout: %s\nstderr: %s", a.code, bytes.TrimSpace(a.stdout), bytes.TrimSpace(a.stderr))
}

// run runs a command on the node.
func (n *node) run(stdin []byte, env []string, name string, args ...string) answer {
	n.t.Helper()
	cmd := exec.Command(filepath.Join(os.Getenv(binDirEnv), name), args...)
	cmd.Env = env
	cmd.Stdin = bytes.NewReader(stdin)
	return n.runCmd(cmd)
}

func (n *node) runCmd(cmd *exec.Cmd) answer {
	n.t.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	n.start(cmd)
	watchdog := time.AfterFunc(callPatience, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !watchdog.Stop() {
		n.t.Errorf("%s did not end within %s", cmd, callPatience)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		n.t.Errorf("%s: %v", cmd, err)
	}
	return answer{out.Bytes(), errOut.Bytes(), cmd.ProcessState.ExitCode()}
}

// start starts a command on the node. The process ends with the test at the latest.
func (n *node) start(cmd *exec.Cmd) {
	n.t.Helper()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	testnode.In(n.t, n.netns, func() {
		if err := cmd.Start(); err != nil {
			n.t.Fatal(err)
		}
	})
}

// ctl runs tapirctl.
func (n *node) ctl(args ...string) answer {
	n.t.Helper()
	return n.run(nil, os.Environ(), "tapirctl", args...)
}

// ctlJSON runs tapirctl, which must succeed, and decodes what it prints.
func (n *node) ctlJSON(v any, args ...string) {
	n.t.Helper()
	out := n.ctl(append(args, "-o", "json")...)
	if out.code != 0 {
		n.t.Fatalf("tapirctl %q: %s", args, out)
	}
	if err := json.Unmarshal(out.stdout, v); err != nil {
		n.t.Fatalf("tapirctl %q: %v: %s", args, err, out)
	}
}

// A pod is one attachment as a runtime sees it.
type pod struct {
	n      *node
	id     string
	netns  string
	ifName string
	args   string // CNI_ARGS
	conf   object
}

// pod makes a sandbox whose attachment is eth0.
func (n *node) pod(id string, c object) *pod {
	n.t.Helper()
	return &pod{n: n, id: id, netns: testnode.NewNetns(n.t), ifName: "eth0", conf: c}
}

func (p *pod) env(verb string) []string {
	return []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=" + p.ifName,
		"CNI_ARGS=" + p.args, "CNI_PATH=" + os.Getenv(binDirEnv), "PATH=/nonexistent",
	}
}

// call runs one verb of the plugin with the pod's configuration and these keys on top.
func (p *pod) call(verb string, over object) answer {
	p.n.t.Helper()
	return p.n.run(marshal(p.n.t, p.conf.with(over)), p.env(verb), "tapir")
}

// add runs ADD, which must succeed.
func (p *pod) add() *types100.Result {
	p.n.t.Helper()
	out := p.call("ADD", nil)
	if out.code != 0 {
		p.n.t.Fatalf("ADD of %s: %s", p.id, out)
	}
	return parseResult(p.n.t, out.stdout, fmt.Sprint(p.conf["cniVersion"]))
}

// parseResult reads a result as libcni does; it must be of that version.
func parseResult(t testing.TB, stdout []byte, version string) *types100.Result {
	t.Helper()
	r, err := create.Create(version, stdout)
	if err != nil {
		t.Fatalf("read the result: %v: %s", err, stdout)
	}
	if r.Version() != version {
		t.Errorf("result has cniVersion %q, want %q", r.Version(), version)
	}
	result, err := types100.NewResultFromResult(r)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// works runs a verb that must succeed and print nothing.
func (p *pod) works(verb string, over object) {
	p.n.t.Helper()
	if out := p.call(verb, over); out.code != 0 || len(bytes.TrimSpace(out.stdout)) > 0 {
		p.n.t.Errorf("%s of %s: want success and no output, got %s", verb, p.id, out)
	}
}

// fails runs a verb that must fail with this CNI code, and gives the error's text.
func (p *pod) fails(verb string, code uint, over object) string {
	p.n.t.Helper()
	return wantCode(p.n.t, p.call(verb, over), code)
}

// wantCode wants a CNI error of that code on stdout, and gives its text.
func wantCode(t testing.TB, out answer, code uint) string {
	t.Helper()
	var e types.Error
	if err := json.Unmarshal(out.stdout, &e); err != nil {
		t.Fatalf("want a CNI error with code %d, got %s", code, out)
	}
	if e.Code != code || out.code != 1 {
		t.Errorf("want CNI code %d and exit code 1, got %s", code, out)
	}
	return e.Msg + e.Details
}

// wantText wants each of these in a text.
func wantText(t testing.TB, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("want %q in: %s", w, text)
		}
	}
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// kill ends a process of the test's own and waits for it.
func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(unix.SIGKILL) // it may have ended
	_ = cmd.Wait()
}

func itoa(n int) string { return strconv.Itoa(n) }
