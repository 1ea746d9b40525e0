package cni_test

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// annotated is a configuration that gives a TAP only to pods that ask for it.
func annotated(over object) object {
	return conf(object{"when": "annotated", "capabilities": object{"io.kubernetes.cri.pod-annotations": true}}).with(over)
}

// addPlain runs ADD for a pod that must get no TAP.
func (p *pod) addPlain() *types100.Result {
	p.n.t.Helper()
	r := p.add()
	if len(r.Interfaces) != 2 {
		p.n.t.Fatalf("interfaces: want host end and eth0, got %v", r.Interfaces)
	}
	return r
}

// pingFrom sends echo requests from the network stack of a netns until one is answered.
func pingFrom(t testing.TB, netns string, to netip.Addr) (ok bool) {
	t.Helper()
	network, request := "ip4:icmp", []byte{8, 0, 0, 0, 0, 7, 0, 1, 't', 'a', 'p', 'i', 'r'}
	if to.Is6() {
		network, request[0] = "ip6:ipv6-icmp", 128 // whose checksum the kernel makes
	} else {
		copy(request[2:], sum(request))
	}
	testnode.In(t, netns, func() {
		conn, err := net.Dial(network, to.String())
		if err != nil {
			t.Logf("ping %s: %v", to, err)
			return
		}
		defer conn.Close()
		buf := make([]byte, 1500)
		for deadline := time.Now().Add(patience); !ok && time.Now().Before(deadline); {
			if _, err := conn.Write(request); err != nil {
				t.Logf("ping %s: %v", to, err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			for {
				n, err := conn.Read(buf)
				if err != nil {
					break
				}
				// A raw socket to an own address sees the request too.
				if i := bytes.Index(buf[:n], request[4:]); i >= 4 && (buf[i-4] == 0 || buf[i-4] == 129) {
					ok = true
					break
				}
			}
		}
	})
	return ok
}

func TestPlainPod(t *testing.T) {
	n := newNode(t)
	n.routePodsInWorld()
	a, b := n.pod("a", annotated(nil)), n.pod("b", annotated(nil))
	c := n.pod("c", annotated(nil))
	c.args = "TAP=1"
	r := a.addPlain()
	b.addPlain()
	g := boot(c, c.add())

	if diff := cmp.Diff([]string{"1 10.9.0.2/24 10.9.0.1", "1 fd00:9::2/64 fd00:9::1"}, addressLines(r)); diff != "" {
		t.Errorf("ips (-want +got):\n%s", diff)
	}
	wantDevice(t, n.netns, hostEnd(t, r), uplinkMTU, "tapir:pods/a/eth0")
	wantDevice(t, a.netns, "eth0", uplinkMTU, "tapir:pods/a/eth0")
	wantHostSide(t, n, r)
	wantPlainSandbox(t, a)
	if l := n.list("a"); l.TAP.Name != "" || l.Host.Name != hostEnd(t, r) {
		t.Errorf("tapirctl list: %+v", l)
	}
	for _, to := range []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd00:9::1"), nodeIP4, nodeIP6, worldIP4, worldIP6,
		netip.MustParseAddr("10.9.0.3"), netip.MustParseAddr("fd00:9::3"), g.ip[true], g.ip[false]} {
		if !pingFrom(t, a.netns, to) {
			t.Errorf("no answer from %s to the plain pod", to)
		}
	}
	for _, from := range []string{n.netns, n.world} {
		for _, to := range []string{"10.9.0.2", "fd00:9::2"} {
			if !pingFrom(t, from, netip.MustParseAddr(to)) {
				t.Errorf("no answer from the plain pod %s to %s", to, from)
			}
		}
	}
	g.wantPing(netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("fd00:9::2"))
	a.works("CHECK", object{"prevResult": r})
	before := n.snapshot(a.netns)
	a.works("DEL", nil)
	a.addPlain()
	a.works("DEL", nil)
	if after := n.snapshot(a.netns); len(after) >= len(before) {
		t.Errorf("DEL removed nothing: %q", after)
	}
}

func addressLines(r *types100.Result) (out []string) {
	for _, ip := range r.IPs {
		out = append(out, join3(ip))
	}
	return out
}

func join3(ip *types100.IPConfig) string {
	index := "none"
	if ip.Interface != nil {
		index = itoa(*ip.Interface)
	}
	return index + " " + ip.Address.String() + " " + ip.Gateway.String()
}

// wantPlainSandbox wants a sandbox in which a process can talk at once.
func wantPlainSandbox(t *testing.T, p *pod) {
	t.Helper()
	testnode.In(t, p.netns, func() {
		l := link(t, "eth0")
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		mustDo(t, err)
		var got []string
		for _, a := range addrs {
			if a.Flags&unix.IFA_F_TENTATIVE != 0 && a.IP.IsGlobalUnicast() {
				t.Errorf("%s is tentative: duplicate address detection is under way", a.IPNet)
			}
			if a.IP.IsGlobalUnicast() {
				got = append(got, a.IPNet.String())
			}
		}
		if diff := cmp.Diff([]string{"10.9.0.2/24", "fd00:9::2/64"}, got); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
		neighbours, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_ALL)
		mustDo(t, err)
		permanent := 0
		for _, e := range neighbours {
			if e.State == unix.NUD_PERMANENT && bytes.Equal(e.HardwareAddr, gatewayMAC) {
				permanent++
			}
		}
		if permanent != 2 {
			t.Errorf("permanent neighbours with the gateway's MAC: want 2, got %d of %v", permanent, neighbours)
		}
		for _, name := range []string{"lo", "eth0"} {
			link(t, name)
		}
		if links := allLinks(t); len(links) != 2 {
			t.Errorf("the sandbox has %d links, want lo and eth0", len(links))
		}
	})
}

func TestOptIn(t *testing.T) {
	n := newNode(t)
	annotation := func(v string) object {
		return object{"runtimeConfig": object{"io.kubernetes.cri.pod-annotations": object{"tapir.dev/tap": v, "other": "x"}}}
	}
	for i, tt := range []struct {
		over object
		args string
		tap  bool
	}{
		{nil, "", false},
		{annotation("true"), "", true},
		{annotation("false"), "", false},
		{annotation("yes"), "", false},
		{nil, "TAP=1", true},
		{nil, "TAP=true", true},
		{nil, "TAP=0", false},
		{annotation("true"), "TAP=0", false},
		{object{"when": "always"}, "", true},
		{annotation("true").with(object{"result": "firecracker"}), "", true},
		{object{"result": "firecracker"}, "", false},
	} {
		p := n.pod("c"+itoa(i), annotated(tt.over))
		p.args = tt.args
		r := p.add()
		if got := len(r.Interfaces) > 2; got != tt.tap {
			t.Errorf("%v with args %q: TAP %t, want %t", tt.over, tt.args, got, tt.tap)
		}
		p.works("CHECK", nil)
	}
}

func TestCheckNamesDriftsOfPlainPod(t *testing.T) {
	n := newNode(t)
	c := annotated(object{"ipam": ranges("10.9.0.0/24", "fd00:9::/64").with(object{"reuseDelay": "0s"})})
	for _, d := range []drift{
		{"address", inPod("eth0", delAddr("10.9.0.2/24")), nil, []string{"eth0: address 10.9.0.2/24 is missing"}},
		{"IPv6 address", inPod("eth0", delAddr("fd00:9::2/64")), nil, []string{"eth0: address fd00:9::2/64 is missing"}},
		{"route", inPod("eth0", delRoute("0.0.0.0/0")), nil, []string{"eth0: route 0.0.0.0/0 is missing"}},
		{"IPv6 route", inPod("eth0", delRoute("::/0")), nil, []string{"eth0: route ::/0 is missing"}},
		{"neighbour", inPod("eth0", delNeighbour("10.9.0.1")), nil, []string{"eth0: neighbour 10.9.0.1"}},
		{"program", onHost(detach), nil, []string{"its clsact program is not attached"}},
		{"spoofCheck asked for now", nothing, object{"spoofCheck": false}, []string{"spoofCheck"}},
	} {
		p := n.pod("c1", c)
		p.args = "IP=10.9.0.2,fd00:9::2"
		host := hostEnd(t, p.addPlain())
		p.works("CHECK", nil)
		d.cause(t, p, host)
		wantText(t, wantCode(t, p.call("CHECK", d.over), codeDiffers), d.want...)
		p.works("DEL", nil)
	}
}
