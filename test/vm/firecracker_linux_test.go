package vm_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// firecracker opens a TAP as Firecracker's src/vmm/src/devices/virtio/net/tap.rs does: non-blocking, by name, with these
// flags and no other, then a virtio-net header of 12 bytes and the offloads that a Linux guest negotiates.
type firecracker struct {
	fd  int
	mac net.HardwareAddr
}

const (
	firecrackerFlags   = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR
	firecrackerHeader  = 12
	firecrackerOffload = unix.TUN_F_CSUM | unix.TUN_F_UFO | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
)

// openTAP opens the TAP of that name in the thread's netns with just those flags.
func openTAP(name string, flags uint16) (fd int, err error) {
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("attach to %s: %w", name, err), unix.Close(fd))
	}
	return fd, nil
}

// testFirecracker opens a TAP of one queue as Firecracker does and exchanges frames through it. It closes it again: QEMU
// comes after it in these tests.
func testFirecracker(t *testing.T, p *pod) {
	mac, err := net.ParseMAC(p.guest.MAC)
	check(t, err)
	fc := firecracker{mac: mac}
	testnode.In(t, p.netns, func() {
		// The control: a TAP that were made with IFF_MULTI_QUEUE would take this and refuse what follows.
		if fd, err := openTAP(p.guest.TAP, firecrackerFlags|unix.IFF_MULTI_QUEUE); !errors.Is(err, unix.EINVAL) {
			t.Errorf("open with IFF_MULTI_QUEUE: want EINVAL, got fd %d, %v", fd, err)
		}
		fc.fd, err = openTAP(p.guest.TAP, firecrackerFlags)
		check(t, err)
	})
	defer func() { check(t, unix.Close(fc.fd)) }()
	check(t, unix.IoctlSetPointerInt(fc.fd, unix.TUNSETVNETHDRSZ, firecrackerHeader))
	check(t, unix.IoctlSetInt(fc.fd, unix.TUNSETOFFLOAD, firecrackerOffload))

	gateway := p.guest.Addresses[0].Gateway
	own := p.addr(0)
	ask := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, mac...)
	ask = append(append(ask, own.AsSlice()...), make([]byte, 6)...)
	answer := fc.exchange(t, "ARP", ethernet(broadcastMAC, mac, unix.ETH_P_ARP, append(ask, gateway.AsSlice()...)), func(f []byte) bool {
		return binary.BigEndian.Uint16(f[12:]) == unix.ETH_P_ARP && f[21] == 2 && bytes.Equal(f[28:32], gateway.AsSlice())
	})
	gatewayMAC := net.HardwareAddr(answer[22:28])
	for family, to := range nodeAddrs {
		fc.ping(t, gatewayMAC, p.addr(family), to)
	}
}

// ping sends one echo request and wants its answer.
func (fc firecracker) ping(t *testing.T, gatewayMAC net.HardwareAddr, from, to netip.Addr) {
	t.Helper()
	body := []byte{0, 7, 0, 1, 't', 'a', 'p', 'i', 'r'}
	request, reply, proto, ethertype, offset := byte(8), byte(0), byte(unix.IPPROTO_ICMP), unix.ETH_P_IP, 14+20
	if from.Is6() {
		request, reply, proto, ethertype, offset = 128, 129, unix.IPPROTO_ICMPV6, unix.ETH_P_IPV6, 14+40
	}
	m := append([]byte{request, 0, 0, 0}, body...)
	if from.Is4() {
		binary.BigEndian.PutUint16(m[2:], checksum(m))
	} else {
		binary.BigEndian.PutUint16(m[2:], transportSum(from, to, proto, m))
	}
	frame := ethernet(gatewayMAC, fc.mac, ethertype, ipPacket(from, to, proto, 64, m))
	fc.exchange(t, "echo request to "+to.String(), frame, func(f []byte) bool {
		return int(binary.BigEndian.Uint16(f[12:])) == ethertype && len(f) >= offset+4+len(body) && f[offset] == reply &&
			bytes.Equal(f[offset+4:offset+4+len(body)], body)
	})
}

// exchange writes a frame behind an empty virtio-net header, and again as long as it gets no answer, as a guest would: the
// kernel lets frames out to a TAP only some time after it was opened, when it has seen that there is a carrier. It gives
// the first frame that is the answer.
func (fc firecracker) exchange(t *testing.T, what string, frame []byte, isAnswer func([]byte) bool) []byte {
	t.Helper()
	buf := make([]byte, firecrackerHeader+65536)
	var sent time.Time
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if time.Since(sent) > 500*time.Millisecond {
			if _, err := unix.Write(fc.fd, append(make([]byte, firecrackerHeader), frame...)); err != nil {
				t.Fatalf("%s: write to the TAP: %v", what, err)
			}
			sent = time.Now()
		}
		n, err := unix.Read(fc.fd, buf)
		if errors.Is(err, unix.EAGAIN) {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fc.fd), Events: unix.POLLIN}}, 100)
			continue
		}
		check(t, err)
		if f := buf[firecrackerHeader:n]; len(f) >= 42 && isAnswer(f) {
			return bytes.Clone(f)
		}
	}
	t.Fatalf("%s: no answer in 10s", what)
	return nil
}
