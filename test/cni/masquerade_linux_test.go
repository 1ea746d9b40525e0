package cni_test

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// sourceServer answers each datagram to an address of the world with the source that it came from.
func (n *node) sourceServer(at netip.Addr) {
	n.t.Helper()
	n.inWorld(func() {
		conn, err := net.ListenPacket("udp", netip.AddrPortFrom(at, 9).String())
		if err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(func() { _ = conn.Close() })
		go func() {
			buf := make([]byte, 100)
			for {
				_, from, err := conn.ReadFrom(buf)
				if err != nil {
					return // closed
				}
				addr := from.(*net.UDPAddr).AddrPort().Addr().Unmap()
				_, _ = conn.WriteTo([]byte(addr.String()), from)
			}
		}()
	})
}

// sourceSeenBy sends a datagram to a server and gives the source that the server saw, by the answer that came back.
func (g *guest) sourceSeenBy(server netip.Addr) string {
	g.t.Helper()
	me := g.ip[server.Is4()]
	g.send(g.gwMAC, etherType(server), udp(me, server, 1234, 9, []byte("who am I?")))
	p, ok := g.expect(patience, func(p packet) bool {
		return p.from == server && p.to == me && p.transport == unix.IPPROTO_UDP && len(p.data) > 8
	})
	if !ok {
		return "no answer"
	}
	return string(p.data[8:])
}

func TestMasquerade(t *testing.T) {
	n := newNode(t)
	n.sourceServer(worldIP4)
	n.sourceServer(worldIP6)
	n.routePodsInWorld()
	for _, tt := range []struct {
		id           string
		over         object
		want4, want6 string
	}{
		{"off", nil, "pod", "pod"},
		{"on", object{"ipMasq": true}, nodeIP4.String(), nodeIP6.String()},
		{"excepted", object{"ipMasq": true, "nonMasqueradeCIDRs": []string{"198.51.100.0/24"}}, "pod", nodeIP6.String()},
		// Prefixes that touch, that hold each other and that end where the address space does.
		{"around", object{"ipMasq": true, "nonMasqueradeCIDRs": []string{"198.51.100.0/29", "198.51.100.8/29", "10.0.0.0/8", "10.1.0.0/16", "255.0.0.0/8",
			"fd00:51::/32", "fd00:51::/64", "ffff::/16"}}, "pod", "pod"},
		{"beside", object{"ipMasq": true, "nonMasqueradeCIDRs": []string{"198.51.100.0/30", "198.51.100.8/29", "fd00:52::/32"}}, nodeIP4.String(), nodeIP6.String()},
	} {
		p := n.pod(tt.id, conf(tt.over))
		r := p.add()
		g := boot(p, r)
		for server, want := range map[netip.Addr]string{worldIP4: tt.want4, worldIP6: tt.want6} {
			if want == "pod" {
				want = g.ip[server.Is4()].String()
			}
			if got := g.sourceSeenBy(server); got != want {
				t.Errorf("%s: the world %s sees %s, want %s", tt.id, server, got, want)
			}
		}
		p.works("CHECK", nil)
	}
}

// From pod to pod, and to the node, the pod's own address stays.
func TestMasqueradeSparesPods(t *testing.T) {
	n := newNode(t)
	a, b := n.pod("a", conf(object{"ipMasq": true})), n.pod("b", conf(object{"ipMasq": true}))
	ga, gb := boot(a, a.add()), boot(b, b.add())
	for _, four := range []bool{true, false} {
		ga.send(ga.gwMAC, etherType(ga.ip[four]), udp(ga.ip[four], gb.ip[four], 1234, 9, []byte("from a")))
		p, ok := gb.expect(patience, func(p packet) bool {
			return p.transport == unix.IPPROTO_UDP && strings.HasSuffix(string(p.data), "from a")
		})
		if !ok || p.from != ga.ip[four] {
			t.Errorf("b sees %s (%t), want %s", p.from, ok, ga.ip[four])
		}
	}
}

// The first ADDs of a node all find no table, and make it beside each other.
func TestFirstAddsMakeOneTable(t *testing.T) {
	n := newNode(t)
	n.sourceServer(worldIP4)
	sysctls := n.forwardingSysctls()
	var pods []*pod
	for i := range 8 {
		pods = append(pods, n.pod("c"+itoa(i), conf(object{"ipMasq": true})))
	}
	answers := make([]answer, len(pods))
	var wg sync.WaitGroup
	for i, p := range pods {
		wg.Go(func() { answers[i] = p.call("ADD", nil) })
	}
	wg.Wait()
	for i, p := range pods {
		if answers[i].code != 0 {
			t.Fatalf("ADD of %s beside others: %s", p.id, answers[i])
		}
		p.works("CHECK", nil)
	}
	if rules := n.masqueradeRules(); rules != 2 {
		t.Errorf("rules: want one for each family, got %d", rules)
	}
	last := pods[len(pods)-1]
	if got := boot(last, parseResult(t, answers[len(pods)-1].stdout, "1.1.0")).sourceSeenBy(worldIP4); got != nodeIP4.String() {
		t.Errorf("the world sees %s, want the node's %s", got, nodeIP4)
	}
	for _, p := range pods {
		p.works("DEL", nil)
	}
	for _, line := range n.nftables() {
		if strings.Contains(line, " set pods") {
			t.Errorf("after the last DEL there is still %s", line)
		}
	}
	// All of them also found forwarding off, and only the first may have kept its old value.
	if out := n.ctl("cleanup", "--yes"); out.code != 0 {
		t.Errorf("clean-up: %s", out)
	}
	wantSame(t, "sysctls after the clean-up", sysctls, n.forwardingSysctls())
}

// masqueradeRules counts the rules of tapir's chains.
func (n *node) masqueradeRules() (count int) {
	n.t.Helper()
	n.in(func() {
		conn, err := nftables.New()
		mustDo(n.t, err)
		chains, err := conn.ListChains()
		mustDo(n.t, err)
		for _, c := range chains {
			rules, err := conn.GetRules(c.Table, c)
			mustDo(n.t, err)
			count += len(rules)
		}
	})
	return count
}
