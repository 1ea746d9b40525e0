package main

import (
	"encoding/binary"
	"net"
	"net/netip"
)

const (
	vnetHeader = 12 // struct virtio_net_hdr_v1, which VMMs set
	ethHeader  = 14
	ipHeader   = 20
	sinkPort   = 9 // discard
)

// An endpoint is where frames are from or go to.
type endpoint struct {
	mac net.HardwareAddr
	ip  netip.Addr
}

// datagram gives an empty virtio-net header and a UDP datagram in a frame of size bytes, Ethernet header included and without FCS.
func datagram(from, to endpoint, sourcePort uint16, size int) []byte {
	f := packet(from, to, 17, 0, size)
	udp := f[vnetHeader+ethHeader+ipHeader:] // its checksum stays 0: none
	binary.BigEndian.PutUint16(udp, sourcePort)
	binary.BigEndian.PutUint16(udp[2:], sinkPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(size-ethHeader-ipHeader))
	return f
}

// segments gives count segments of one TCP stream, one after the other, as a guest without TSO sends them: full, and with a partial
// checksum.
func segments(from, to endpoint, sourcePort uint16, size, count int) (list [][]byte) {
	const tcpHeader, csumOffset = 20, 16
	for i := range count {
		f := packet(from, to, 6, uint16(i), size)
		f[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM, with where it starts and where it goes
		binary.NativeEndian.PutUint16(f[6:], ethHeader+ipHeader)
		binary.NativeEndian.PutUint16(f[8:], csumOffset)
		tcp := f[vnetHeader+ethHeader+ipHeader:]
		binary.BigEndian.PutUint16(tcp, sourcePort)
		binary.BigEndian.PutUint16(tcp[2:], sinkPort)
		binary.BigEndian.PutUint32(tcp[4:], uint32(i*(len(tcp)-tcpHeader)))
		tcp[12], tcp[13] = tcpHeader/4<<4, 0x10 // ACK
		binary.BigEndian.PutUint16(tcp[14:], 0xffff)
		pseudo := append(append([]byte{0, 6}, from.ip.AsSlice()...), to.ip.AsSlice()...)
		binary.BigEndian.PutUint16(tcp[csumOffset:], sum(binary.BigEndian.AppendUint16(pseudo, uint16(len(tcp)))))
		list = append(list, f)
	}
	return list
}

// packet is a frame with an IPv4 packet of no content.
func packet(from, to endpoint, proto uint8, id uint16, size int) []byte {
	f := make([]byte, vnetHeader+size)
	eth := f[vnetHeader:]
	copy(eth, to.mac)
	copy(eth[6:], from.mac)
	eth[12] = 0x08 // IPv4
	ip := eth[ethHeader:]
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, proto // may not be fragmented
	binary.BigEndian.PutUint16(ip[2:], uint16(size-ethHeader))
	binary.BigEndian.PutUint16(ip[4:], id)
	copy(ip[12:], from.ip.AsSlice())
	copy(ip[16:], to.ip.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:ipHeader]))
	return f
}

// sum is that of RFC 1071 over an even number of bytes, not inverted.
func sum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
