package cni_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// refpluginsEnv names a folder with the reference plugins; where it is not set they are built.
const refpluginsEnv = "TAPIR_REFPLUGINS"

var buildRefplugins = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(refpluginsEnv); dir != "" {
		return dir, nil
	}
	dir, err := filepath.Abs("../../bin/refplugins")
	if err != nil || exists(filepath.Join(dir, "bridge")) && exists(filepath.Join(dir, "cnitool")) {
		return dir, err
	}
	cmd := exec.Command("go", "-C", "../refplugins", "build", "-trimpath", "-o", dir+"/", "tool")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the reference plugins: %w: %s", err, out)
	}
	return dir, nil
})

// refplugins is the folder with the reference plugins of containernetworking and cnitool.
func refplugins(t testing.TB) string {
	t.Helper()
	dir, err := buildRefplugins()
	switch {
	case err != nil && testnode.Required("refplugins"):
		t.Fatal(err)
	case err != nil:
		t.Skip(err)
	}
	return dir
}

// needTools skips the test where a program is missing that a plugin calls, or fails it where TAPIR_REQUIRE wants tools.
func needTools(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := exec.LookPath(name)
		switch {
		case err != nil && testnode.Required("tools"):
			t.Fatal(err)
		case err != nil:
			t.Skip(err)
		}
	}
}

// cniPath is where plugins are looked for.
func cniPath(t testing.TB) []string {
	t.Helper()
	return []string{refplugins(t), os.Getenv(binDirEnv)}
}

// pluginEnv is the environment of a plugin that runs others, or the system's tools.
func (p *pod) pluginEnv(verb string) []string {
	p.n.t.Helper()
	env := slices.DeleteFunc(p.env(verb), func(v string) bool {
		return strings.HasPrefix(v, "CNI_PATH=") || strings.HasPrefix(v, "PATH=")
	})
	return append(env, "CNI_PATH="+strings.Join(cniPath(p.n.t), ":"), "PATH="+os.Getenv("PATH"))
}

// plugin runs one verb of any plugin for the pod.
func (p *pod) plugin(name, verb string, c object) answer {
	p.n.t.Helper()
	dir := refplugins(p.n.t)
	if strings.HasPrefix(name, "tapir") {
		dir = os.Getenv(binDirEnv)
	}
	cmd := exec.Command(filepath.Join(dir, name))
	cmd.Env, cmd.Stdin = p.pluginEnv(verb), bytes.NewReader(marshal(p.n.t, c))
	return p.n.runCmd(cmd)
}

// A chain is a pod whose interface another plugin makes before tapir is called.
type chain struct {
	*pod
	before object // the configuration of that plugin
	prev   *types100.Result
}

// chainConf is tapir's configuration after another plugin, with the given keys on top.
func chainConf(over object) object { return conf(object{"ipam": nil}).with(over) }

// chain makes a sandbox and runs ADD of the plugin before.
func (n *node) chain(id string, before, tapir object) *chain {
	n.t.Helper()
	c := &chain{pod: n.pod(id, tapir), before: object{"cniVersion": tapir["cniVersion"], "name": tapir["name"]}.with(before)}
	testnode.In(n.t, c.netns, func() { n.sysctl("net/ipv6/conf/default/accept_dad", "0") }) // or plugins wait two seconds for DAD
	out := c.plugin(fmt.Sprint(before["type"]), "ADD", c.before)
	if out.code != 0 {
		n.t.Fatalf("ADD of %s for %s: %s", before["type"], id, out)
	}
	c.prev = parseResult(n.t, out.stdout, fmt.Sprint(tapir["cniVersion"]))
	c.conf = c.conf.with(object{"prevResult": json.RawMessage(out.stdout)})
	n.t.Cleanup(func() { c.plugin(fmt.Sprint(before["type"]), "DEL", c.before) })
	return c
}

// delBefore runs DEL of the plugin before, which must succeed.
func (c *chain) delBefore() {
	c.n.t.Helper()
	if out := c.plugin(fmt.Sprint(c.before["type"]), "DEL", c.before); out.code != 0 {
		c.n.t.Errorf("DEL of %s after tapir's: %s", c.before["type"], out)
	}
}

// checkBefore runs CHECK of the plugin before on its own result: tapir must not be in its way.
func (c *chain) checkBefore() {
	c.n.t.Helper()
	over := object{"prevResult": c.conf["prevResult"]}
	if out := c.plugin(fmt.Sprint(c.before["type"]), "CHECK", c.before.with(over)); out.code != 0 {
		c.n.t.Errorf("CHECK of %s beside tapir: %s", c.before["type"], out)
	}
}

// wantUntouched wants the result of the plugin before in front of tapir's own entries, as it was.
func wantUntouched(t testing.TB, prev, got *types100.Result) {
	t.Helper()
	if len(got.Interfaces) < len(prev.Interfaces) || len(got.IPs) < len(prev.IPs) {
		t.Fatalf("the result has lost entries of prevResult: %v, had %v", got, prev)
	}
	cut := *got
	cut.Interfaces, cut.IPs = got.Interfaces[:len(prev.Interfaces)], got.IPs[:len(prev.IPs)]
	if diff := cmp.Diff(string(marshal(t, prev)), string(marshal(t, &cut))); diff != "" {
		t.Errorf("prevResult in the result (-was +is):\n%s", diff)
	}
}

// wantAdded wants just the entries that tapir adds in that layout: TAP, pseudo entry and one IPv4 address on that.
func wantAdded(t testing.TB, p *pod, prev, got *types100.Result, layout string) {
	t.Helper()
	var want, added []entry
	if layout != "plain" {
		want = append(want, entry{"tap-" + p.ifName, p.netns})
	}
	if layout == "firecracker" {
		want = append(want, entry{"tap-" + p.ifName, p.id})
	}
	for _, i := range got.Interfaces[len(prev.Interfaces):] {
		added = append(added, entry{i.Name, i.Sandbox})
	}
	if diff := cmp.Diff(want, added); diff != "" {
		t.Errorf("interfaces added (-want +got):\n%s", diff)
	}
	ips := 0
	if layout == "firecracker" {
		ips = 1
	}
	if n := len(got.IPs) - len(prev.IPs); n != ips {
		t.Errorf("addresses added: want %d, got %d: %v", ips, n, got.IPs)
	}
}

// startGuest starts a guest with this MAC and these addresses on a TAP in a netns; gateways are resolved when asked for.
func startGuest(t testing.TB, netns, tap, mac string, addrs ...netip.Addr) *guest {
	t.Helper()
	hw, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{t: t, tap: tap, mac: hw, ip: map[bool]netip.Addr{}, gw: map[bool]netip.Addr{}, frames: make(chan packet, 4096)}
	for _, a := range addrs {
		g.ip[a.Is4()] = a
	}
	if g.fd, err = openQueue(t, netns, tap, firecrackerFlags); err != nil {
		t.Fatalf("open tap %q: %v", tap, err)
	}
	t.Cleanup(g.runReader())
	return g
}

// bootSDK starts a guest that knows what the Firecracker SDK reads from a result; IPv6, which the SDK leaves out, is that
// of the pod's interface.
func bootSDK(p *pod, r *types100.Result) *guest {
	t := p.n.t
	t.Helper()
	c, err := readAsFirecrackerSDK(t.(*testing.T), r, p.id)
	if err != nil {
		t.Fatalf("the Firecracker SDK could not read the result: %v", err)
	}
	fields := strings.Split(strings.TrimPrefix(c.bootArg, "ip="), ":")
	g := startGuest(t, p.netns, c.tap, c.mac, netip.MustParseAddr(fields[0]))
	g.gw[true] = netip.MustParseAddr(fields[2])
	for _, ip := range r.IPs {
		if a := ip.Address.IP; a.To4() == nil {
			g.ip[false], _ = netip.AddrFromSlice(a)
			g.gw[false], _ = netip.AddrFromSlice(ip.Gateway)
		}
	}
	g.meetGateway()
	return g
}

// wantPingBy wants an answer from an address that is reached by a neighbour whose MAC is asked for first.
func (g *guest) wantPingBy(hop netip.Addr, to ...netip.Addr) {
	g.t.Helper()
	mac := g.resolve(hop, patience)
	if mac == nil {
		g.t.Errorf("%s: nobody answers for %s", g.tap, hop)
		return
	}
	old := g.gwMAC
	g.gwMAC = mac
	g.wantPing(to...)
	g.gwMAC = old
}

var qdiscName = regexp.MustCompile(`^filter (parent ffff:|ingress) `)

// tcLines are the qdiscs and filters of every device in the netns of the calling thread.
func (n *node) tcLines(netns string) (lines []string) {
	n.t.Helper()
	run := func(args ...string) []string {
		cmd := exec.Command("tc", args...)
		testnode.In(n.t, netns, func() {
			out, err := cmd.CombinedOutput()
			if err != nil && !bytes.Contains(out, []byte("Parent Qdisc doesn't exists")) && !bytes.Contains(out, []byte("Cannot find specified")) {
				n.t.Fatalf("tc %q: %v: %s", args, err, out)
			}
			for l := range strings.Lines(string(out)) {
				// The kernel shows by which of two names the last filter was added.
				lines = append(lines, qdiscName.ReplaceAllString(strings.TrimSpace(l), "filter "))
			}
		})
		return lines
	}
	run("qdisc", "show")
	var names []string
	testnode.In(n.t, netns, func() {
		for _, l := range allLinks(n.t) {
			names = append(names, l.Attrs().Name)
		}
	})
	for _, name := range names {
		for _, hook := range []string{"ingress", "egress"} {
			lines = append(lines, name+" "+hook)
			run("filter", "show", "dev", name, hook)
		}
	}
	return slices.DeleteFunc(lines, func(l string) bool { return l == "" })
}

// sandbox is all that others have in a pod's netns: devices, addresses, routes, neighbours, qdiscs, filters, tcx programs.
func (p *pod) sandbox() (lines []string) {
	p.n.t.Helper()
	testnode.In(p.n.t, p.netns, func() {
		lines = netnsLines(p.n.t, "pod")
		lines = append(lines, tcxLines(p.n.t)...)
	})
	return append(lines, p.n.tcLines(p.netns)...)
}

// ofDevice keeps the lines that speak of a device.
func ofDevice(lines []string, name string) (out []string) {
	for _, l := range lines {
		if slices.Contains(strings.Fields(l), name) {
			out = append(out, l)
		}
	}
	return out
}

// kernelPing sends echo requests from the kernel of a netns, as a container does.
func (p *pod) kernelPing(to netip.Addr) bool {
	p.n.t.Helper()
	proto, kind, domain := unix.IPPROTO_ICMP, byte(8), unix.AF_INET
	if to.Is6() {
		proto, kind, domain = unix.IPPROTO_ICMPV6, 128, unix.AF_INET6
	}
	ok := false
	testnode.In(p.n.t, p.netns, func() {
		fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			p.n.t.Fatal(err)
		}
		defer unix.Close(fd)
		body := []byte("from the pod " + p.id)
		msg := join([]byte{kind, 0, 0, 0}, body)
		var addr unix.Sockaddr = &unix.SockaddrInet6{Addr: to.As16()}
		if to.Is4() {
			addr = &unix.SockaddrInet4{Addr: to.As4()}
			copy(msg[2:], sum(msg))
		}
		wait := unix.NsecToTimeval(patience.Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
			p.n.t.Fatal(err)
		}
		if err := unix.Sendto(fd, msg, 0, addr); err != nil {
			p.n.t.Logf("ping %s: %v", to, err)
			return
		}
		buf := make([]byte, 1500)
		for !ok {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				return
			}
			ok = bytes.HasSuffix(buf[:n], body) && !bytes.Equal(buf[:n], msg)
		}
	})
	return ok
}

func hardwareAddr(t testing.TB, name string) string {
	t.Helper()
	return link(t, name).Attrs().HardwareAddr.String()
}

func parseMAC(t testing.TB, s string) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC(s)
	if err != nil {
		t.Fatal(err)
	}
	return mac
}
