package main

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
)

var (
	testGuest = endpoint{net.HardwareAddr{2, 0, 0, 0, 0, 1}, netip.MustParseAddr("10.100.0.2")}
	testHost  = endpoint{net.HardwareAddr{2, 0, 0, 0, 0, 2}, netip.MustParseAddr("10.100.0.1")}
)

func TestFramesAreWhatTheirHeadersSay(t *testing.T) {
	frames := segments(testGuest, testHost, 4000, 1514, 3)
	for _, size := range []int{60, 1514} {
		frames = append(frames, datagram(testGuest, testHost, 4000, size))
	}
	for i, f := range frames {
		ip := f[vnetHeader+ethHeader:]
		if length := int(binary.BigEndian.Uint16(ip[2:])); length != len(ip) {
			t.Errorf("frame %d: its IPv4 header says %d bytes, and there are %d", i, length, len(ip))
		}
		if got := sum(ip[:ipHeader]); got != 0xffff {
			t.Errorf("frame %d: its IPv4 header sums to %#x", i, got)
		}
	}
}

// GRO merges only segments of which each begins where the one before ended, with a checksum that is partial in each.
func TestSegmentsFollowEachOther(t *testing.T) {
	next := uint32(0)
	for i, f := range segments(testGuest, testHost, 4000, 1514, 32) {
		tcp := f[vnetHeader+ethHeader+ipHeader:]
		if got := binary.BigEndian.Uint32(tcp[4:]); got != next {
			t.Errorf("segment %d begins at %d, want %d", i, got, next)
		}
		next += uint32(len(tcp) - 20)
		pseudo := append(append([]byte{0, 6}, testGuest.ip.AsSlice()...), testHost.ip.AsSlice()...)
		want := sum(binary.BigEndian.AppendUint16(pseudo, uint16(len(tcp))))
		if got := binary.BigEndian.Uint16(tcp[16:]); got != want || f[0] != 1 {
			t.Errorf("segment %d: want the pseudo header's sum %#x and NEEDS_CSUM, got %#x and %#x", i, want, got, f[0])
		}
	}
}
