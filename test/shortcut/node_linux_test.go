package shortcut_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/microvm/ping"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
)

// patience bounds what must happen, on a busy machine too.
const patience = 20 * time.Second

// mtu is that of guests, pods and uplinks where a case does not say otherwise.
const mtu = 1500

// Where the plugin keeps things if the configuration does not say otherwise.
const (
	stateDir = "/run/tapir"
	pinDir   = "/sys/fs/bpf/tapir"
)

// The node's own addresses, in whose name it speaks to pods.
var nodeAddrs = [2]netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}

// A node is a host of its own: a netns in which the plugin runs.
type node struct {
	t     testing.TB
	netns string
}

// dropInvalid is what kube-proxy has in force: with it the host tracks connections, and a flow of which it has seen one half
// alone does not live.
const dropInvalid = `table inet proxy { chain forward { type filter hook forward priority 0; ct state invalid counter drop; }; }`

// newNode makes a node on which dropInvalid is in force. When the test ends, the clean-up must leave nothing there.
func newNode(t testing.TB) *node {
	t.Helper()
	testnode.Require(t, "root", "bpf", "btf", "tcx", "tun", "ipv6")
	needTools(t, "nft", "ip", "ethtool", ping.Busybox)
	n := &node{t: t, netns: testnode.NewNetns(t)}
	n.in(func() {
		lo, err := netlink.LinkByName("lo")
		check(t, err)
		check(t, netlink.LinkSetUp(lo))
		for _, a := range nodeAddrs {
			check(t, netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}))
		}
		check(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0))
		// Each probe that a test sends is to be answered.
		check(t, os.WriteFile("/proc/sys/net/ipv6/icmp/ratelimit", []byte("0"), 0))
		check(t, os.WriteFile("/proc/sys/net/ipv4/icmp_ratemask", []byte("0"), 0))
	})
	n.nft(dropInvalid)
	t.Cleanup(n.leavesNothing)
	return n
}

// needTools skips the test where one is missing, or fails it where TAPIR_REQUIRE lists "tools".
func needTools(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		switch _, err := exec.LookPath(name); {
		case err != nil && testnode.Required("tools"):
			t.Fatal(err)
		case err != nil:
			t.Skip(err)
		}
	}
}

// leavesNothing runs when every sandbox of the test is gone.
func (n *node) leavesNothing() {
	n.t.Helper()
	n.ctl("cleanup", "--yes")
	for _, path := range []string{stateDir, pinDir} {
		if _, err := os.Stat(path); err == nil {
			left, _ := filepath.Glob(path + "/*")
			n.t.Errorf("after the clean-up there is still %s with %q", path, left)
			_ = os.RemoveAll(path) // the next test is not to suffer
		}
	}
}

func (n *node) in(f func()) { n.t.Helper(); testnode.In(n.t, n.netns, f) }

// nft loads rules on the node.
func (n *node) nft(rules string) {
	n.t.Helper()
	if _, err := n.run([]byte(rules), nil, "nft", "-f", "-"); err != nil {
		n.t.Fatalf("%v\n%s", err, rules)
	}
}

// run runs a command on the node and gives what it printed.
func (n *node) run(stdin []byte, env []string, name string, args ...string) ([]byte, error) {
	n.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	cmd.Env = append(os.Environ(), env...)
	var err error
	n.in(func() { err = cmd.Start() })
	if err == nil {
		watchdog := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		err = cmd.Wait()
		if !watchdog.Stop() {
			err = fmt.Errorf("did not end within %s", patience)
		}
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s %s", filepath.Base(name), strings.Join(args, " "), err, bytes.TrimSpace(stdout.Bytes()), bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), err
}

func command(name string) string { return filepath.Join(os.Getenv(testnode.BinDirEnv), name) }

// ctl runs tapirctl, which must succeed.
func (n *node) ctl(args ...string) []byte {
	n.t.Helper()
	out, err := n.run(nil, nil, command("tapirctl"), args...)
	if err != nil {
		n.t.Error(err)
	}
	return out
}

// object is a JSON object of a configuration.
type object map[string]any

// conf is the configuration that tests start from, in that mode, with the given keys on top.
func conf(mode string, over object) object {
	c := object{
		"cniVersion": "1.1.0", "name": "pods", "type": "tapir", "mtu": mtu, "xdp": object{"mode": mode},
		"ipam": object{
			"type": "tapir-ipam", "reuseDelay": "0s",
			"ranges": [][]object{{{"subnet": "10.9.0.0/24"}}, {{"subnet": "fd00:9::/64"}}},
			"routes": []object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
		},
	}
	maps.Copy(c, over)
	return c
}

// A pod is one attachment, eth0 of a sandbox.
type pod struct {
	n      *node
	id     string
	netns  string
	conf   object
	args   string // CNI_ARGS
	result attachment
}

// pod makes a sandbox and attaches it. It is detached when the test ends.
func (n *node) pod(id string, c object) *pod {
	n.t.Helper()
	p := n.sandbox(id, c)
	p.add()
	return p
}

func (n *node) sandbox(id string, c object) *pod {
	n.t.Helper()
	return &pod{n: n, id: id, netns: testnode.NewNetns(n.t), conf: c}
}

// call runs one verb of the plugin.
func (p *pod) call(verb string) ([]byte, error) {
	p.n.t.Helper()
	config, err := json.Marshal(p.conf)
	check(p.n.t, err)
	return p.n.run(config, []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=eth0", "CNI_ARGS=" + p.args,
		"CNI_PATH=" + os.Getenv(testnode.BinDirEnv),
	}, command("tapir"))
}

func (p *pod) add() {
	p.n.t.Helper()
	stdout, err := p.call("ADD")
	check(p.n.t, err)
	p.n.t.Cleanup(p.del)
	p.result, err = readResult(stdout)
	check(p.n.t, err)
}

func (p *pod) del() {
	p.n.t.Helper()
	if _, err := p.call("DEL"); err != nil {
		p.n.t.Error(err)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var errNothing = errors.New("nothing arrived")
