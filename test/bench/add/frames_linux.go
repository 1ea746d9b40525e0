package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/test/bench/call"
	"github.com/tapir-cni/tapir/test/bench/node"
)

const (
	ethHeader  = 14
	vnetHeader = 10 // struct virtio_net_hdr, what a tun fd has before TUNSETVNETHDRSZ
	ipHeader   = 20

	protoARP  = 0x0806
	protoIPv4 = 0x0800
)

// patience is how long an answer to a frame may take.
const patience = 2 * time.Second

// again is when an unanswered frame is sent again.
const again = 20 * time.Millisecond

// guest is what a microVM's network stack would know, from the result of ADD alone.
type guest struct {
	tap         string
	mac         net.HardwareAddr
	ip, gateway net.IP // four bytes each
	queues      int
	fd          int
}

// readResult finds the guest's side in the result: the TAP is the interface in the sandbox beside CNI_IFNAME, whose MAC
// is the guest's.
func readResult(stdout []byte, netns string, queues int) (*guest, error) {
	parsed, err := types100.NewResult(stdout)
	if err != nil {
		return nil, fmt.Errorf("read the result: %w", err)
	}
	result, err := types100.GetResult(parsed)
	if err != nil {
		return nil, err
	}
	g := &guest{queues: queues}
	for _, i := range result.Interfaces {
		switch {
		case i.Sandbox != netns:
		case i.Name == call.IfName:
			g.mac, err = net.ParseMAC(i.Mac)
			if err != nil {
				return nil, fmt.Errorf("interface %q: %w", i.Name, err)
			}
		default:
			g.tap = i.Name
		}
	}
	for _, ip := range result.IPs {
		if g.ip == nil && ip.Address.IP.To4() != nil {
			g.ip, g.gateway = ip.Address.IP.To4(), ip.Gateway.To4()
		}
	}
	if g.tap == "" || g.mac == nil || g.ip == nil || g.gateway == nil {
		return nil, fmt.Errorf("the result names no TAP, guest MAC, IPv4 address or gateway: %s", stdout)
	}
	return g, nil
}

// proveAddress asks no more of a plugin than that its result names an address.
func proveAddress(stdout []byte) error {
	parsed, err := types100.NewResult(stdout)
	if err != nil {
		return fmt.Errorf("read the result: %w", err)
	}
	result, err := types100.GetResult(parsed)
	if err != nil {
		return err
	}
	if len(result.IPs) == 0 {
		return fmt.Errorf("the result names no address: %s", stdout)
	}
	return nil
}

// proveFrames opens the TAP as a VMM does and is the guest for two frames: an ARP request for the gateway and an echo
// request to it. Both must be answered.
func proveFrames(stdout []byte, netns string, queues int) error {
	g, err := readResult(stdout, netns, queues)
	if err != nil {
		return err
	}
	return node.In(netns, func() error {
		if err := g.open(); err != nil {
			return err
		}
		defer unix.Close(g.fd)
		gatewayMAC, err := g.resolve()
		if err != nil {
			return fmt.Errorf("ARP for %s at %s: %w", g.gateway, g.tap, err)
		}
		if err := g.ping(gatewayMAC); err != nil {
			return fmt.Errorf("echo request to %s at %s: %w", g.gateway, g.tap, err)
		}
		return nil
	})
}

// open attaches to the TAP by name with the flags of Firecracker, and of QEMU for several queues.
func (g *guest) open() error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open /dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(g.tap)
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("TAP name %q: %w", g.tap, err)
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if g.queues > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	req.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		unix.Close(fd)
		return fmt.Errorf("attach to TAP %q: %w", g.tap, err)
	}
	g.fd = fd
	return nil
}

// resolve sends an ARP request (RFC 826) for the gateway and gives the MAC that answers.
func (g *guest) resolve() (net.HardwareAddr, error) {
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	arp := []byte{0, 1, 8, 0, 6, 4, 0, 1} // Ethernet, IPv4, lengths, request
	arp = append(arp, g.mac...)
	arp = append(arp, g.ip...)
	arp = append(arp, make([]byte, 6)...)
	arp = append(arp, g.gateway...)
	reply, err := g.ask(broadcast, protoARP, arp, func(p []byte) bool {
		return len(p) >= 28 && p[7] == 2 && bytes.Equal(p[14:18], g.gateway) && bytes.Equal(p[24:28], g.ip)
	})
	if err != nil {
		return nil, err
	}
	return net.HardwareAddr(reply[8:14]), nil
}

// ping sends an ICMP echo request and waits for the reply that carries the same payload.
func (g *guest) ping(gatewayMAC net.HardwareAddr) error {
	icmp := append([]byte{8, 0, 0, 0, 0x74, 0x61, 0, 1}, "tapir bench-add"...)
	binary.BigEndian.PutUint16(icmp[2:], checksum(icmp))
	packet := make([]byte, ipHeader, ipHeader+len(icmp))
	packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_ICMP
	binary.BigEndian.PutUint16(packet[2:], uint16(ipHeader+len(icmp)))
	copy(packet[12:], g.ip)
	copy(packet[16:], g.gateway)
	binary.BigEndian.PutUint16(packet[10:], checksum(packet))
	_, err := g.ask(gatewayMAC, protoIPv4, append(packet, icmp...), func(p []byte) bool {
		return len(p) >= ipHeader+len(icmp) && p[9] == unix.IPPROTO_ICMP && bytes.Equal(p[12:16], g.gateway) &&
			bytes.Equal(p[16:20], g.ip) && p[ipHeader] == 0 && bytes.Equal(p[ipHeader+4:ipHeader+len(icmp)], icmp[4:])
	})
	return err
}

// send writes one frame as the guest.
func (g *guest) send(to net.HardwareAddr, proto uint16, payload []byte) error {
	frame := make([]byte, vnetHeader, vnetHeader+ethHeader+len(payload))
	frame = append(frame, to...)
	frame = append(frame, g.mac...)
	frame = binary.BigEndian.AppendUint16(frame, proto)
	frame = append(frame, payload...)
	if _, err := unix.Write(g.fd, frame); err != nil {
		return fmt.Errorf("write to the TAP: %w", err)
	}
	return nil
}

// ask sends a frame, again and again as a guest does (the kernel starts a TAP's queue only a moment after it was opened),
// until a frame for the guest is the wanted answer, and gives that one's payload.
func (g *guest) ask(to net.HardwareAddr, proto uint16, payload []byte, wanted func(payload []byte) bool) ([]byte, error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if err := g.send(to, proto, payload); err != nil {
			return nil, err
		}
		answer, err := g.receive(again, proto, wanted)
		if answer != nil || err != nil {
			return answer, err
		}
	}
	return nil, fmt.Errorf("no answer within %s", patience)
}

// receive reads frames for as long as it is told, and gives the payload of the wanted one, nil where none came.
func (g *guest) receive(wait time.Duration, proto uint16, wanted func(payload []byte) bool) ([]byte, error) {
	buf := make([]byte, 1<<16)
	for deadline := time.Now().Add(wait); time.Now().Before(deadline); {
		ready := []unix.PollFd{{Fd: int32(g.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, int(time.Until(deadline).Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("poll the TAP: %w", err)
		}
		n, err := unix.Read(g.fd, buf)
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, fmt.Errorf("read from the TAP: %w", err)
		case n < vnetHeader+ethHeader:
			continue
		}
		frame := buf[vnetHeader:n]
		payload := frame[ethHeader:]
		if binary.BigEndian.Uint16(frame[12:]) == proto && bytes.Equal(frame[:6], g.mac) && wanted(payload) {
			return payload, nil
		}
	}
	return nil, nil
}

// checksum is the Internet checksum (RFC 1071) over b, whose checksum field is zero.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
