package xdp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// Each length of a frame up to an Ethernet's, and some up to what a page holds: whatever the contents, a partial checksum comes out
// complete and a complete one as it was.
func TestShortcutCompletesChecksums(t *testing.T) {
	s := newPair(t, true)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	mtu(t, s, 4000)
	for length := 42; length <= 1514; length++ {
		completeAll(t, s, rnd, length)
	}
	for range 60 {
		completeAll(t, s, rnd, 1515+rnd.IntN(1900))
	}
	if t.Failed() {
		t.Fatalf("seed %d", seed)
	}
}

// mtu makes the peer take longer frames.
func mtu(t testing.TB, s *Shortcut, mtu int) {
	t.Helper()
	p := peerParticipant()
	p.MTU = mtu
	join2(t, s, p)
}

// completeAll runs frames of one length of each protocol and family that has such.
func completeAll(t *testing.T, s *Shortcut, rnd *rand.Rand, length int) {
	t.Helper()
	for _, a := range families(peer4, peer6) {
		src, dst := a[0], a[1]
		head := 34
		if src.Is6() {
			head = 54
		}
		for proto, least := range map[int]int{protoTCP: 20, protoUDP: 8, icmpOf(src): 8} {
			body := length - head - least
			if body < 0 {
				continue
			}
			payload := make([]byte, body)
			for i := range payload {
				payload[i] = byte(rnd.Uint32())
			}
			completeOne(t, s, proto, src, dst, payload)
		}
	}
}

func icmpOf(a netip.Addr) int {
	if a.Is6() {
		return protoICMP6
	}
	return 1
}

func completeOne(t *testing.T, s *Shortcut, proto int, src, dst netip.Addr, payload []byte) {
	t.Helper()
	var l4 []byte
	switch proto {
	case protoTCP:
		l4 = tcp(src, dst, 1000, 80, tcpACK, payload)
	case protoUDP:
		l4 = udp(src, dst, 1000, 53, payload)
	default:
		l4 = echo(src, dst, false, 7, payload)
	}
	// As skb_checksum_help(): a sum of zero is written as 0xffff, but for ICMP of IPv4.
	off := map[int]int{protoTCP: 16, protoUDP: 6, 1: 2, protoICMP6: 2}[proto]
	if l4[off]|l4[off+1] == 0 && proto != 1 {
		l4[off], l4[off+1] = 0xff, 0xff
	}
	whole := packet(src, dst, proto, l4)
	want := routed(whole, peerMAC, GatewayMAC)
	got := wantPath(t, s, shortcutProgGuestXdp, partialFrame(whole, proto), shortcutPathReasonPATH_TO_GUEST, want)
	if got.beside[ShortcutChecksumCompleted] != 1 {
		t.Errorf("protocol %d, %d bytes: completed %d checksums, want 1", proto, len(whole), got.beside[ShortcutChecksumCompleted])
	}
	if proto != protoTCP {
		return
	}
	if got := wantPath(t, s, shortcutProgGuestXdp, whole, shortcutPathReasonPATH_TO_GUEST, want); got.beside[ShortcutChecksumCompleted] != 0 && !looksPartial(whole) {
		t.Errorf("%d bytes: completed a complete checksum", len(whole))
	}
}

// partialFrame is leavePartial for ICMP too.
func partialFrame(frame []byte, proto int) []byte {
	switch proto {
	case 1:
		return with(frame, 36, 0, 0)
	case protoICMP6:
		out := bytes.Clone(frame)
		pseudo := join(out[22:54], []byte{0, 0}, be16(len(out)-54), []byte{0, 0, 0, protoICMP6})
		binary.BigEndian.PutUint16(out[56:], ^binary.BigEndian.Uint16(checksum(pseudo)))
		return out
	}
	_, out := leavePartial(frame)
	return out
}

// looksPartial says whether a complete checksum is what a partial one would be, by chance.
func looksPartial(frame []byte) bool {
	_, part := leavePartial(frame)
	return bytes.Equal(part, frame)
}

// The values at which arithmetic goes wrong: a sum of zero becomes 0xffff as in skb_checksum_help(), UDP's zero says that there is
// none, and a complete checksum that looks partial stays.
func TestShortcutChecksumsAtTheEdges(t *testing.T) {
	s := newPair(t, true)
	for _, a := range families(peer4, peer6) {
		src, dst := a[0], a[1]
		for proto := range map[int]bool{protoTCP: true, protoUDP: true, icmpOf(src): true} {
			off := map[int]int{protoTCP: 16, protoUDP: 6}[proto]
			if off == 0 {
				off = 2
			}
			// Two bytes of payload that make the sum over all but the checksum 0xffff, so that the checksum is zero.
			zero := balance(t, proto, src, dst, off, 0xffff)
			sent := partialFrame(zero, proto)
			want := routed(sent, peerMAC, GatewayMAC)
			head := len(zero) - len(zero[34:])
			if src.Is6() {
				head = 54
			}
			copy(want[head+off:], []byte{0xff, 0xff})
			if proto == 1 {
				copy(want[head+off:], []byte{0, 0})
			}
			wantPath(t, s, shortcutProgGuestXdp, sent, shortcutPathReasonPATH_TO_GUEST, want)
		}
		none := packet(src, dst, protoUDP, udp(src, dst, 1000, 53, []byte("no checksum")))
		off := 40
		if src.Is6() {
			off = 60
		}
		none = with(none, off, 0, 0)
		if got := wantPath(t, s, shortcutProgGuestXdp, none, shortcutPathReasonPATH_TO_GUEST, routed(none, peerMAC, GatewayMAC)); got.beside[ShortcutChecksumCompleted] != 0 {
			t.Error("completed what has no checksum")
		}
	}
}

// balance is a frame whose last two bytes make the sum over the pseudo header and all but the checksum what is wanted.
func balance(t *testing.T, proto int, src, dst netip.Addr, off int, sum uint16) []byte {
	t.Helper()
	build := func(tail []byte) (frame []byte, total uint16) {
		var l4 []byte
		switch proto {
		case protoTCP:
			l4 = tcp(src, dst, 1000, 80, tcpACK, tail)
		case protoUDP:
			l4 = udp(src, dst, 1000, 53, tail)
		default:
			l4 = echo(src, dst, false, 7, tail)
		}
		zero := with(l4, off, 0, 0)
		head := pseudo(src, dst, proto, len(l4))
		if proto == 1 {
			head = nil
		}
		return packet(src, dst, proto, l4), ^binary.BigEndian.Uint16(checksum(head, zero))
	}
	_, total := build([]byte{0, 0})
	frame, total := build(be16(int(sum - total)))
	if total != sum {
		t.Fatalf("sum %#x, want %#x", total, sum)
	}
	return frame
}
