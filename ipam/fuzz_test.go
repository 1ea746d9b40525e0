package ipam

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/tapir-cni/tapir/state"
)

// FuzzConfig feeds configurations as a runtime would give them: whatever is found right must give out addresses of its
// own subnets, and what is not must say where.
func FuzzConfig(f *testing.F) {
	for _, ipam := range []string{
		`{"type":"tapir-ipam","ranges":[[{"subnet":"10.9.0.0/24","exclude":["10.9.0.7","10.9.0.128/25"]}],[{"subnet":"fd00::/64"}]],"routes":[{"dst":"0.0.0.0/0","gw":"10.9.0.1"}],"reuseDelay":"5s","stateDir":"/x"}`,
		`{"ranges":[[{"subnet":"10.9.0.0/30","rangeStart":"10.9.0.1","rangeEnd":"10.9.0.2","gateway":"169.254.1.1"},{"subnet":"10.8.0.0/31"}]]}`,
		`{"ranges":[[{"subnet":"255.255.255.0/24"}],[{"subnet":"ffff::/16"}],[{"subnet":"0.0.0.0/0"}]]}`,
		`{"ranges":[[{"subnet":5}]],"rangez":null}`, `null`, `[]`, `{"ranges":[[]]}`,
	} {
		f.Add([]byte(`{"cniVersion":"1.1.0","name":"n","ipam":`+ipam+`}`), "10.9.0.3")
	}
	f.Fuzz(func(t *testing.T, data []byte, address string) {
		_, s, err := parseADD(data)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without text")
			}
			return
		}
		_ = newStore(t).Update(t.Context(), func(tx *state.Tx) error {
			leases, err := Acquire(tx, Request{Key: key(1), Sets: s.Sets})
			if err != nil || len(leases) != len(s.Sets) {
				t.Fatalf("Acquire of a new state: got %v, %v", leases, err)
			}
			for _, l := range leases {
				if p := l.Prefix; p.Addr() == l.Gateway || p.Addr().IsMulticast() || p.Addr().Is4In6() || !p.IsValid() {
					t.Errorf("lease %v", l)
				}
			}
			_, err = Acquire(tx, Request{Key: key(2), Sets: s.Sets, Addresses: []string{address}})
			if _, known := ErrorCode(err); err != nil && !known {
				t.Errorf("request of %q: an error without a CNI code: %v", address, err)
			}
			return nil
		})
	})
}

// FuzzAcquire plays requests and releases on the store and on a map, and compares.
func FuzzAcquire(f *testing.F) {
	f.Add([]byte("\x01\x02\x03\x84\x05\x01\x02\xff\x10"), uint8(3), uint8(0))
	f.Add([]byte("abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"), uint8(28), uint8(5))
	r := rand.New(rand.NewPCG(3, 4))
	long := make([]byte, 2000)
	for i := range long {
		long[i] = byte(r.Uint32())
	}
	f.Add(long, uint8(27), uint8(9))
	f.Fuzz(func(t *testing.T, ops []byte, size, exclude uint8) {
		bits := 26 + int(size)%7
		c := Config{Ranges: [][]Range{
			{{Subnet: netip.PrefixFrom(netip.MustParseAddr("10.9.0.0"), bits).String()}, {Subnet: "10.8.0.0/29", Exclude: []string{"10.8.0.3"}}},
			{{Subnet: "fd00::/122", Exclude: []string{fmt.Sprintf("fd00::%x", exclude%64)}}},
		}}
		s, faults := c.Validate()
		if len(faults) > 0 {
			t.Skip(faults)
		}
		if err := storeIn(filepath.Join(t.TempDir(), "s")).Update(t.Context(), func(tx *state.Tx) error {
			return play(t, tx, s, ops)
		}); err != nil {
			t.Fatal(err)
		}
	})
}

// play makes each byte one call: the high bit releases, the rest is the attachment.
func play(t *testing.T, tx *state.Tx, s Settings, ops []byte) error {
	holder := map[netip.Addr]state.Key{}
	leases := map[state.Key][]Lease{}
	for n, op := range ops {
		k := key(int(op & 0x7f))
		if op&0x80 != 0 {
			if err := Release(tx, k); err != nil {
				return fmt.Errorf("call %d: release %q: %w", n, k, err)
			}
			for _, l := range leases[k] {
				delete(holder, l.Prefix.Addr())
			}
			delete(leases, k)
			continue
		}
		full := false
		for _, set := range s.Sets {
			full = full || !anyFree(set, holder)
		}
		got, err := Acquire(tx, Request{Key: k, Sets: s.Sets})
		var exhausted *ExhaustedError
		switch _, exists := leases[k]; {
		case exists:
			if !errors.Is(err, ErrExists) {
				return fmt.Errorf("call %d: %q has a lease: want ErrExists, got %v, %w", n, k, got, err)
			}
		case full:
			if !errors.As(err, &exhausted) {
				return fmt.Errorf("call %d: a set is full: want an ExhaustedError, got %v, %w", n, got, err)
			}
		case err != nil || len(got) != len(s.Sets):
			return fmt.Errorf("call %d: got %v, %w", n, got, err)
		default:
			for i, l := range got {
				if other, taken := holder[l.Prefix.Addr()]; taken {
					return fmt.Errorf("call %d: %s is of %q and of %q", n, l.Prefix, other, k)
				}
				if _, ok := s.Sets[i].find(l.Prefix.Addr()); !ok {
					return fmt.Errorf("call %d: %s is not of %s", n, l.Prefix, s.Sets[i])
				}
				holder[l.Prefix.Addr()] = k
			}
			leases[k] = got
		}
	}
	for addr, k := range holder {
		if u, err := tx.AddressUser(addr); err != nil || u.Holder != k {
			return fmt.Errorf("%s: want it leased to %q, got %+v, %w", addr, k, u, err)
		}
	}
	return nil
}

// anyFree looks at each address: the model knows no runs.
func anyFree(set RangeSet, holder map[netip.Addr]state.Key) bool {
	for _, r := range set.ranges {
		for a := r.first; a.IsValid() && !r.last.Less(a); a = a.Next() {
			blocked := false
			for _, b := range r.blocked {
				blocked = blocked || !a.Less(b.first) && !b.last.Less(a)
			}
			if _, taken := holder[a]; !taken && !blocked {
				return true
			}
		}
	}
	return false
}

// The order in which addresses are excluded must not matter, nor how they overlap.
func TestBlockedIntervalsAgreeWithASet(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, subnet := range []string{"10.9.0.0/26", "255.255.255.192/26", "fd00::/122"} {
		for round := range 300 {
			p := netip.MustParsePrefix(subnet)
			got, faults := parseRange(Range{Subnet: subnet, Gateway: map[bool]string{true: "169.254.1.1", false: "fe80::1"}[p.Addr().Is4()]})
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			want := map[netip.Addr]bool{}
			for a := got.first; a.IsValid() && !got.last.Less(a); a = a.Next() {
				want[a] = true
			}
			for range r.IntN(12) {
				first := p.Addr()
				for range r.IntN(64) {
					first = first.Next()
				}
				last := first
				delete(want, last)
				for range r.IntN(6) {
					if next := last.Next(); next.IsValid() {
						last = next
					}
					delete(want, last)
				}
				got.block(interval{first, last})
			}
			var before netip.Addr
			count := 0
			for _, piece := range got.pieces() {
				if before.IsValid() && !before.Next().Less(piece.first) {
					t.Errorf("%s, round %d: %s touches the piece before it", subnet, round, piece.first)
				}
				before = piece.last
				for a := piece.first; a.IsValid() && !piece.last.Less(a); a = a.Next() {
					count++
					if !want[a] {
						t.Errorf("%s, round %d: %s is given out", subnet, round, a)
					}
				}
			}
			if count != len(want) {
				t.Errorf("%s, round %d: %d addresses, want %d", subnet, round, count, len(want))
			}
		}
	}
}
