package shortcut_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/test/bench/guest"
	"golang.org/x/sys/unix"
)

// complaint is the ICMP error that a datagram met.
type complaint struct {
	kind, code uint8
	info       uint32     // the MTU where it was too big
	from       netip.Addr // who complained
}

// Complaints, by family (RFC 792, RFC 4443).
var (
	expired     = [2]complaint{{kind: 11}, {kind: 3}}
	tooBig      = [2]complaint{{kind: 3, code: 4}, {kind: 2}}
	unreachable = [2]complaint{{kind: 3, code: 3}, {kind: 1, code: 4}} // nobody listens at the port
)

// closedPort is one at which no guest listens.
const closedPort = 33434

// probe sends a datagram that may not be fragmented, with that TTL, and gives the ICMP error that comes back.
func (m *machine) probe(family, ttl, size int, to netip.Addr) (c complaint, err error) {
	m.n.t.Helper()
	fd := -1
	testnode.In(m.n.t, m.inside, func() {
		fd, err = unix.Socket([]int{unix.AF_INET, unix.AF_INET6}[family], unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	})
	if err != nil {
		return c, err
	}
	defer unix.Close(fd)
	level := []int{unix.IPPROTO_IP, unix.IPPROTO_IPV6}[family]
	for option, value := range map[int]int{
		[]int{unix.IP_TTL, unix.IPV6_UNICAST_HOPS}[family]:          ttl,
		[]int{unix.IP_RECVERR, unix.IPV6_RECVERR}[family]:           1,
		[]int{unix.IP_MTU_DISCOVER, unix.IPV6_MTU_DISCOVER}[family]: unix.IP_PMTUDISC_PROBE,
	} {
		if err := unix.SetsockoptInt(fd, level, option, value); err != nil {
			return c, err
		}
	}
	for range tries {
		if err := unix.Sendto(fd, make([]byte, size), 0, sockaddr(to)); err != nil {
			return c, err
		}
		c, err = readComplaint(fd)
		if !errors.Is(err, errNothing) {
			return c, err
		}
	}
	return c, err
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: closedPort}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), Port: closedPort}
}

// readComplaint reads a struct sock_extended_err and the address that follows it (ip(7), IP_RECVERR).
func readComplaint(fd int) (c complaint, err error) {
	poll := []unix.PollFd{{Fd: int32(fd)}} // errors are always polled for
	if _, err := unix.Poll(poll, int(tryTime.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
		return c, err
	}
	oob := make([]byte, 256)
	_, n, _, _, err := unix.Recvmsg(fd, make([]byte, 2*mtu), oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		return c, errNothing
	}
	if err != nil {
		return c, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return c, err
	}
	const size = 16 // of struct sock_extended_err
	for _, m := range messages {
		if len(m.Data) < size+4 {
			continue
		}
		c.kind, c.code, c.info = m.Data[5], m.Data[6], binary.NativeEndian.Uint32(m.Data[8:])
		switch offender := m.Data[size:]; {
		case binary.NativeEndian.Uint16(offender) == unix.AF_INET && len(offender) >= 8:
			c.from = netip.AddrFrom4([4]byte(offender[4:8]))
		case binary.NativeEndian.Uint16(offender) == unix.AF_INET6 && len(offender) >= 24:
			c.from = netip.AddrFrom16([16]byte(offender[8:24]))
		}
		return c, nil
	}
	return c, fmt.Errorf("no ICMP error among %d messages", len(messages))
}

// traceroute sees the node as the first hop, and the other guest as the second.
func TestTTLEndsOnTheNode(t *testing.T) {
	for _, mode := range []string{"native", "generic", "off"} {
		t.Run(mode, func(t *testing.T) {
			n := newNode(t)
			a, b := n.boot("a", conf(mode, nil)), n.boot("b", conf(mode, nil))
			for family, name := range families {
				node := []netip.Addr{nodeAddrs[family], a.result.gateway[family]} // which one is its routing table's choice
				w := a.during(func() { wantComplaint(t, name+", TTL 1", a, family, 1, 100, b.addr(family), expired[family], node...) })
				if mode != "off" {
					w.wantNone(t, name+", TTL 1", "xdp_pass_ttl", "tc_pass_ttl")
				}
				w = a.during(func() {
					wantComplaint(t, name+", TTL 2", a, family, 2, 100, b.addr(family), unreachable[family], b.addr(family))
				})
				if mode != "off" {
					w.wantTaken(t, name+", TTL 2", "xdp_to_guest")
				}
			}
		})
	}
}

// wantComplaint wants that ICMP error from one of these.
func wantComplaint(t *testing.T, what string, m *machine, family, ttl, size int, to netip.Addr, want complaint, from ...netip.Addr) {
	t.Helper()
	got, err := m.probe(family, ttl, size, to)
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	for _, want.from = range from {
		if got == want {
			return
		}
	}
	t.Errorf("%s: want %+v from one of %v, got %+v", what, want, from, got)
}

// small is the MTU of a pod behind which the path is narrower than the sender knows.
const small = 1300

// A frame above the target's MTU is the host's, which says so, and TCP finds the path's MTU.
func TestPathMTU(t *testing.T) {
	for name, card := range map[string]int{"no offloads": guest.OffloadNone, "TSO": guest.OffloadTSO} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			// The guest behind the small MTU does not know of it, so that it offers a full segment size.
			a, b := n.boot("a", conf("native", nil)), n.boot("b", conf("native", object{"mtu": small}))
			a.offload(card)
			for family, name := range families {
				want := tooBig[family]
				want.info = small
				headers := []int{28, 48}[family]
				node := []netip.Addr{nodeAddrs[family], a.result.gateway[family]}
				w := a.during(func() {
					wantComplaint(t, name, a, family, 64, small-headers+1, b.addr(family), want, node...)
				})
				w.wantNone(t, name, "xdp_pass_mtu", "tc_pass_mtu")
				w = a.during(func() {
					wantComplaint(t, name, a, family, 64, small-headers, b.addr(family), unreachable[family], b.addr(family))
				})
				w.wantTaken(t, name+", of just that size", "xdp_to_guest")
				n.forgetPathMTU(a)
				w = a.during(func() { check(t, a.move(b.server(family), bulk/4, connection{})) })
				if w.taken() == 0 || w["tc_pass_mtu"] == 0 {
					t.Errorf("%s, TCP: want frames that did not fit, and then the shortcut, got %v", name, w)
				}
			}
		})
	}
}

// forgetPathMTU makes the guest forget what probes have taught it.
func (n *node) forgetPathMTU(m *machine) {
	n.t.Helper()
	testnode.In(n.t, m.inside, func() {
		for _, family := range []string{"-4", "-6"} {
			if out, err := ip(family, "route", "flush", "cache"); err != nil {
				n.t.Fatalf("%v: %s", err, out)
			}
		}
	})
}
