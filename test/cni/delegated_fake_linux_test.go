package cni_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Stand-ins for IPAM plugins are this test binary under another name. Each keeps a lease as a file beside itself from ADD
// to DEL and logs every call; the name says how its ADD ends.
const fakePrefix = "fake-ipam-"

// fakeResult is what a well-behaved stand-in gives out.
const fakeResult = `{"cniVersion":"1.1.0","ips":[{"address":"fd00:40::9/64","gateway":"fd00:40::1"},{"address":"10.40.0.9/24","gateway":"10.40.0.1"}],
	"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"dns":{"nameservers":["10.40.0.53"]}}`

// A fakeCall is one call of a stand-in.
type fakeCall struct {
	Verb   string
	Env    []string
	Config json.RawMessage
}

func init() {
	if how, ok := strings.CutPrefix(filepath.Base(os.Args[0]), fakePrefix); ok {
		os.Exit(fakeIPAM(how))
	}
}

func fakeIPAM(how string) int {
	dir, verb := filepath.Dir(os.Args[0]), os.Getenv("CNI_COMMAND")
	stdin, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = logFakeCall(dir, verb, stdin)
	}
	lease := filepath.Join(dir, "lease-"+os.Getenv("CNI_CONTAINERID")+"-"+os.Getenv("CNI_IFNAME"))
	switch {
	case err != nil:
	case verb == "DEL":
		if err = os.Remove(lease); os.IsNotExist(err) {
			err = nil
		}
	case verb == "ADD":
		if err = os.WriteFile(lease, nil, 0o600); err == nil {
			return fakeAdd(how)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if how == verb {
		fmt.Printf(`{"cniVersion":"1.1.0","code":77,"msg":"the stand-in has a bad day","details":"at %s"}`, verb)
		return 1
	}
	return 0
}

func logFakeCall(dir, verb string, stdin []byte) error {
	var env []string
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "CNI_") {
			env = append(env, v)
		}
	}
	line, err := json.Marshal(fakeCall{verb, env, stdin})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(append(line, '\n'))
	return err
}

// fakeAdd ends an ADD that has leased already.
func fakeAdd(how string) int {
	switch how {
	case "fails":
		fmt.Print(`{"cniVersion":"1.1.0","code":77,"msg":"the stand-in has a bad day","details":"no lease today"}`)
		return 1
	case "dies":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	case "babbles":
		fmt.Print("Lease granted. Have a nice day!")
	case "is-silent":
	case "has-no-address":
		fmt.Print(`{"cniVersion":"1.1.0","ips":[]}`)
	default:
		fmt.Print(fakeResult)
	}
	return 0
}

// A fakePlugin is a stand-in as the tests see it.
type fakePlugin struct {
	t    testing.TB
	dir  string
	name string
}

// newFake installs a stand-in whose ADD ends as how says; a verb makes that verb fail.
func newFake(t testing.TB, how string) *fakePlugin {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := &fakePlugin{t, t.TempDir(), fakePrefix + how}
	if err := os.Link(self, filepath.Join(f.dir, f.name)); err != nil { // the plugin takes no symbolic link's target for a name
		if err := os.Symlink(self, filepath.Join(f.dir, f.name)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// calls are the calls so far.
func (f *fakePlugin) calls() (calls []fakeCall) {
	f.t.Helper()
	raw, err := os.ReadFile(filepath.Join(f.dir, "log"))
	if err != nil && !os.IsNotExist(err) {
		f.t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var c fakeCall
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			f.t.Fatal(err)
		}
		calls = append(calls, c)
	}
	return calls
}

// verbs are the verbs of the calls so far.
func (f *fakePlugin) verbs() string {
	f.t.Helper()
	var verbs []string
	for _, c := range f.calls() {
		verbs = append(verbs, c.Verb)
	}
	return strings.Join(verbs, " ")
}

// leases are the leases that it has out.
func (f *fakePlugin) leases() []string {
	f.t.Helper()
	list, err := filepath.Glob(filepath.Join(f.dir, "lease-*"))
	if err != nil {
		f.t.Fatal(err)
	}
	return list
}

// hostLocalLeases are the addresses that host-local has out in a network.
func hostLocalLeases(t testing.TB, dir, network string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, network))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "lock" && !strings.HasPrefix(e.Name(), "last_reserved_ip") {
			out = append(out, e.Name())
		}
	}
	return out
}

// delegated makes a pod whose configuration names another IPAM plugin, found in these folders beside the reference plugins.
func (n *node) delegated(id string, c object, dirs ...string) *delegatedPod {
	n.t.Helper()
	return &delegatedPod{n.pod(id, c), dirs}
}

type delegatedPod struct {
	*pod
	dirs []string
}

// call runs one verb of tapir, which runs the IPAM plugin.
func (p *delegatedPod) call(verb string, over object) answer {
	p.n.t.Helper()
	env := slices.DeleteFunc(p.env(verb), func(v string) bool { return strings.HasPrefix(v, "CNI_PATH=") })
	env = append(env, "CNI_PATH="+strings.Join(append(cniPath(p.n.t), p.dirs...), ":"))
	return p.n.run(marshal(p.n.t, p.conf.with(over)), env, "tapir")
}
