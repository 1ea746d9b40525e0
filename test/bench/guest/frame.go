package guest

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Lengths of headers, in bytes.
const (
	EthernetSize = 14
	ipv4Size     = 20
	udpSize      = 8
)

// MinUDP is the smallest UDP frame that Ethernet carries, without its checksum: 64 bytes on a wire.
const MinUDP = 60

const protoIPv4 = 0x0800

// Offsets in a frame that a Queue reads.
const (
	offEtherType = HeaderSize + 12
	offProtocol  = HeaderSize + EthernetSize + 9
	offPort      = HeaderSize + EthernetSize + ipv4Size + 2
	offPayload   = HeaderSize + EthernetSize + ipv4Size + udpSize
)

// UDP is an IPv4 UDP frame to build.
type UDP struct {
	ToMAC, FromMAC  net.HardwareAddr
	From, To        netip.AddrPort
	Size            int  // bytes from the Ethernet header to the end, at least 46
	PartialChecksum bool // leave the checksum to the device, as a guest with checksum offload does; else it is complete
}

// virtioNeedsChecksum is VIRTIO_NET_HDR_F_NEEDS_CSUM.
const virtioNeedsChecksum = 1

// Frame builds it, with its virtio-net header.
func (u UDP) Frame() []byte {
	frame := make([]byte, HeaderSize+u.Size)
	eth := frame[HeaderSize:]
	copy(eth, u.ToMAC)
	copy(eth[6:], u.FromMAC)
	binary.BigEndian.PutUint16(eth[12:], protoIPv4)

	ip := eth[EthernetSize:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	from, to := u.From.Addr().As4(), u.To.Addr().As4()
	copy(ip[12:], from[:])
	copy(ip[16:], to[:])
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:ipv4Size]))

	udp := ip[ipv4Size:]
	binary.BigEndian.PutUint16(udp, u.From.Port())
	binary.BigEndian.PutUint16(udp[2:], u.To.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	pseudo := append(append([]byte{}, ip[12:20]...), 0, 17, udp[4], udp[5])
	if u.PartialChecksum {
		// What the device gets is the folded sum of the pseudo-header; it adds the rest.
		binary.BigEndian.PutUint16(udp[6:], sum(pseudo))
		frame[0] = virtioNeedsChecksum
		binary.NativeEndian.PutUint16(frame[6:], EthernetSize+ipv4Size) // csum_start
		binary.NativeEndian.PutUint16(frame[8:], 6)                     // csum_offset
		return frame
	}
	check := ^sum(append(pseudo, udp...))
	if check == 0 {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], check)
	return frame
}

// PutSequence writes a number into the payload, and its complement beside it: their sum does not change, so neither does
// the checksum of a frame that was built with [Frame] and had a sequence before.
func PutSequence(frame []byte, n uint32) {
	binary.BigEndian.PutUint32(frame[offPayload:], n)
	binary.BigEndian.PutUint32(frame[offPayload+4:], ^n)
}

// Sequence reads the number.
func Sequence(frame []byte) uint32 { return binary.BigEndian.Uint32(frame[offPayload:]) }

// IsUDP says whether the frame, with its virtio-net header, is an IPv4 UDP frame without IP options to that port.
func IsUDP(frame []byte, port uint16) bool {
	return len(frame) >= offPayload && frame[offEtherType] == protoIPv4>>8 && frame[offEtherType+1] == protoIPv4&0xff &&
		frame[offProtocol] == 17 && binary.BigEndian.Uint16(frame[offPort:]) == port
}

// sum is the one's complement sum of RFC 1071 over b.
func sum(b []byte) uint16 {
	var s uint32
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
