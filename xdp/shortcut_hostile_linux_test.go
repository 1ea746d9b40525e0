package xdp

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A guest writes frames with random bytes changed and vnet headers that lie, straight into its TAP. Whatever way they take, others
// get of it only what is from its own addresses, or the node's, to theirs; and then plain frames go as before.
func TestShortcutUnderHostileFrames(t *testing.T) {
	for _, mode := range []Mode{ModeNative, ModeGeneric} {
		t.Run(string(mode), func(t *testing.T) {
			nd := newNode(t, 2, mode)
			a, b := nd.guests[0], nd.guests[1]
			seeds := hostileSeeds(a, b)
			rnd := rand.New(rand.NewPCG(7, uint64(len(mode))))
			refused, got := 0, 0
			for range 8000 {
				h, frame := distort(rnd, seeds[rnd.IntN(len(seeds))])
				if _, err := unix.Write(a.tap.fd, join(h, frame)); err != nil {
					refused++ // EINVAL: the kernel does not take such a header
				}
				for {
					_, f, ok := b.tap.receive(0)
					if !ok {
						break
					}
					got++
					wantFrom(t, a, b, f)
				}
				if t.Failed() {
					t.Fatalf("after header % x, frame % x", h, frame)
				}
			}
			if got < 500 || refused == 0 {
				t.Errorf("%d frames came, %d were refused: the test shows little", got, refused)
			}
			for end := time.Now().Add(time.Second); time.Now().Before(end); {
				if _, _, ok := b.tap.receive(50 * time.Millisecond); !ok {
					break
				}
			}
			plain := a.to(b.v4, protoUDP, udp(a.v4, b.v4, 40000, 40001, []byte("hello")))
			a.wantTook("afterwards", func() { a.reaches(b, "afterwards", vnetHdr{}, plain, routed(plain, b.mac, GatewayMAC)) }, ShortcutXDPToGuest)
		})
	}
}

// hostileSeeds are frames from a that are good, or nearly so.
func hostileSeeds(a, b *guest) [][]byte {
	mapped := netip.AddrFrom16(b.v4.As16())
	return [][]byte{
		a.to(b.v4, protoTCP, tcp(a.v4, b.v4, 1, 2, tcpSYN)),
		a.to(b.v4, protoTCP, tcp(a.v4, b.v4, 1, 2, tcpACK, make([]byte, 3000))),
		a.to(b.v4, protoUDP, udp(a.v4, b.v4, 1, 2, []byte("hello"))),
		a.to(b.v4, protoUDP, udp(a.v4, b.v4, 1, 2, make([]byte, 1472))),
		a.to(b.v4, 1, echo(a.v4, b.v4, false, 7)),
		a.to(b.v4, 1, icmpError(a.v4, b.v4, 3, b.to(a.v4, protoUDP, udp(b.v4, a.v4, 2, 1))[14:])),
		a.to(b.v6, protoTCP, tcp(a.v6, b.v6, 1, 2, tcpACK, make([]byte, 5000))),
		a.to(b.v6, protoUDP, udp(a.v6, b.v6, 1, 2, []byte("hello"))),
		a.to(b.v6, protoICMP6, echo(a.v6, b.v6, false, 7)),
		a.to(mapped, protoUDP, udp(a.v6, mapped, 1, 2, []byte("hello"))),
	}
}

// distort makes a vnet header, mostly a lie, and changes some bytes or the length of a frame.
func distort(rnd *rand.Rand, frame []byte) (header, out []byte) {
	out = bytes.Clone(frame)
	for range rnd.IntN(4) {
		out[rnd.IntN(min(len(out), 80))] = byte(rnd.IntN(256))
	}
	switch rnd.IntN(6) {
	case 0:
		out = out[:14+rnd.IntN(len(out)-14)]
	case 1:
		out = append(out, make([]byte, rnd.IntN(3000))...)
	}
	header = make([]byte, 10)
	if rnd.IntN(2) == 0 { // flags, gso type, header length, gso size, checksum's start and offset
		header[0], header[1] = byte(rnd.IntN(4)), []byte{0, 1, 3, 4, 5, 0x81, byte(rnd.IntN(256))}[rnd.IntN(7)]
		for i, most := range []int{200, 2000, 100, 100} {
			v := rnd.IntN(most)
			header[2+2*i], header[3+2*i] = byte(v), byte(v>>8)
		}
	}
	return header, out
}

// wantFrom wants a frame to be one that b may get: as a router sends it, to b's address, from a's or the node's.
func wantFrom(t *testing.T, a, b *guest, f []byte) {
	t.Helper()
	if len(f) < 14 || !bytes.Equal(f[:6], b.mac) && f[0]&1 == 0 || !bytes.Equal(f[6:12], GatewayMAC) {
		t.Errorf("b got a frame that no router sent it: %s", dump(f))
		return
	}
	var src, dst netip.Addr
	switch {
	case f[12] == 8 && f[13] == 0 && len(f) >= 34:
		src, dst = netip.AddrFrom4([4]byte(f[26:])), netip.AddrFrom4([4]byte(f[30:]))
	case f[12] == 0x86 && f[13] == 0xdd && len(f) >= 54:
		src, dst = netip.AddrFrom16([16]byte(f[22:])), netip.AddrFrom16([16]byte(f[38:]))
	default:
		return // ARP and the like are the node's
	}
	if src != a.v4 && src != a.v6 && src != gateway4 && !src.IsLinkLocalUnicast() || dst != b.v4 && dst != b.v6 && !dst.IsMulticast() {
		t.Errorf("b got a packet from %s to %s: %s", src, dst, dump(f))
	}
}
