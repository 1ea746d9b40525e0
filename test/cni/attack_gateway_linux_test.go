package cni_test

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// Subnets without room for a gateway, gateways outside, and two subnets of one family: whatever the configuration leaves open, the
// guest and the plain pod reach the node and the world by what the result says.
func TestEveryShapeOfRangeReachesTheWorld(t *testing.T) {
	n := newNode(t)
	n.warm(conf(nil))
	for _, tt := range []struct {
		name    string
		ranges  [][]object
		gateway string // of the first address
	}{
		{"one IPv4 address", [][]object{{{"subnet": "10.9.7.9/32"}}}, "169.254.1.1"},
		{"one IPv6 address", [][]object{{{"subnet": "fd00:9:7::9/128"}}}, "fe80::1"},
		{"one of each", [][]object{{{"subnet": "10.9.7.9/32"}}, {{"subnet": "fd00:9:7::9/128"}}}, "169.254.1.1"},
		{"two IPv4 addresses", [][]object{{{"subnet": "10.9.7.8/31"}}}, "10.9.7.8"},
		{"two IPv6 addresses", [][]object{{{"subnet": "fd00:9:7::8/127"}}}, "fd00:9:7::8"},
		{"link-local gateways", [][]object{{{"subnet": "10.9.7.0/24", "gateway": "169.254.9.9"}}, {{"subnet": "fd00:9:7::/64", "gateway": "fe80::9"}}}, "169.254.9.9"},
		{"two IPv4 subnets", [][]object{{{"subnet": "10.9.7.0/24"}}, {{"subnet": "10.9.8.0/24"}}}, "10.9.7.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := conf(object{"ipMasq": true, "ipam": object{
				"type": "tapir-ipam", "ranges": tt.ranges, "routes": []object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}}, "reuseDelay": "0s",
			}})
			p := n.pod("guest", c)
			r := p.add()
			if got := r.IPs[0].Gateway.String(); got != tt.gateway {
				t.Errorf("gateway %s, want %s", got, tt.gateway)
			}
			g := boot(p, r)
			for _, to := range []netip.Addr{nodeIP4, worldIP4, nodeIP6, worldIP6} {
				if g.ip[to.Is4()].IsValid() {
					g.wantPing(to)
				}
			}
			p.works("CHECK", nil)
			p.works("DEL", nil)

			plain := n.pod("plain", c.with(object{"when": "annotated"}))
			plain.add()
			testnode.In(t, plain.netns, func() {
				for _, to := range []netip.Addr{worldIP4, worldIP6} {
					if g.ip[to.Is4()].IsValid() && !answersEcho(t, to) {
						t.Errorf("a plain pod gets no answer from %s", to)
					}
				}
			})
			plain.works("CHECK", nil)
			plain.works("DEL", nil)
		})
	}
}

// answersEcho sends an echo request from the calling thread's netns. The first IPv4 one must be answered; of IPv6 it sends more,
// since the kernel makes an address without DAD its own some time after the request for it (addrconf_dad_work).
func answersEcho(t *testing.T, to netip.Addr) bool {
	t.Helper()
	family, proto := unix.AF_INET, unix.IPPROTO_ICMP
	request := []byte{8, 0, 0, 0, 0x74, 0x61, 0, 1}
	var sa unix.Sockaddr
	if to.Is4() {
		copy(request[2:], sum(request))
		sa = &unix.SockaddrInet4{Addr: to.As4()}
	} else {
		request[0] = 128 // and the kernel sums it
		family, proto, sa = unix.AF_INET6, unix.IPPROTO_ICMPV6, &unix.SockaddrInet6{Addr: to.As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	buf := make([]byte, 200)
	for sent, deadline := 0, time.Now().Add(patience); time.Now().Before(deadline); {
		if sent == 0 || to.Is6() {
			if err := unix.Sendto(fd, request, 0, sa); err != nil {
				t.Errorf("echo to %s: %v", to, err)
				return false
			}
			sent++
		}
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(ready, 50); n == 0 || err != nil {
			continue
		}
		size, err := unix.Read(fd, buf)
		if err != nil {
			return false
		}
		answer := buf[:size]
		if to.Is4() {
			answer = answer[20:]
		}
		if len(answer) >= 8 && (answer[0] == 0 || answer[0] == 129) && bytes.Equal(answer[4:6], request[4:6]) {
			return true
		}
	}
	return false
}
