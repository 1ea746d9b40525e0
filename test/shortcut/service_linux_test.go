package shortcut_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/tapir-cni/tapir/internal/microvm/stream"
	"github.com/tapir-cni/tapir/test/bench/guest"
)

// The Services' addresses, of no link: front[0] has b for its backend, front[1] a.
var front = [2][2]netip.Addr{
	{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")},
	{netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("fd00:96::11")},
}

// The Services' ports.
const (
	webPort = 80
	dnsPort = 53
)

// services loads what kube-proxy would: DNAT to one backend for each Service and family, and masquerade where client and
// backend are one pod.
func services(n *node, backends ...*machine) {
	n.t.Helper()
	rules := ""
	hairpin := ""
	for i, b := range backends {
		for family, ip := range []string{"ip", "ip6"} {
			to := b.addr(family).String()
			if family == ipv6 {
				to = "[" + to + "]"
			}
			rules += fmt.Sprintf("%s daddr %s tcp dport %d dnat %s to %s:%d\n", ip, front[i][family], webPort, ip, to, stream.Port)
			rules += fmt.Sprintf("%s daddr %s udp dport %d dnat %s to %s:%d\n", ip, front[i][family], dnsPort, ip, to, echoPort)
			hairpin += fmt.Sprintf("%s saddr %s %s daddr %s masquerade\n", ip, b.addr(family), ip, b.addr(family))
		}
	}
	n.nft("table inet services {\nchain pre { type nat hook prerouting priority dstnat;\n" + rules +
		"}\nchain post { type nat hook postrouting priority srcnat;\n" + hairpin + "}\n}")
}

// A Service whose backend is on the same node works with the shortcut on, from both sides; what is by the pod's own address
// takes the shortcut beside it.
func TestServices(t *testing.T) {
	for _, mode := range []string{"native", "generic"} {
		t.Run(mode, func(t *testing.T) {
			n := newNode(t)
			a, b := n.boot("a", conf(mode, nil)), n.boot("b", conf(mode, nil))
			a.offload(guest.OffloadTSO)
			a.echo()
			b.echo()
			services(n, b, a)
			for family, name := range families {
				wantService(t, name+", a to b", a, b, front[0][family], family)
				wantService(t, name+", b to a", b, a, front[1][family], family)
				wantService(t, name+", a to itself", a, a, front[1][family], family)

				what := name + ", directly"
				ofA, ofB := both(a, b, func() {
					check(t, a.move(b.server(family), bulk, connection{}))
					check(t, exchange(a.listenUDP(0), netip.AddrPortFrom(b.addr(family), echoPort), []byte(what)))
				})
				if ofA.taken() == 0 || ofB.taken() == 0 {
					t.Errorf("%s: want frames each way on the shortcut, got %v; %v", what, ofA, ofB)
				}
			}
		})
	}
}

// wantService wants TCP and UDP by way of a Service, and none of it on the shortcut.
func wantService(t *testing.T, what string, client, backend *machine, at netip.Addr, family int) {
	t.Helper()
	requests, replies := both(client, backend, func() {
		if err := client.move(netip.AddrPortFrom(at, webPort), bulk/4, connection{}); err != nil {
			t.Errorf("%s, TCP: %v", what, err)
		}
		conn := client.listenUDP(0)
		for range 5 {
			if err := exchange(conn, netip.AddrPortFrom(at, dnsPort), []byte(what)); err != nil {
				t.Errorf("%s, UDP: %v", what, err)
			}
		}
	})
	requests.wantNone(t, what+", requests", "xdp_pass_no_target")
	if client == backend { // its replies are for the node, in whose name it was asked
		return
	}
	if replies["xdp_pass_conntrack"]+replies["tc_pass_conntrack"] == 0 {
		t.Errorf("%s, replies: conntrack knew none: %v", what, replies)
	}
	replies.wantNone(t, what+", replies")
}

// A client that has a connection by way of the Service connects to the backend itself, from the same port: conntrack knows the
// tuple, and tells both apart by another source port.
func TestServiceAndBackendFromOnePort(t *testing.T) {
	n := newNode(t)
	a, b := n.boot("a", conf("native", nil)), n.boot("b", conf("native", nil))
	b.echo()
	services(n, b)
	for family, name := range families {
		const port = 33333
		service, err := a.dial(netip.AddrPortFrom(front[0][family], webPort), connection{port: port})
		check(t, err)
		ofA, ofB := both(a, b, func() {
			direct, err := a.dial(b.server(family), connection{port: port})
			check(t, err)
			defer direct.Close()
			for what, conn := range map[string]net.Conn{"directly": direct, "by the Service": service} {
				r, err := stream.Upload(conn, 1, bulk/4)
				if err == nil {
					err = r.Err(bulk / 4)
				}
				if err != nil {
					t.Errorf("%s, %s: %v", name, what, err)
				}
			}
		})
		check(t, service.Close())
		ofA.wantNone(t, name+", TCP from a", "xdp_pass_conntrack", "xdp_pass_no_target")
		ofB.wantNone(t, name+", TCP from b", "xdp_pass_conntrack")

		// UDP, in either order: where the flow has a verdict from before, that expires.
		viaService, toBackend := netip.AddrPortFrom(front[0][family], dnsPort), netip.AddrPortFrom(b.addr(family), echoPort)
		for _, order := range [][]netip.AddrPort{{viaService, toBackend, viaService}, {toBackend, viaService, toBackend}} {
			conn := a.listenUDP(0)
			for i, to := range order {
				if err := exchange(conn, to, []byte{byte(i)}); err != nil {
					t.Errorf("%s, UDP: %v", name, err)
				}
			}
		}
	}
}
