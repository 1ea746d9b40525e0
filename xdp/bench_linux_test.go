package xdp

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// BenchmarkAttachment is what one ADD does here when the programs are pinned: open, reserve, attach two, close.
func BenchmarkAttachment(b *testing.B) {
	for _, m := range []Method{MethodTCX, MethodClsact} {
		b.Run(string(m), func(b *testing.B) {
			dir := testDir(b)
			mustEnsure(b, dir)
			s := newSandbox(b)
			entries := attachment(s.tapIndex, s.podIndex)
			// A node with one attachment has the hook's code switched on already.
			inNetnsWithVeth(b, func(ifindex int) {
				if err := s.p.Attach(ifindex, RoleHost, m); err != nil {
					b.Fatal(err)
				}
			})
			testnode.In(b, s.pod, func() {
				for b.Loop() {
					p := benchmarkAdd(b, dir, s, entries, m)
					b.StopTimer()
					benchmarkUndo(b, p, s, m)
					b.StartTimer()
				}
			})
		})
	}
}

func benchmarkAdd(b *testing.B, dir string, s *sandbox, entries map[uint32]Endpoint, m Method) *Programs {
	p, err := Ensure(dir)
	if err != nil {
		b.Fatal(err)
	}
	if err := p.Reserve(entries); err != nil {
		b.Fatal(err)
	}
	if err := p.Attach(int(s.tapIndex), RoleGuest, m); err != nil {
		b.Fatal(err)
	}
	if err := p.Attach(int(s.podIndex), RolePod, m); err != nil {
		b.Fatal(err)
	}
	return p
}

func benchmarkUndo(b *testing.B, p *Programs, s *sandbox, m Method) {
	if err := p.Detach(int(s.tapIndex), RoleGuest, m); err != nil {
		b.Fatal(err)
	}
	if err := p.Detach(int(s.podIndex), RolePod, m); err != nil {
		b.Fatal(err)
	}
	if err := p.Delete(s.tapIndex, s.podIndex); err != nil {
		b.Fatal(err)
	}
	if err := p.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkOpen is the part that each process pays before it can do anything.
func BenchmarkOpen(b *testing.B) {
	dir := testDir(b)
	mustEnsure(b, dir)
	for b.Loop() {
		p, err := Open(dir)
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGuestIngress is the program alone, on a frame that is sent on.
func BenchmarkGuestIngress(b *testing.B) {
	p := newPrograms(b)
	reserve(b, p, loopback, guestEndpoint())
	for name, frame := range map[string][]byte{
		"IPv4": hello(0),
		"IPv6": fromGuest(typeIPv6, ip6(guest6.Addr(), offLink6, protoTCP, 64, make([]byte, 20))),
	} {
		b.Run(name, func(b *testing.B) {
			_, perRun, err := p.programs[RoleGuest].Benchmark(frame, 2_000_000, nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(perRun.Nanoseconds()), "ns/frame")
		})
	}
}

// BenchmarkTAPToHost is one write of a small frame to the TAP, up to the host end's receive path, where it is dropped
// because nobody listens.
func BenchmarkTAPToHost(b *testing.B) {
	for _, m := range []Method{MethodTCX, MethodClsact} {
		for _, kind := range []Redirect{RedirectEgress, RedirectPeer} {
			b.Run(string(m)+" "+kind.String(), func(b *testing.B) {
				s := newSandbox(b)
				s.attach(m, kind)
				// Off the wire, or the packet socket would copy each frame.
				if err := unix.Bind(s.wire.fd, &unix.SockaddrLinklayer{Ifindex: loopback}); err != nil {
					b.Fatal(err)
				}
				frame := join(vnetHdr{}.bytes(), hello(0))
				for b.Loop() {
					if _, err := unix.Write(s.tap.fd, frame); err != nil {
						b.Fatal(err)
					}
				}
				if got := s.counters()[ReasonToHost]; got < uint64(b.N) {
					b.Fatalf("%d frames counted to the host, want %d", got, b.N)
				}
			})
		}
	}
}
