package xdp

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// What a reason is called in these tests.
const (
	xdpGeneric   = ShortcutReason(shortcutPathReasonPATH_PASS_GENERIC)
	xdpConntrack = ShortcutReason(shortcutPathReasonPATH_PASS_CONNTRACK)
	xdpNoTarget  = ShortcutReason(shortcutPathReasonPATH_PASS_NO_TARGET)
	xdpNoDevice  = ShortcutReason(shortcutPathReasonPATH_PASS_NO_DEVICE)
	xdpFlagged   = ShortcutReason(shortcutPathReasonPATH_PASS_FLAGGED)
	xdpChecksum  = ShortcutReason(shortcutPathReasonPATH_PASS_CHECKSUM)
	xdpMTU       = ShortcutReason(shortcutPathReasonPATH_PASS_MTU)
	xdpTTL       = ShortcutReason(shortcutPathReasonPATH_PASS_TTL)
)

// A frame goes from a TAP in one netns straight into another's, and back.
func TestShortcutBetweenTAPs(t *testing.T) {
	for mode, got := range map[Mode]Mode{ModeAuto: ModeNative, ModeNative: ModeNative, ModeGeneric: ModeGeneric} {
		t.Run(string(mode), func(t *testing.T) {
			nd := newNode(t, 2, mode)
			a, b := nd.guests[0], nd.guests[1]
			if a.mode != got {
				t.Errorf("attached in mode %s, want %s", a.mode, got)
			}
			for _, dst := range []*guest{b, a} {
				src := a
				if dst == a {
					src = b
				}
				frame := src.to(dst.v4, protoUDP, udp(src.v4, dst.v4, 1000, 2000, []byte("hello")))
				src.wantTook("IPv4", func() {
					src.reaches(dst, "IPv4", vnetHdr{}, frame, routed(frame, dst.mac, GatewayMAC))
				}, ShortcutXDPToGuest)
				frame = src.to(dst.v6, protoUDP, udp(src.v6, dst.v6, 1000, 2000, []byte("hello")))
				src.wantTook("IPv6", func() {
					src.reaches(dst, "IPv6", vnetHdr{}, frame, routed(frame, dst.mac, GatewayMAC))
				}, ShortcutXDPToGuest)
			}
		})
	}
}

// leavePartial makes a frame's TCP or UDP checksum what a guest leaves to the device, and gives its vnet header.
func leavePartial(frame []byte) (vnetHdr, []byte) {
	out := bytes.Clone(frame)
	l4, proto, off := 34, int(out[23]), 16
	pseudo := join(out[26:34], []byte{0, byte(proto)}, be16(len(out)-l4))
	if binary.BigEndian.Uint16(out[12:]) == typeIPv6 {
		l4, proto = 54, int(out[20])
		pseudo = join(out[22:54], []byte{0, 0}, be16(len(out)-l4), []byte{0, 0, 0, byte(proto)})
	}
	if proto == protoUDP {
		off = 6
	}
	sum := binary.BigEndian.Uint16(checksum(pseudo))
	binary.BigEndian.PutUint16(out[l4+off:], ^sum)
	return vnetHdr{Flags: needsCsum, CsumStart: uint16(l4), CsumOffset: uint16(off)}, out
}

func TestShortcutCompletesWhatAGuestLeftPartial(t *testing.T) {
	nd := newNode(t, 2, ModeNative)
	a, b := nd.guests[0], nd.guests[1]
	for name, frame := range map[string][]byte{
		"TCP, IPv4": a.to(b.v4, protoTCP, tcp(a.v4, b.v4, 1, 2, tcpSYN, []byte("x"))),
		"UDP, IPv4": a.to(b.v4, protoUDP, udp(a.v4, b.v4, 1, 2, bytes.Repeat([]byte("abc"), 400))),
		"TCP, IPv6": a.to(b.v6, protoTCP, tcp(a.v6, b.v6, 1, 2, tcpSYN, []byte("xyz"))),
		"UDP, IPv6": a.to(b.v6, protoUDP, udp(a.v6, b.v6, 1, 2, bytes.Repeat([]byte("abc"), 400))),
	} {
		h, sent := leavePartial(frame)
		if bytes.Equal(sent, frame) {
			t.Fatal("the checksum is not partial")
		}
		a.wantTook(name, func() { a.reaches(b, name, h, sent, routed(frame, b.mac, GatewayMAC)) }, ShortcutXDPToGuest)
	}
	c, err := nd.s.ShortcutCounters(a.tapIdx)
	if err != nil || c[ShortcutChecksumCompleted].Frames != 4 {
		t.Errorf("completed %d checksums, %v; want 4", c[ShortcutChecksumCompleted].Frames, err)
	}
}

// What XDP does not take goes by tc under the same verdict, as a GSO frame and with its partial checksum.
func TestShortcutTakesGSOByTC(t *testing.T) {
	for _, m := range []Method{MethodTCX, MethodClsact} {
		t.Run(string(m), func(t *testing.T) {
			nd := newNode(t, 0, ModeOff)
			nd.method = m
			a, b := nd.addGuest(0, ModeNative), nd.addGuest(1, ModeNative)
			frame := a.to(b.v4, protoTCP, tcp(a.v4, b.v4, 1, 2, tcpACK, make([]byte, 5000)))
			h, sent := leavePartial(frame)
			h.GSOType, h.GSOSize, h.HdrLen = gsoTCPv4, 1000, 54
			var got vnetHdr
			a.wantTook("GSO", func() { got = a.reaches(b, "GSO", h, sent, routed(sent, b.mac, GatewayMAC)) }, xdpGeneric, ShortcutTCToGuest)
			if got.GSOType != gsoTCPv4 || got.GSOSize != 1000 || got.Flags != needsCsum {
				t.Errorf("came with %+v, want GSO of 1000 and a partial checksum", got)
			}
			// Small segments of the same flow: one verdict for both.
			small := a.to(b.v4, protoTCP, tcp(a.v4, b.v4, 1, 2, tcpACK, []byte("small")))
			a.wantTook("small", func() { a.reaches(b, "small", vnetHdr{}, small, routed(small, b.mac, GatewayMAC)) }, ShortcutXDPToGuest)
			c, err := nd.s.ShortcutCounters(a.tapIdx)
			if err != nil || c[ShortcutXDPLookedUp].Frames+c[ShortcutTCLookedUp].Frames != 1 {
				t.Errorf("counters %v, %v; want one lookup for both", c, err)
			}
		})
	}
}

// In generic mode a frame's skb goes with it: what is partial or of several segments is tc's.
func TestShortcutGenericTakesSingleCompleteFramesAlone(t *testing.T) {
	nd := newNode(t, 2, ModeGeneric)
	a, b := nd.guests[0], nd.guests[1]
	frame := a.to(b.v4, protoTCP, tcp(a.v4, b.v4, 1, 2, tcpACK, []byte("x")))
	a.wantTook("complete", func() { a.reaches(b, "complete", vnetHdr{}, frame, routed(frame, b.mac, GatewayMAC)) }, ShortcutXDPToGuest)
	h, sent := leavePartial(frame)
	a.wantTook("partial", func() { a.reaches(b, "partial", h, sent, routed(sent, b.mac, GatewayMAC)) }, xdpChecksum, ShortcutTCToGuest)
	// Short enough for the MTU, so that its length does not give it away; and with a complete checksum in its header.
	frame = a.to(b.v4, protoTCP, tcp(a.v4, b.v4, 1, 2, tcpACK, make([]byte, 1000)))
	h, sent = leavePartial(frame)
	h.GSOType, h.GSOSize, h.HdrLen = gsoTCPv4, 100, 54
	a.wantTook("GSO", func() { a.reaches(b, "GSO", h, sent, routed(sent, b.mac, GatewayMAC)) }, xdpGeneric, ShortcutTCToGuest)
}

// A writer that blocks does not get native XDP.
func TestShortcutOfABlockingWriter(t *testing.T) {
	nd := newNode(t, 2, ModeNative)
	a, b := nd.guests[0], nd.guests[1]
	if err := setBlocking(a.tap.fd); err != nil {
		t.Fatal(err)
	}
	frame := a.to(b.v4, protoUDP, udp(a.v4, b.v4, 1000, 2000, []byte("hello")))
	a.wantTook("blocking", func() { a.reaches(b, "blocking", vnetHdr{}, frame, routed(frame, b.mac, GatewayMAC)) }, xdpGeneric, ShortcutTCToGuest)
}

// The backend's answer to a connection that the host DNATed must find its way back through the host.
func TestShortcutLeavesServicesToTheHost(t *testing.T) {
	nd := newNode(t, 2, ModeNative)
	a, b := nd.guests[0], nd.guests[1]
	vip4, vip6 := gateway4.Next().Next(), offLink6 // 10.9.0.3 and another network's
	nd.nft(`table inet svc {
	chain pre { type nat hook prerouting priority -100;
		ip daddr ` + vip4.String() + ` tcp dport 80 dnat ip to ` + b.v4.String() + `:8080
		ip daddr ` + vip4.String() + ` udp dport 53 dnat ip to ` + b.v4.String() + `:5353
		ip6 daddr ` + vip6.String() + ` tcp dport 80 dnat ip6 to [` + b.v6.String() + `]:8080
	}
}`)
	type leg = func() (request, atBackend, reply, atClient []byte)
	for name, leg := range map[string]leg{
		"TCP, IPv4": func() (_, _, _, _ []byte) {
			request := a.to(vip4, protoTCP, tcp(a.v4, vip4, 1000, 80, tcpSYN))
			backend := a.to(b.v4, protoTCP, tcp(a.v4, b.v4, 1000, 8080, tcpSYN))
			reply := b.to(a.v4, protoTCP, tcp(b.v4, a.v4, 8080, 1000, tcpSYN|tcpACK))
			client := eth(a.mac, GatewayMAC, typeIPv4, ip4(vip4, a.v4, protoTCP, 0, tcp(vip4, a.v4, 80, 1000, tcpSYN|tcpACK)))
			return request, routed(backend, b.mac, GatewayMAC), reply, routed(client, a.mac, GatewayMAC)
		},
		"UDP, IPv4": func() (_, _, _, _ []byte) {
			request := a.to(vip4, protoUDP, udp(a.v4, vip4, 1000, 53, []byte("q")))
			backend := a.to(b.v4, protoUDP, udp(a.v4, b.v4, 1000, 5353, []byte("q")))
			reply := b.to(a.v4, protoUDP, udp(b.v4, a.v4, 5353, 1000, []byte("a")))
			client := eth(a.mac, GatewayMAC, typeIPv4, ip4(vip4, a.v4, protoUDP, 0, udp(vip4, a.v4, 53, 1000, []byte("a"))))
			return request, routed(backend, b.mac, GatewayMAC), reply, routed(client, a.mac, GatewayMAC)
		},
		"TCP, IPv6": func() (_, _, _, _ []byte) {
			request := a.to(vip6, protoTCP, tcp(a.v6, vip6, 1000, 80, tcpSYN))
			backend := a.to(b.v6, protoTCP, tcp(a.v6, b.v6, 1000, 8080, tcpSYN))
			reply := b.to(a.v6, protoTCP, tcp(b.v6, a.v6, 8080, 1000, tcpSYN|tcpACK))
			client := eth(a.mac, GatewayMAC, typeIPv6, ip6(vip6, a.v6, protoTCP, 64, tcp(vip6, a.v6, 80, 1000, tcpSYN|tcpACK)))
			return request, routed(backend, b.mac, GatewayMAC), reply, routed(client, a.mac, GatewayMAC)
		},
	} {
		request, atBackend, reply, atClient := leg()
		a.wantTook(name, func() { a.reaches(b, name+" request", vnetHdr{}, request, atBackend) }, xdpNoTarget, tcReasons+xdpNoTarget)
		b.wantTook(name, func() { b.reaches(a, name+" reply", vnetHdr{}, reply, atClient) }, xdpConntrack, tcReasons+xdpConntrack)
	}
	// A control: the same backend by its own address.
	direct := a.to(b.v4, protoTCP, tcp(a.v4, b.v4, 1001, 8080, tcpSYN))
	a.wantTook("direct", func() { a.reaches(b, "direct", vnetHdr{}, direct, routed(direct, b.mac, GatewayMAC)) }, ShortcutXDPToGuest)
}

func TestShortcutForgetsADeviceThatIsGone(t *testing.T) {
	nd := newNode(t, 2, ModeNative)
	a, b := nd.guests[0], nd.guests[1]
	if has, err := nd.s.HasDevice(b.tapIdx); !has || err != nil {
		t.Fatalf("device of b: %v, %v", has, err)
	}
	testnode.In(t, b.ns, func() { deleteLink(t, "tap-eth0") })
	if has, err := nd.s.HasDevice(b.tapIdx); has || err != nil {
		t.Fatalf("device of b: %v, %v; want none", has, err)
	}
	frame := a.to(b.v4, protoUDP, udp(a.v4, b.v4, 1000, 2000, []byte("hello")))
	a.wantTook("gone", func() {
		a.tap.send(vnetHdr{}, frame)
		a.tap.wantNothing("an answer")
	}, xdpNoDevice, tcReasons+xdpNoDevice)
}
