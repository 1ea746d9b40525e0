package stream

import (
	"encoding/binary"
	"math/bits"
)

// The primes of XXH64, from the specification (xxHash fast digest algorithm, version 0.1.1).
const (
	prime1 uint64 = 0x9E3779B185EBCA87
	prime2 uint64 = 0xC2B2AE3D27D4EB4F
	prime3 uint64 = 0x165667B19E3779F9
	prime4 uint64 = 0x85EBCA77C2B2AE63
	prime5 uint64 = 0x27D4EB2F165667C5
)

// Hash is XXH64 with seed 0, fed piece by piece. It is chosen for an emulated CPU: four multiplications for 32 bytes
// and no vector instruction, where SHA-256 or a CRC would take most of a transfer's time. It finds faults, not
// forgeries. The zero value is not ready: call [NewHash].
type Hash struct {
	lanes [4]uint64
	tail  [32]byte // what did not fill a stripe yet
	held  int
	total uint64
}

// NewHash gives an empty hash.
func NewHash() *Hash {
	p1 := prime1
	return &Hash{lanes: [4]uint64{p1 + prime2, prime2, 0, -p1}}
}

// Write adds p to the hash. It never fails.
func (h *Hash) Write(p []byte) (int, error) {
	n := len(p)
	h.total += uint64(n)
	if h.held > 0 {
		c := copy(h.tail[h.held:], p)
		h.held += c
		p = p[c:]
		if h.held < len(h.tail) {
			return n, nil
		}
		h.stripes(h.tail[:])
		h.held = 0
	}
	whole := len(p) &^ 31
	h.stripes(p[:whole])
	h.held = copy(h.tail[:], p[whole:])
	return n, nil
}

func (h *Hash) stripes(p []byte) {
	a, b, c, d := h.lanes[0], h.lanes[1], h.lanes[2], h.lanes[3]
	for ; len(p) >= 32; p = p[32:] {
		a = round(a, binary.LittleEndian.Uint64(p))
		b = round(b, binary.LittleEndian.Uint64(p[8:]))
		c = round(c, binary.LittleEndian.Uint64(p[16:]))
		d = round(d, binary.LittleEndian.Uint64(p[24:]))
	}
	h.lanes = [4]uint64{a, b, c, d}
}

func round(acc, lane uint64) uint64 {
	return bits.RotateLeft64(acc+lane*prime2, 31) * prime1
}

// Sum64 gives the hash of all that was written; writing may go on after it.
func (h *Hash) Sum64() uint64 {
	var s uint64
	if h.total >= 32 {
		s = bits.RotateLeft64(h.lanes[0], 1) + bits.RotateLeft64(h.lanes[1], 7) +
			bits.RotateLeft64(h.lanes[2], 12) + bits.RotateLeft64(h.lanes[3], 18)
		for _, lane := range h.lanes {
			s = (s^round(0, lane))*prime1 + prime4
		}
	} else {
		s = prime5
	}
	s += h.total
	p := h.tail[:h.held]
	for ; len(p) >= 8; p = p[8:] {
		s = bits.RotateLeft64(s^round(0, binary.LittleEndian.Uint64(p)), 27)*prime1 + prime4
	}
	if len(p) >= 4 {
		s = bits.RotateLeft64(s^uint64(binary.LittleEndian.Uint32(p))*prime1, 23)*prime2 + prime3
		p = p[4:]
	}
	for _, c := range p {
		s = bits.RotateLeft64(s^uint64(c)*prime5, 11) * prime1
	}
	s = (s ^ s>>33) * prime2
	s = (s ^ s>>29) * prime3
	return s ^ s>>32
}
