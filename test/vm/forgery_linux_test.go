package vm_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/microvm/wire"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/xdp"
)

// forgery is a frame in somebody else's name and its twin that is legal in just that field. Each carries its own marker.
type forgery struct {
	name   string
	reason xdp.Reason // under which the forgery is counted
	frame  func(forged bool, marker []byte) []byte
	toHost bool // the twin ends at the node, not at the other guest
}

// The name of somebody else: no guest has it.
var (
	strangeMAC   = net.HardwareAddr{0x02, 0xba, 0xd0, 0, 0, 1}
	strange4     = netip.MustParseAddr("10.9.0.99")
	strange6     = netip.MustParseAddr("fd00:9::99")
	broadcastMAC = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodesMAC  = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	allNodes     = netip.MustParseAddr("ff02::1")
)

func forgeries(from, to *pod, gatewayMAC net.HardwareAddr) []forgery {
	mac, err := net.ParseMAC(from.guest.MAC)
	if err != nil {
		panic(err) // guestconfig has validated it
	}
	pick := func(forged bool, strange, own netip.Addr) netip.Addr {
		if forged {
			return strange
		}
		return own
	}
	return []forgery{
		{"MAC", xdp.ReasonSpoofMAC, func(forged bool, marker []byte) []byte {
			src := mac
			if forged {
				src = strangeMAC
			}
			return ethernet(gatewayMAC, src, unix.ETH_P_IP, udp(from.addr(0), to.addr(0), marker))
		}, false},
		{"IPv4", xdp.ReasonSpoofIPv4, func(forged bool, marker []byte) []byte {
			return ethernet(gatewayMAC, mac, unix.ETH_P_IP, udp(pick(forged, strange4, from.addr(0)), to.addr(0), marker))
		}, false},
		{"IPv6", xdp.ReasonSpoofIPv6, func(forged bool, marker []byte) []byte {
			return ethernet(gatewayMAC, mac, unix.ETH_P_IPV6, udp(pick(forged, strange6, from.addr(1)), to.addr(1), marker))
		}, false},
		// What follows an ARP or ND packet in its frame is padding: the marker changes nothing.
		{"ARP", xdp.ReasonSpoofARP, func(forged bool, marker []byte) []byte {
			return append(ethernet(broadcastMAC, mac, unix.ETH_P_ARP, arpAnswer(mac, pick(forged, strange4, from.addr(0)))), marker...)
		}, true},
		{"ND", xdp.ReasonSpoofND, func(forged bool, marker []byte) []byte {
			target := pick(forged, strange6, from.addr(1))
			return append(ethernet(allNodesMAC, mac, unix.ETH_P_IPV6, advertisement(from.addr(1), target, mac)), marker...)
		}, true},
	}
}

const forgeryMarker = "tapir forgery test, "

func marker(forged bool, name string) []byte {
	if forged {
		return []byte(forgeryMarker + "forged " + name + ".")
	}
	return []byte(forgeryMarker + "legal " + name + ".")
}

// testForgeries has a guest send forged frames and their legal twins from its own card. The forged must appear neither on
// any device of the node, nor in the other pod's netns, nor in the other guest, and be counted each under its reason.
func testForgeries(t *testing.T, from, to *pod) {
	gatewayMAC := learnGateway(t, from)
	list := forgeries(from, to, gatewayMAC)
	check(t, to.vm.SniffStart(t.Context(), []byte(forgeryMarker)))
	node, err := wire.Sniff("", []byte(forgeryMarker))
	check(t, err)
	var otherPod *wire.Sniffer
	testnode.In(t, to.netns, func() { otherPod, err = wire.Sniff("", []byte(forgeryMarker)) })
	check(t, err)

	before := from.counters(t)
	var frames [][]byte
	for _, f := range list {
		frames = append(frames, f.frame(true, marker(true, f.name)), f.frame(false, marker(false, f.name)))
	}
	check(t, from.vm.Send(t.Context(), 20*time.Millisecond, frames...))
	time.Sleep(300 * time.Millisecond)

	seen := map[string]wire.Seen{}
	seen["the other guest"], err = to.vm.SniffStop(t.Context())
	check(t, err)
	seen["the node"], err = node.Close()
	check(t, err)
	seen["the other pod"], err = otherPod.Close()
	check(t, err)
	after := from.counters(t)

	for _, f := range list {
		for place, s := range seen {
			if n := count(s, marker(true, f.name)); n != 0 {
				t.Errorf("forged %s: %d frames arrived at %s", f.name, n, place)
			}
		}
		arrival := "the other guest"
		if f.toHost {
			arrival = "the node"
		}
		if n := count(seen[arrival], marker(false, f.name)); n == 0 {
			t.Errorf("legal twin of forged %s: it did not arrive at %s", f.name, arrival)
		}
		if n := after[f.reason].Frames - before[f.reason].Frames; n != 1 {
			t.Errorf("forged %s: want 1 counted under %s, got %d", f.name, f.reason, n)
		}
	}
}

func count(s wire.Seen, marker []byte) int {
	n := 0
	for _, f := range s.Frames {
		if bytes.Contains(f, marker) {
			n++
		}
	}
	return n
}

// learnGateway has the guest ask for its gateway and gives the MAC under which it knows it then.
func learnGateway(t *testing.T, p *pod) net.HardwareAddr {
	t.Helper()
	_, err := p.vm.Ping(t.Context(), p.guest.Addresses[0].Gateway, 56, 1, 10*time.Second)
	check(t, err)
	list, err := p.vm.Neighbors(t.Context())
	check(t, err)
	for _, n := range list {
		if n.Addr == p.guest.Addresses[0].Gateway.String() {
			mac, err := net.ParseMAC(n.MAC)
			check(t, err)
			return mac
		}
	}
	t.Fatalf("the guest has no neighbour entry for its gateway: %v", list)
	return nil
}

func ethernet(dst, src net.HardwareAddr, proto int, payload []byte) []byte {
	b := append(append([]byte{}, dst...), src...)
	return append(binary.BigEndian.AppendUint16(b, uint16(proto)), payload...)
}

// arpAnswer is an ARP answer for everybody (RFC 826): mac has addr.
func arpAnswer(mac net.HardwareAddr, addr netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 2}
	b = append(append(b, mac...), addr.AsSlice()...)
	return append(append(b, broadcastMAC...), addr.AsSlice()...)
}

// udp is a datagram of that family from port 7007 to port 9, checksummed.
func udp(from, to netip.Addr, data []byte) []byte {
	d := binary.BigEndian.AppendUint16(nil, 7007)
	d = binary.BigEndian.AppendUint16(d, 9)
	d = binary.BigEndian.AppendUint16(d, uint16(8+len(data)))
	d = append(append(d, 0, 0), data...)
	binary.BigEndian.PutUint16(d[6:], transportSum(from, to, unix.IPPROTO_UDP, d))
	return ipPacket(from, to, unix.IPPROTO_UDP, 64, d)
}

// advertisement is an unsolicited Neighbour Advertisement (RFC 4861, 4.4): target is at mac.
func advertisement(from, target netip.Addr, mac net.HardwareAddr) []byte {
	m := append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, target.AsSlice()...)
	m = append(append(m, 2, 1), mac...)
	binary.BigEndian.PutUint16(m[2:], transportSum(from, allNodes, unix.IPPROTO_ICMPV6, m))
	return ipPacket(from, allNodes, unix.IPPROTO_ICMPV6, 255, m)
}

func ipPacket(from, to netip.Addr, proto, hops byte, payload []byte) []byte {
	if from.Is4() {
		h := append([]byte{0x45, 0, 0, 0, 0, 7, 0, 0, hops, proto, 0, 0}, from.AsSlice()...)
		h = append(h, to.AsSlice()...)
		binary.BigEndian.PutUint16(h[2:], uint16(20+len(payload)))
		binary.BigEndian.PutUint16(h[10:], checksum(h))
		return append(h, payload...)
	}
	h := []byte{0x60, 0, 0, 0, 0, 0, proto, hops}
	binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
	h = append(append(h, from.AsSlice()...), to.AsSlice()...)
	return append(h, payload...)
}

// transportSum is the checksum with the pseudo header of RFC 8200, section 8.1, whose sum is also RFC 768's for IPv4.
func transportSum(from, to netip.Addr, proto byte, segment []byte) uint16 {
	b := append(append([]byte{}, from.AsSlice()...), to.AsSlice()...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(segment)))
	b = append(b, 0, 0, 0, proto)
	return checksum(append(b, segment...))
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
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
	return ^uint16(s)
}
