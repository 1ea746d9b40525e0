// Package stream moves a stream of bytes that both ends can make, so that a receiver compares what arrives with what
// was sent, byte by byte, and both ends compare hashes. It runs in guests and on the node.
package stream

import (
	"bytes"
	"encoding/binary"
)

// blockSize is the unit in which the stream is made and compared.
const blockSize = 64 << 10

// source makes the stream of one seed: blocks of random words, each word XORed with a value of the block's number, so
// that no two blocks are alike and a lost, doubled or moved piece shows.
type source struct {
	base  [blockSize / 8]uint64
	seed  uint64
	block uint64
	buf   [blockSize]byte
	used  int // bytes of buf that were taken
}

func newSource(seed uint64) *source {
	s := &source{seed: seed, used: blockSize}
	for i := range s.base {
		s.base[i] = mix(seed + uint64(i))
	}
	return s
}

// next gives up to n bytes of the stream, valid until the next call.
func (s *source) next(n int) []byte {
	if s.used == blockSize {
		k := mix(^s.seed + s.block)
		s.block++
		for i, w := range s.base {
			binary.LittleEndian.PutUint64(s.buf[8*i:], w^k)
		}
		s.used = 0
	}
	p := s.buf[s.used:min(s.used+n, blockSize)]
	s.used += len(p)
	return p
}

// compare takes len(got) bytes of the stream and gives the offset in got of the first byte that differs, or -1.
func (s *source) compare(got []byte) int {
	for at := 0; at < len(got); {
		want := s.next(len(got) - at)
		part := got[at : at+len(want)]
		if !bytes.Equal(want, part) {
			for i := range want {
				if want[i] != part[i] {
					return at + i
				}
			}
		}
		at += len(want)
	}
	return -1
}

// mix is splitmix64's output function on the x-th state (Steele, Lea, Flood 2014).
func mix(x uint64) uint64 {
	x *= 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
