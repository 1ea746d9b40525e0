package stream

import (
	"encoding/binary"
	"io"

	"github.com/cespare/xxhash/v2"
)

// verdict is what one end of a transfer found. The hash is XXH64, since an emulated CPU takes part: SHA-256 or a CRC would
// take most of a transfer's time. It finds faults, not forgeries.
type verdict struct {
	bytes    int64
	hash     uint64
	mismatch int64
	peer     string
}

// send writes n bytes of the stream of seed to w.
func (v *verdict) send(w io.Writer, seed uint64, n int64) error {
	s, h := newSource(seed), xxhash.New()
	for v.bytes < n {
		p := s.next(int(min(n-v.bytes, blockSize)))
		_, _ = h.Write(p)
		m, err := w.Write(p)
		v.bytes += int64(m)
		if err != nil {
			return err
		}
	}
	v.hash = h.Sum64()
	return nil
}

// receive reads n bytes from r and compares them with the stream of seed. It reads on after a mismatch, so that the
// hash is of all that arrived.
func (v *verdict) receive(r io.Reader, seed uint64, n int64) error {
	s, h := newSource(seed), xxhash.New()
	buf := make([]byte, 4*blockSize)
	for v.bytes < n {
		m, err := r.Read(buf[:min(int64(len(buf)), n-v.bytes)])
		_, _ = h.Write(buf[:m])
		if at := s.compare(buf[:m]); at >= 0 && v.mismatch < 0 {
			v.mismatch = v.bytes + int64(at)
		}
		v.bytes += int64(m)
		if err != nil && v.bytes < n {
			return err
		}
	}
	v.hash = h.Sum64()
	return nil
}

func (v *verdict) marshal() []byte {
	b := make([]byte, 0, verdictLen)
	b = binary.BigEndian.AppendUint64(b, uint64(v.bytes))
	b = binary.BigEndian.AppendUint64(b, v.hash)
	b = binary.BigEndian.AppendUint64(b, uint64(v.mismatch))
	peer := v.peer[:min(len(v.peer), peerMax)]
	b = binary.BigEndian.AppendUint16(b, uint16(len(peer)))
	b = append(b, peer...)
	return b[:verdictLen]
}

func (v *verdict) read(r io.Reader) error {
	var b [verdictLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return err
	}
	v.bytes = int64(binary.BigEndian.Uint64(b[:]))
	v.hash = binary.BigEndian.Uint64(b[8:])
	v.mismatch = int64(binary.BigEndian.Uint64(b[16:]))
	n := min(int(binary.BigEndian.Uint16(b[24:])), peerMax)
	v.peer = string(b[26 : 26+n])
	return nil
}
