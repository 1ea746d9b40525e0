package xdp

import (
	"testing"
	"time"
)

// A verdict may outlive its flow, and a Service may lead to the same backend from the same port since. What refuses that connection,
// by an RST or an ICMP error, has to come from the Service's address, or the client waits for an answer in vain.
func TestShortcutLeavesRefusalsOfServicesToTheHost(t *testing.T) {
	const rst = 0x04
	nd := newNode(t, 2, ModeNative)
	a, b := nd.guests[0], nd.guests[1]
	vip := gateway4.Next().Next()
	direct := map[*guest][]byte{
		a: a.to(b.v4, protoTCP, tcp(a.v4, b.v4, 1000, 8080, tcpSYN)),
		b: b.to(a.v4, protoTCP, tcp(b.v4, a.v4, 8080, 1000, tcpSYN|tcpACK)),
	}
	for src, frame := range direct {
		dst := map[*guest]*guest{a: b, b: a}[src]
		src.wantTook("direct", func() { src.reaches(dst, "direct", vnetHdr{}, frame, routed(frame, dst.mac, GatewayMAC)) }, ShortcutXDPToGuest)
	}
	refuse := func(port byte) []byte { // the first error, so that no limit of the host's comes into it
		about := a.to(b.v4, protoUDP, udp(a.v4, b.v4, 1000, int(port)))
		a.wantTook("direct", func() { a.reaches(b, "direct", vnetHdr{}, about, routed(about, b.mac, GatewayMAC)) }, ShortcutXDPToGuest)
		return b.to(a.v4, 1, icmpError(b.v4, a.v4, 3, routed(about, b.mac, GatewayMAC)[14:]))
	}
	// A control: of direct flows both take the shortcut.
	end := b.to(a.v4, protoTCP, tcp(b.v4, a.v4, 8080, 1000, rst|tcpACK))
	b.wantTook("RST", func() { b.reaches(a, "RST", vnetHdr{}, end, routed(end, a.mac, GatewayMAC)) }, ShortcutXDPToGuest)
	refusal := refuse(53)
	b.wantTook("error", func() { b.reaches(a, "error", vnetHdr{}, refusal, routed(refusal, a.mac, GatewayMAC)) }, ShortcutXDPToGuest)

	nd.nft(`table inet svc {
	chain pre { type nat hook prerouting priority -100;
		ip daddr ` + vip.String() + ` tcp dport 80 dnat ip to ` + b.v4.String() + `:8080
		ip daddr ` + vip.String() + ` udp dport 80 dnat ip to ` + b.v4.String() + `:53
	}
	chain invalid_ends { type filter hook forward priority 0; ct state invalid drop; }
}`)
	request := a.to(vip, protoTCP, tcp(a.v4, vip, 1000, 80, tcpSYN))
	a.reaches(b, "request", vnetHdr{}, request, routed(a.to(b.v4, protoTCP, tcp(a.v4, b.v4, 1000, 8080, tcpSYN)), b.mac, GatewayMAC))
	client := eth(a.mac, GatewayMAC, typeIPv4, ip4(vip, a.v4, protoTCP, 0, tcp(vip, a.v4, 80, 1000, rst|tcpACK)))
	b.wantTook("RST for the Service", func() { b.reaches(a, "RST", vnetHdr{}, end, routed(client, a.mac, GatewayMAC)) },
		xdpConntrack, tcReasons+xdpConntrack)

	datagram := a.to(vip, protoUDP, udp(a.v4, vip, 1000, 80))
	a.reaches(b, "datagram", vnetHdr{}, datagram, routed(a.to(b.v4, protoUDP, udp(a.v4, b.v4, 1000, 53)), b.mac, GatewayMAC))
	protocol := ShortcutReason(shortcutPathReasonPATH_PASS_PROTOCOL)
	b.wantTook("error for the Service", func() { b.tap.send(vnetHdr{}, refusal) }, protocol, tcReasons+protocol)
	_, got, ok := a.tap.receive(time.Second)
	if !ok || [4]byte(got[26:30]) != vip.As4() {
		t.Errorf("the client got %x, want an error from %s", got, vip)
	}
}
