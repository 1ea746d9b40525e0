package install_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/output"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"golang.org/x/sys/unix"
)

// What is here tests the process tapird in the netns that the tests run in, with folders of its own for what a runtime reads.

// patience is how long what is bound to happen may take on a busy machine.
const patience = 60 * time.Second

type object map[string]any

// A node is one node's folders, and what tapird is told of them.
type node struct {
	t                         testing.TB
	from, bin, tools, conf, d string // d: the node's own folder of the runtime class
	etc                       string
	install                   object
}

func newNode(t testing.TB, template string, over object) *node {
	t.Helper()
	testnode.Require(t, "root", "tun", "bpf", "btf")
	dir := t.TempDir()
	n := &node{
		t: t, from: filepath.Join(dir, "image"), bin: filepath.Join(dir, "bin"), tools: filepath.Join(dir, "tools"), conf: filepath.Join(dir, "net.d"),
		etc: filepath.Join(dir, "etc"),
	}
	n.d = filepath.Join(n.conf, "tapir.d")
	for _, d := range []string{n.from, n.etc, n.conf, n.bin} {
		mustDo(t, os.MkdirAll(d, 0o755))
	}
	for _, name := range []string{"tapir", "tapir-ipam", "tapirctl"} {
		put(t, filepath.Join(n.from, name), read(t, command(name)), 0o755)
	}
	n.install = object{"from": n.from, "cniBinDir": n.bin, "binDir": n.tools, "cniConfDir": n.conf, "template": n.template()}
	maps.Copy(n.install, over)
	n.writeTemplate(template)
	t.Cleanup(func() {
		for _, dir := range []string{state.DefaultDir, "/sys/fs/bpf/tapir"} {
			mustDo(t, os.RemoveAll(dir))
		}
	})
	return n
}

func command(name string) string { return filepath.Join(os.Getenv(testnode.BinDirEnv), name) }

func (n *node) template() string { return filepath.Join(n.etc, "conflist.json") }

// writeTemplate writes it in one piece, as kubelet writes a ConfigMap.
func (n *node) writeTemplate(text string) { put(n.t, n.template(), []byte(text), 0o644) }

func (n *node) config() string {
	n.t.Helper()
	path := filepath.Join(n.etc, "tapird.json")
	data, err := json.Marshal(object{"install": n.install, "reconcile": "off"})
	mustDo(n.t, err)
	put(n.t, path, data, 0o644)
	return path
}

// own is the path of tapir's own configuration.
func (n *node) own() string { return filepath.Join(n.conf, "10-tapir.conflist") }

// put writes a file by renaming.
func put(t testing.TB, path string, data []byte, mode fs.FileMode) {
	t.Helper()
	next := path + ".next"
	mustDo(t, os.WriteFile(next, data, mode))
	mustDo(t, os.Chmod(next, mode))
	mustDo(t, os.Rename(next, path))
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	mustDo(t, err)
	return data
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same waits until the file has that content.
func (n *node) same(path string, want []byte) {
	n.t.Helper()
	testnode.Eventually(n.t, patience, func() error {
		got, err := os.ReadFile(path)
		if err == nil && !bytes.Equal(got, want) {
			err = fmt.Errorf("%s: want %d bytes %.300q, got %d bytes %.300q", path, len(want), want, len(got), got)
		}
		return err
	})
}

func (n *node) absent(path string) {
	n.t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		n.t.Errorf("want no %s, got %v", path, err)
	}
}

// noTemp fails where a file that was being written is left.
func (n *node) noTemp() {
	n.t.Helper()
	for _, dir := range []string{n.bin, n.tools, n.conf, n.d} {
		left, err := filepath.Glob(filepath.Join(dir, ".tapir-new-*"))
		mustDo(n.t, err)
		if len(left) > 0 {
			n.t.Errorf("left are %q", left)
		}
	}
}

// daemon is a tapird that runs.
type daemon struct {
	t   testing.TB
	cmd *exec.Cmd
	log *output.Buffer
}

func (n *node) start() *daemon { n.t.Helper(); return n.startBuild(command("tapird")) }

func (n *node) startBuild(path string) *daemon {
	n.t.Helper()
	d := &daemon{t: n.t, log: &output.Buffer{}}
	d.cmd = exec.Command(path, "--config", n.config())
	d.cmd.Stderr = d.log
	mustDo(n.t, d.cmd.Start())
	n.t.Cleanup(func() {
		d.end(unix.SIGTERM)
		if n.t.Failed() {
			n.t.Logf("tapird said:\n%s", d.log)
		}
	})
	return d
}

func (d *daemon) end(s syscall.Signal) {
	d.t.Helper()
	if d.cmd.ProcessState == nil {
		_ = d.cmd.Process.Signal(s) // it may have ended
		_ = d.cmd.Wait()
	}
}

func (d *daemon) hangup() { d.t.Helper(); mustDo(d.t, d.cmd.Process.Signal(unix.SIGHUP)) }

func (d *daemon) says(text string) {
	d.t.Helper()
	testnode.Eventually(d.t, patience, func() error {
		if got := d.log.String(); !strings.Contains(got, text) {
			return fmt.Errorf("want %q in the log, got %s", text, got)
		}
		return nil
	})
}

func get(path string) (code int, body []byte, err error) {
	r, err := http.Get("http://127.0.0.1:10177" + path) //nolint:noctx // of a process of the test
	if err != nil {
		return 0, nil, err
	}
	defer r.Body.Close()
	body, err = io.ReadAll(r.Body)
	return r.StatusCode, body, err
}

// readiness is what /readyz says of the part.
type readiness struct {
	Name, NotReady string
	Running        bool
	Notes          []string
}

func ready() (code int, r readiness, err error) {
	defer http.DefaultClient.CloseIdleConnections()
	code, body, err := get("/readyz")
	if err != nil {
		return 0, r, err
	}
	var answer struct{ Parts []readiness }
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, r, fmt.Errorf("%w: %s", err, body)
	}
	at := slices.IndexFunc(answer.Parts, func(p readiness) bool { return p.Name == "install" })
	if at < 0 {
		return 0, r, fmt.Errorf("no part install in %s", body)
	}
	return code, answer.Parts[at], nil
}

// ready waits until /readyz is 200.
func (d *daemon) ready() {
	d.t.Helper()
	testnode.Eventually(d.t, patience, func() error {
		code, r, err := ready()
		if err == nil && (code != http.StatusOK || r.NotReady != "") {
			err = fmt.Errorf("want 200, got %d: %+v", code, r)
		}
		return err
	})
}

// notReady waits until /readyz is 503 with that reason.
func (d *daemon) notReady(reason string) {
	d.t.Helper()
	testnode.Eventually(d.t, patience, func() error {
		code, r, err := ready()
		if err == nil && (code != http.StatusServiceUnavailable || !strings.Contains(r.NotReady, reason)) {
			err = fmt.Errorf("want 503 with %q, got %d: %+v", reason, code, r)
		}
		return err
	})
}

// uninstall runs it, and gives what it said.
func (n *node) uninstall(args ...string) (string, error) {
	n.t.Helper()
	out, err := exec.Command(command("tapird"), append([]string{"uninstall", "--config", n.config()}, args...)...).CombinedOutput()
	return string(out), err
}

// A pod is an attachment that a runtime makes with what is installed.
type pod struct {
	n         *node
	id, netns string
	list      []byte // the list that was there at its ADD, as a runtime keeps it
}

var serial atomic.Int64

func (n *node) pod() *pod {
	n.t.Helper()
	return &pod{n: n, id: fmt.Sprint("pod", serial.Add(1)), netns: testnode.NewNetns(n.t), list: read(n.t, n.own())}
}

// cni calls the first plugin of the pod's list, as the runtime would.
func (p *pod) cni(verb string) error {
	var list struct {
		Name, CNIVersion string
		Plugins          []object
	}
	if err := json.Unmarshal(p.list, &list); err != nil {
		return err
	}
	conf := list.Plugins[0]
	conf["name"], conf["cniVersion"] = list.Name, list.CNIVersion
	delete(conf, "capabilities")
	data, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(p.n.bin, conf["type"].(string)))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=eth0", "CNI_PATH=" + p.n.bin}
	cmd.Stdin = bytes.NewReader(data)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s of %s: %w: %s", verb, p.id, err, out)
	}
	return nil
}
