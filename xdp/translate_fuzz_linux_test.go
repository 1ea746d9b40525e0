package xdp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

// translation is bpf/translate.h once more, in Go and from the RFCs: it sums whole segments anew, where the programs add a difference.
type translation struct {
	from, to netip.Addr
	out      bool   // from the guest
	was, b   []byte // the frame
	checks   []int  // where checksums are in it
}

func be(b []byte) int { return int(binary.BigEndian.Uint16(b)) }

func sumOf(parts ...[]byte) int { return 0xffff &^ be(checksum(parts...)) }

// keep puts into b at off the checksum with which the parts after have the sum that the parts before had.
func (x *translation) keep(off int, before, after [][]byte) {
	x.b[off], x.b[off+1] = 0, 0
	d := sumOf(before...) + 0xffff - sumOf(after...)
	for d > 0xffff {
		d = d&0xffff + d>>16
	}
	copy(x.b[off:], be16(d))
	x.checks = append(x.checks, off)
}

// covered is where a transport has a checksum over addresses, or -1.
func covered(proto int, v6 bool) int {
	switch {
	case proto == protoTCP:
		return 16
	case proto == protoUDP, proto == 136, proto == 33:
		return 6
	case proto == protoICMP6 && v6:
		return 2
	}
	return -1
}

// headers finds the transport behind an IPv6 header whose next header and end are given.
func headers(b []byte, at, proto int) (transport, next int, later, auth, stops, ok bool) {
	for n := 0; n <= 8; n++ {
		size := 0
		switch proto {
		case protoHop, protoRouting, protoDest, protoAuth:
			if len(b) < at+2 {
				return 0, 0, false, false, false, false
			}
			size = 8 * (int(b[at+1]) + 1)
			if proto == protoAuth {
				size, auth = 4*(int(b[at+1])+2), true
			}
			if proto == protoRouting {
				stops = len(b) < at+4 || b[at+3] != 0
			}
		case protoFragment:
			if len(b) < at+4 {
				return 0, 0, false, false, false, false
			}
			size, later = 8, be(b[at+2:])>>3 != 0
		default:
			return at, proto, later, auth, stops, true
		}
		proto, at = int(b[at]), at+size
		if later {
			return at, proto, later, auth, stops, true
		}
	}
	return 0, 0, false, false, false, false
}

// quote translates the packet that an ICMP error has from at on, where its own packet ends at end.
func (x *translation) quote(at, end int, v6 bool) {
	size, field := 20, 16
	if v6 {
		size, field = 40, 24
	}
	if !x.out {
		field -= len(x.from.AsSlice())
	}
	if at+size > end || at+size > len(x.b) || !bytes.Equal(x.b[at+field:at+field+len(x.from.AsSlice())], x.from.AsSlice()) {
		return
	}
	q := x.b[at:]
	var transport, proto int
	var first bool
	if v6 {
		t, next, later, _, _, ok := headers(x.b, at+40, int(q[6]))
		transport, proto, first = t, next, ok && !later
	} else {
		if q[0]>>4 != 4 || q[0]&15 < 5 {
			return
		}
		transport, proto, first = at+int(q[0]&15)*4, int(q[9]), be(q[6:])&0x1fff == 0
	}
	copy(q[field:], x.to.AsSlice())
	if !v6 {
		x.keep(at+10, [][]byte{x.was[at : at+20]}, [][]byte{x.b[at : at+20]})
	}
	c := covered(proto, v6)
	if !first || c < 0 || transport+c+2 > end || transport+c+2 > len(x.b) || proto == protoUDP && be(x.b[transport+c:]) == 0 {
		return
	}
	off := transport + c
	x.keep(off, [][]byte{x.from.AsSlice(), x.was[off : off+2]}, [][]byte{x.to.AsSlice(), x.b[off : off+2]})
}

// apply gives false for what cannot be translated.
func (x *translation) apply() bool {
	v6 := x.from.Is6()
	field := 26
	var at, proto, end int
	var first bool
	if v6 {
		t, next, later, auth, stops, ok := headers(x.b, 54, int(x.b[20]))
		if !ok || auth || !x.out && stops {
			return false
		}
		at, field, proto, first, end = t, 22, next, !later, 54+be(x.b[18:])
	} else {
		at, proto, first, end = 14+int(x.b[14]&15)*4, int(x.b[23]), be(x.b[20:])&0x1fff == 0, 14+be(x.b[16:])
		if proto == protoAuth {
			return false
		}
	}
	if !x.out {
		field += len(x.from.AsSlice())
	}
	c := covered(proto, v6)
	if first && c >= 0 && at+c+2 > len(x.b) {
		return false
	}
	copy(x.b[field:], x.to.AsSlice())
	if !v6 {
		x.keep(24, [][]byte{x.was[14:34]}, [][]byte{x.b[14:34]})
	}
	if !first {
		return true
	}
	if at < len(x.b) && (v6 && proto == protoICMP6 && x.b[at] < 128 || !v6 && proto == 1 && slices.Contains([]byte{3, 4, 5, 11, 12}, x.b[at])) {
		x.quote(at+8, end, v6)
		if !v6 && !bytes.Equal(x.was[at:], x.b[at:]) {
			x.keep(at+2, [][]byte{x.was[at:]}, [][]byte{x.b[at:]})
		}
	}
	if c >= 0 && (proto != protoUDP || be(x.b[at+c:]) != 0) {
		x.keep(at+c, [][]byte{x.from.AsSlice(), x.was[at:]}, [][]byte{x.to.AsSlice(), x.b[at:]})
	}
	return true
}

// alike says whether frames differ in nothing but which zero a checksum is.
func alike(a, b []byte, checks []int) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	for _, frame := range [][]byte{a, b} {
		for _, off := range checks {
			if len(frame) >= off+2 && be(frame[off:]) == 0xffff {
				copy(frame[off:], []byte{0, 0})
			}
		}
	}
	return bytes.Equal(a, b)
}

// FuzzTranslate gives a clone's two programs any frame, and the model too. own has the frame get a source, or destination, that is
// translated.
func FuzzTranslate(f *testing.F) {
	for _, c := range crossings() {
		in, out := c.sides()
		f.Add(c.frameOf(in, true), true, true)
		f.Add(c.frameOf(out, false), false, true)
	}
	for _, frame := range seeds() {
		f.Add(frame, true, false)
		f.Add(frame, false, true)
	}
	p := newPrograms(f)
	f.Fuzz(func(t *testing.T, frame []byte, out, own bool) {
		if len(frame) > 3000 || len(frame) < 55 || !runnable(p, frame) {
			t.Skip("no frame for BPF_PROG_TEST_RUN")
		}
		fuzzTranslate(t, p, frame, out, own)
	})
}

func fuzzTranslate(t *testing.T, p *Programs, frame []byte, out, own bool) {
	x := translation{from: inside4.Addr(), to: outside[0], out: out}
	typ, field, version := be(frame[12:]), 26, byte(4)
	switch typ {
	case typeIPv4:
	case typeIPv6:
		x.from, x.to, field, version = inside6.Addr(), outside[1], 22, 6
	default:
		t.Skip("nothing to translate")
	}
	if !out {
		x.from, x.to = x.to, x.from
		field += len(x.from.AsSlice())
	}
	if own {
		frame = with(with(frame, offEthSrc, guestMAC...), field, x.from.AsSlice()...)
	}
	x.was, x.b = frame, slices.Clone(frame)
	role, want := RolePod, ReasonToGuest
	ep := cloneEndpoint(RolePod)
	if out {
		role, ep = RoleGuest, cloneEndpoint(RoleGuest)
		want = (model{ep, frame}).reason()
	}
	reserve(t, p, loopback, ep)
	got := run(t, p, role, frame)
	source := len(x.from.AsSlice())
	legal := want == ReasonToHost || want == ReasonToGuest
	switch {
	case !legal:
	case typ == typeIPv4 && (frame[14]>>4 != version || frame[14]&15 < 5), typ == typeIPv6 && frame[14]>>4 != version:
	case typ == typeIPv6 && out && frame[20] == protoICMP6 && frame[54] >= icmpRS && frame[54] <= icmpRedirect:
		want = ReasonInsideOnly
	case !out && bytes.Equal(frame[field-source:field], x.to.AsSlice()):
		want = ReasonInsideAddress
	case !bytes.Equal(frame[field:field+source], x.from.AsSlice()):
		if !out && bytes.Equal(frame[field:field+source], x.to.AsSlice()) {
			want = ReasonInsideAddress
		}
	case !x.apply():
		want = ReasonUntranslatable
	}
	if got.reason != want {
		t.Fatalf("%s, want %s\nframe %x", got.reason, want, frame)
	}
	if want == ReasonARPAnswered || want == ReasonNDAnswered {
		return // compared in other tests
	}
	if legal = want == ReasonToHost || want == ReasonToGuest; !legal {
		x.b = frame
	}
	if !alike(got.out, x.b, x.checks) {
		t.Errorf("bytes out:\ngot  %s\nwant %s\nfrom %s", dump(got.out), dump(x.b), dump(frame))
	}
}
