package ipam

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
)

// plugin is tapir-ipam as a runtime sees it: a process with a configuration.
type plugin struct {
	t    *testing.T
	dir  string // the state
	net  string
	ver  string
	more string // keys beside ipam, each followed by a comma
	ipam string // keys of ipam beside stateDir
}

func newPlugin(t *testing.T) *plugin {
	testnode.Require(t, "root") // the store asks the kernel for tagged devices
	return &plugin{
		t: t, dir: filepath.Join(t.TempDir(), "tapir"), net: "net", ver: "1.1.0",
		ipam: `"type":"tapir-ipam","ranges":[[{"subnet":"10.9.0.0/29"}],[{"subnet":"fd00::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0","gw":"fd00::1"}]`,
	}
}

func (p *plugin) config() string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":%q,"type":"bridge","other":{"key":1},%s"ipam":{%s,"stateDir":%q}}`, p.ver, p.net, p.more, p.ipam, p.dir)
}

// reply is what a CNI command prints: a result or an error.
type reply struct {
	IPs []struct {
		Address, Gateway string
		Version          string
		Interface        *int
	}
	Routes []struct{ Dst, GW string }
	Code   uint
	Msg    string
}

func (r reply) addresses() (list []string) {
	for _, ip := range r.IPs {
		list = append(list, ip.Address)
	}
	return list
}

// run runs a command for a container and gives what it printed; the exit status must fit.
func (p *plugin) run(command, id string, env ...string) reply {
	p.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), pluginEnv+"=1", "CNI_COMMAND="+command, "CNI_CONTAINERID="+id, "CNI_IFNAME=eth0",
		"CNI_NETNS=/run/netns/none", "CNI_NETNS_OVERRIDE=1", "CNI_PATH=/opt/cni/bin")
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin = strings.NewReader(p.config())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var r reply
	if stdout.Len() > 0 {
		if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
			p.t.Fatalf("%s %s printed no JSON: %v\n%s", command, id, err, stdout.String())
		}
	}
	if (err != nil) != (r.Code != 0) {
		p.t.Fatalf("%s %s: exit %v with code %d %q\n%s", command, id, err, r.Code, r.Msg, stderr.String())
	}
	return r
}

func (p *plugin) ok(command, id string, env ...string) reply {
	p.t.Helper()
	r := p.run(command, id, env...)
	if r.Code != 0 {
		p.t.Fatalf("%s %s: code %d: %s", command, id, r.Code, r.Msg)
	}
	return r
}

// refused wants a CNI error with the code, whose text has all parts.
func (p *plugin) refused(code uint, parts []string, command, id string, env ...string) {
	p.t.Helper()
	r := p.run(command, id, env...)
	if r.Code != code {
		p.t.Errorf("%s %s: want code %d, got %d: %s", command, id, code, r.Code, r.Msg)
	}
	for _, part := range parts {
		if !strings.Contains(r.Msg, part) {
			p.t.Errorf("%s %s: want %q in the error, got %q", command, id, part, r.Msg)
		}
	}
}

func TestLifeOfALeaseInEachVersion(t *testing.T) {
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			p := newPlugin(t)
			p.ver = version
			r := p.ok("ADD", "c1")
			if diff := cmp.Diff([]string{"10.9.0.2/29", "fd00::2/64"}, r.addresses()); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			if r.IPs[0].Gateway != "10.9.0.1" || r.IPs[1].Gateway != "fd00::1" || r.IPs[0].Interface != nil {
				t.Errorf("ips: got %+v", r.IPs)
			}
			if wantVersion := version < "1.0.0"; wantVersion != (r.IPs[0].Version == "4" && r.IPs[1].Version == "6") {
				t.Errorf("ips of a %s result: got %+v", version, r.IPs)
			}
			if len(r.Routes) != 2 || r.Routes[1].Dst != "::/0" || r.Routes[1].GW != "fd00::1" || r.Routes[0].GW != "" {
				t.Errorf("routes: got %+v", r.Routes)
			}
			p.refused(4, []string{"10.9.0.2", "c1"}, "ADD", "c1")
			if version != "0.3.1" {
				p.ok("CHECK", "c1")
			}
			p.ok("DEL", "c1")
			p.ok("DEL", "c1")
			if version != "0.3.1" {
				p.refused(3, []string{"net/c1/eth0"}, "CHECK", "c1")
			}
		})
	}
}

func TestDelWithoutStateMakesNothing(t *testing.T) {
	p := newPlugin(t)
	p.ipam = `"ranges":5,"someKey":{}`
	p.ok("DEL", "c1")
	p.more = `"cni.dev/valid-attachments":[],`
	p.ok("GC", "")
	p.ok("STATUS", "")
	if _, err := os.Stat(p.dir); !os.IsNotExist(err) {
		t.Errorf("the state directory: %v", err)
	}
}

func TestCheckComparesWithPrevResult(t *testing.T) {
	p := newPlugin(t)
	p.ok("ADD", "c1")
	prev := func(list string) { p.more = fmt.Sprintf(`"prevResult":{"cniVersion":"1.1.0","ips":[%s]},`, list) }
	prev(`{"address":"10.9.0.2/29"},{"address":"fd00::2/64","interface":0},{"address":"192.0.2.1/24"}`)
	p.ok("CHECK", "c1")
	prev(`{"address":"10.9.0.2/29"},{"address":"fd00::3/64"}`)
	p.refused(999, []string{"fd00::2", "fd00::3"}, "CHECK", "c1")
	prev(``)
	p.refused(999, []string{"10.9.0.2"}, "CHECK", "c1")
	prev(`{"address":"none"}`)
	p.refused(6, []string{"prevResult"}, "CHECK", "c1")
}

func TestRequestedAddressOfEachSource(t *testing.T) {
	p := newPlugin(t)
	if got := p.ok("ADD", "c1", "CNI_ARGS=IgnoreUnknown=1;IP=10.9.0.5,fd00::5;K8S_POD_NAME=x").addresses(); got[0] != "10.9.0.5/29" || got[1] != "fd00::5/64" {
		t.Errorf("CNI_ARGS IP: got %v", got)
	}
	p.refused(11, []string{"10.9.0.5", "net/c1/eth0"}, "ADD", "c2", "CNI_ARGS=IP=10.9.0.5")
	p.refused(7, []string{"192.0.2.1", "10.9.0.0/29"}, "ADD", "c2", "CNI_ARGS=IP=192.0.2.1")
	p.more = `"runtimeConfig":{"ips":["10.9.0.6/29"],"mac":"02:00:00:00:00:01"},`
	if got := p.ok("ADD", "c2").addresses(); got[0] != "10.9.0.6/29" {
		t.Errorf("runtimeConfig.ips: got %v", got)
	}
	p.more = `"args":{"cni":{"ips":["10.9.0.4"]}},`
	if got := p.ok("ADD", "c3").addresses(); got[0] != "10.9.0.4/29" {
		t.Errorf("args.cni.ips: got %v", got)
	}
}

func TestRangesOfTheRuntimeComeFirst(t *testing.T) {
	p := newPlugin(t)
	p.more = `"runtimeConfig":{"ipRanges":[[{"subnet":"10.20.0.0/24"}]]},`
	if diff := cmp.Diff([]string{"10.20.0.2/24", "10.9.0.2/29", "fd00::2/64"}, p.ok("ADD", "c1").addresses()); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	p.ipam = `"type":"tapir-ipam"`
	if got := p.ok("ADD", "c2").addresses(); len(got) != 1 || got[0] != "10.20.0.3/24" {
		t.Errorf("ranges of the runtime alone: got %v", got)
	}
	p.more = `"runtimeConfig":{"ipRanges":[[{"subnet":"10.20.0.0"}]]},`
	p.refused(7, []string{`runtimeConfig.ipRanges[0][0].subnet: want a subnet`}, "ADD", "c3")
}

func TestConfigFaultsOfADDAreCode7WithAllPaths(t *testing.T) {
	p := newPlugin(t)
	p.ipam = `"rangez":1,"ranges":[[{"subnt":"x","subnet":"10.9.0.0/24","rangeStart":7,"gateway":"10.8.0.1"}]],"reuseDelay":30`
	p.refused(7, []string{
		`ipam: unknown key "rangez"; did you mean "ranges"?`,
		`ipam.ranges[0][0]: unknown key "subnt"; did you mean "subnet"?`,
		`ipam.ranges[0][0].rangeStart: want a string, got number 7`,
		`ipam.ranges[0][0].gateway: want an address inside 10.9.0.0/24 or a link-local one, got "10.8.0.1"`,
		`ipam.reuseDelay: want a string, got number 30`,
	}, "ADD", "c1")
	p.ipam = `"ranges":[]`
	p.refused(7, []string{"ipam.ranges: want at least one set"}, "ADD", "c1")
	if _, err := os.Stat(p.dir); !os.IsNotExist(err) {
		t.Errorf("a refused configuration made the state directory: %v", err)
	}
}

func TestExhaustedIsCode100AndNoReasonForStatus(t *testing.T) {
	p := newPlugin(t)
	for i := range 5 {
		p.ok("ADD", fmt.Sprint("c", i))
	}
	p.refused(100, []string{`no free address in 10.9.0.0/29: 5 leased, 3 reserved; "tapirctl gc"`}, "ADD", "c5")
	p.ok("STATUS", "")
	p.ok("DEL", "c0")
	p.refused(100, []string{"4 leased", "1 resting (the first is free in "}, "ADD", "c5")
}

func TestStatusSaysThatTheStateIsUnusable(t *testing.T) {
	p := newPlugin(t)
	if err := os.WriteFile(p.dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.refused(50, []string{p.dir}, "STATUS", "")
	p.refused(5, []string{p.dir}, "ADD", "c1")
}

func TestGCReleasesWhatIsNotValid(t *testing.T) {
	p := newPlugin(t)
	for i := range 4 {
		p.ok("ADD", fmt.Sprint("c", i))
	}
	p.net = "other"
	p.ok("ADD", "c9")
	p.net = "net"

	p.refused(7, []string{"cni.dev/valid-attachments"}, "GC", "")
	p.more = `"cni.dev/valid-attachments":{},`
	p.refused(7, []string{"cni.dev/valid-attachments"}, "GC", "")
	p.wantLeases("net/c0", "net/c1", "net/c2", "net/c3", "other/c9")

	// c1 is being added, c2 has a device on record, and c3 is valid; another interface of c0 is not c0's eth0.
	hold, err := state.AcquireHold(t.Context(), p.dir, state.Key{Network: "net", ContainerID: "c1", IfName: "eth0"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	attached := state.Attachment{Key: state.Key{Network: "net", ContainerID: "c2", IfName: "eth0"}}
	update(t, storeIn(p.dir), func(tx *state.Tx) error { return tx.Put(attached) })
	p.more = `"cni.dev/valid-attachments":[{"containerID":"c3","ifname":"eth0"},{"containerID":"c0","ifname":"eth1"}],`
	p.ipam = `"unknown":1`
	p.ok("GC", "")
	p.wantLeases("net/c1", "net/c2", "net/c3", "other/c9")

	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	update(t, storeIn(p.dir), func(tx *state.Tx) error { return tx.Delete(attached.Key) })
	p.more = `"cni.dev/valid-attachments":null,`
	p.ok("GC", "")
	p.wantLeases("other/c9")
	p.ok("GC", "")
}

func (p *plugin) wantLeases(want ...string) {
	p.t.Helper()
	var got []string
	update(p.t, storeIn(p.dir), func(tx *state.Tx) error {
		return tx.ForEachLease("", func(l state.Lease) error {
			got = append(got, l.Network+"/"+l.ContainerID)
			return nil
		})
	})
	if diff := cmp.Diff(want, got); diff != "" {
		p.t.Errorf("leases (-want +got):\n%s", diff)
	}
}

func TestWithoutACommandItSaysWhatItIs(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"--help"}} {
		cmd := exec.Command(exe, args...)
		cmd.Env = []string{pluginEnv + "=1"}
		out, runErr := cmd.CombinedOutput()
		if runErr != nil || !strings.Contains(string(out), "tapir-ipam") || !strings.Contains(string(out), "CNI") {
			t.Errorf("%v: got %v\n%s", args, runErr, out)
		}
	}
	cmd := exec.Command(exe)
	cmd.Env = []string{pluginEnv + "=1", "CNI_COMMAND=VERSION"}
	out, err := cmd.Output()
	var v struct{ SupportedVersions []string }
	if err != nil || json.Unmarshal(out, &v) != nil {
		t.Fatalf("VERSION: got %v\n%s", err, out)
	}
	if diff := cmp.Diff([]string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}, v.SupportedVersions); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}

// What another plugin's users met: one stuck process, and every later ADD waited for ever or died without a word.
func TestStuckProcessCostsABoundedWaitAndCode11(t *testing.T) {
	p := newPlugin(t)
	p.ok("ADD", "c1")
	lock, err := os.Open(filepath.Join(p.dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	p.refused(11, []string{p.dir, fmt.Sprintf("pid %d", os.Getpid())}, "ADD", "c2")
	if took := time.Since(start); took < 5*time.Second || took > 15*time.Second {
		t.Errorf("the wait: want about 5 s, got %v", took)
	}
}

func TestDamagedStateIsRebuiltAndSaidOnStderrAlone(t *testing.T) {
	p := newPlugin(t)
	p.ok("ADD", "c1")
	if err := os.WriteFile(filepath.Join(p.dir, "state.db"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.ok("ADD", "c2") // run wants nothing but the result on stdout
	kept, err := filepath.Glob(filepath.Join(p.dir, "state.db.corrupt-*"))
	if len(kept) != 1 || err != nil {
		t.Errorf("set aside: got %v, %v", kept, err)
	}
}
