package xdp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// What translation adds to the programs of the default path, by test runs, the least of many. Inside and outside are one address here, so that
// each run finds what the first found; the programs do all their work nevertheless.
func BenchmarkTranslate(b *testing.B) {
	p := newPrograms(b)
	type endpoint struct {
		role Role
		ep   Endpoint
	}
	for _, role := range []Role{RoleGuest, RolePod} {
		plain := cloneEndpoint(role)
		plain.Outside = nil
		clone := cloneEndpoint(role)
		clone.Outside = []netip.Addr{inside4.Addr(), inside6.Addr()}
		for name, e := range map[string]endpoint{"plain": {role, plain}, "clone": {role, clone}} {
			for _, c := range crossings() {
				if c.name != "TCP" && c.name != "UDP" {
					continue
				}
				family := "IPv4"
				if c.v6 {
					family = "IPv6"
				}
				in, _ := c.sides()
				frame := c.frameOf(in, role == RoleGuest)
				b.Run(role.String()+" "+name+" "+family+" "+c.name, func(b *testing.B) {
					reserve(b, p, loopback, e.ep)
					benchmarkLeast(b, p.programs[role], frame)
				})
			}
		}
	}
}

// benchmarkLeast reports the time of a program for one frame.
func benchmarkLeast(b *testing.B, prog *ebpf.Program, frame []byte) {
	b.Helper()
	least := time.Hour
	for b.Loop() {
		_, took, err := prog.Benchmark(frame, 5000, nil)
		if err != nil {
			b.Fatal(err)
		}
		least = min(least, took)
	}
	b.ReportMetric(float64(least.Nanoseconds()), "ns/frame")
}

// The same of the shortcut's program for a TAP: both guests have inside what they have outside.
func BenchmarkShortcutTranslate(b *testing.B) {
	for _, name := range []string{"plain", "clones"} {
		for _, v6 := range []bool{false, true} {
			s := newShortcutPrograms(b, true)
			from, to := guestParticipant(), peerParticipant()
			from.MAC, to.MAC = GatewayMAC, GatewayMAC
			from.Addresses = []netip.Prefix{guest4, guest6}
			if name == "clones" {
				from.Inside, to.Inside = []netip.Addr{guest4.Addr(), guest6.Addr()}, []netip.Addr{peer4, peer6}
			}
			join2(b, s, from)
			join2(b, s, to)
			standIn(b, s, shortcutMapDevices, peerTAP)
			src, dst, family := guest4.Addr(), peer4, "IPv4"
			if v6 {
				src, dst, family = guest6.Addr(), peer6, "IPv6"
			}
			frame := packet(src, dst, protoUDP, udp(src, dst, 1000, 2000, make([]byte, 18)))
			copy(frame[6:12], GatewayMAC)
			if v6 {
				frame[21] = 255
			} else {
				frame[22] = 255
				copy(frame[24:], []byte{0, 0})
				copy(frame[24:], checksum(frame[14:34]))
			}
			b.Run(name+" "+family, func(b *testing.B) {
				least := time.Hour
				for b.Loop() {
					_, took, err := s.programs[shortcutProgGuestXdp].Benchmark(frame, 250, nil) // as many as its hop limit is good for
					if err != nil {
						b.Fatal(err)
					}
					least = min(least, took)
				}
				b.ReportMetric(float64(least.Nanoseconds()), "ns/frame")
			})
		}
	}
}
