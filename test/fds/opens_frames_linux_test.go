package fds_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// guest is who the frames of a stand-in are from, and whom they go to.
type guest struct {
	MAC         string
	IP, Gateway netip.Addr
	Port        int // UDP, on the node, which answers with what it gets
}

// passed is what came back for a queue.
type passed struct {
	Partial bool // the node's kernel left the checksum to the guest, as offloads allow
}

const (
	ethLen, ipLen, udpLen = 14, 20, 8
	// Offsets in struct virtio_net_hdr.
	vnetFlags, vnetCsumStart, vnetCsumOffset = 0, 6, 8
	vnetNeedsCsum                            = 1
)

// exchange asks the gateway for its MAC and sends a datagram to it, both on queue fd, and wants both answered on one of all. The datagram
// goes out with a partial checksum, as a guest's that has VIRTIO_NET_F_CSUM.
func (g guest) exchange(fd int, all []int, header int) (passed, error) {
	mac, err := net.ParseMAC(g.MAC)
	if err != nil {
		return passed{}, err
	}
	request := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, mac...)
	request = append(append(request, g.IP.AsSlice()...), make([]byte, 6)...)
	request = frame([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, unix.ETH_P_ARP, append(request, g.Gateway.AsSlice()...))
	answer, err := swap(fd, all, make([]byte, header), request, func(_, f []byte) bool {
		return len(f) >= 42 && binary.BigEndian.Uint16(f[12:]) == unix.ETH_P_ARP && f[21] == 2 && bytes.Equal(f[28:32], g.Gateway.AsSlice())
	})
	if err != nil {
		return passed{}, fmt.Errorf("ARP: %w", err)
	}
	payload := fmt.Appendf(nil, "tapir, queue of descriptor %d", fd)
	partial := make([]byte, header)
	partial[vnetFlags] = vnetNeedsCsum
	binary.NativeEndian.PutUint16(partial[vnetCsumStart:], ethLen+ipLen)
	binary.NativeEndian.PutUint16(partial[vnetCsumOffset:], 6)
	var p passed
	var wrong error
	_, err = swap(fd, all, partial, frame(answer[22:28], mac, unix.ETH_P_IP, g.datagram(payload)), func(h, f []byte) bool {
		if len(f) < ethLen+ipLen+udpLen || f[ethLen+9] != unix.IPPROTO_UDP || !bytes.Equal(f[ethLen+ipLen+udpLen:], payload) {
			return false
		}
		p.Partial = h[vnetFlags]&vnetNeedsCsum != 0
		if sum := g.transportSum(f[ethLen+ipLen:]); sum != 0xffff && !p.Partial {
			wrong = fmt.Errorf("the answer's checksum is wrong: it sums to %#x", sum)
		}
		return true
	})
	if err != nil {
		return passed{}, fmt.Errorf("datagram: %w", err)
	}
	return p, wrong
}

// swap writes a frame behind its header by writev, as Firecracker does, again as long as nothing comes, and gives the first frame that is
// the answer: the kernel lets frames out to a TAP only when it has seen that there is a carrier.
func swap(fd int, all []int, header, f []byte, isAnswer func(header, frame []byte) bool) ([]byte, error) {
	buf := make([]byte, 1<<16)
	var polled []unix.PollFd
	for _, q := range all {
		polled = append(polled, unix.PollFd{Fd: int32(q), Events: unix.POLLIN})
	}
	var sent time.Time
	for until := time.Now().Add(patience); time.Now().Before(until); {
		if time.Since(sent) > 500*time.Millisecond {
			if _, err := unix.Writev(fd, [][]byte{header, f}); err != nil {
				return nil, fmt.Errorf("write: %w", err)
			}
			sent = time.Now()
		}
		for _, q := range all {
			n, err := unix.Read(q, buf)
			if errors.Is(err, unix.EAGAIN) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read: %w", err)
			}
			if n > len(header) && isAnswer(buf[:len(header)], buf[len(header):n]) {
				return bytes.Clone(buf[len(header):n]), nil
			}
		}
		_, _ = unix.Poll(polled, 50)
	}
	return nil, fmt.Errorf("no answer in %s", patience)
}

func frame(dst, src []byte, proto uint16, body []byte) []byte {
	f := append(append([]byte{}, dst...), src...)
	return append(binary.BigEndian.AppendUint16(f, proto), body...)
}

// datagram is a UDP packet to the gateway whose checksum is that of the pseudo-header alone.
func (g guest) datagram(payload []byte) []byte {
	u := binary.BigEndian.AppendUint16(nil, 4000)
	u = binary.BigEndian.AppendUint16(u, uint16(g.Port))
	u = binary.BigEndian.AppendUint16(u, uint16(udpLen+len(payload)))
	u = append(append(u, 0, 0), payload...)
	p := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	p = append(append(p, g.IP.AsSlice()...), g.Gateway.AsSlice()...)
	binary.BigEndian.PutUint16(p[2:], uint16(ipLen+len(u)))
	binary.BigEndian.PutUint16(p[10:], ^fold(p))
	binary.BigEndian.PutUint16(u[6:], fold(g.pseudo(len(u))))
	return append(p, u...)
}

// transportSum is the sum over a UDP packet and its pseudo-header, 0xffff where its checksum is right.
func (g guest) transportSum(u []byte) uint16 { return fold(append(g.pseudo(len(u)), u...)) }

func (g guest) pseudo(length int) []byte {
	p := append(g.IP.AsSlice(), g.Gateway.AsSlice()...)
	return binary.BigEndian.AppendUint16(append(p, 0, unix.IPPROTO_UDP), uint16(length))
}

// fold is the sum of RFC 1071, not inverted.
func fold(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		word := uint32(b[i]) << 8
		if i+1 < len(b) {
			word |= uint32(b[i+1])
		}
		sum += word
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
