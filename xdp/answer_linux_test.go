package xdp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
)

func arpReply(to netip.Addr, from netip.Addr) []byte {
	return arp(guestMAC, GatewayMAC, 2, GatewayMAC, from, guestMAC, to)
}

func TestARPIsAnsweredForTheLink(t *testing.T) {
	p := newPrograms(t)
	addr := netip.MustParseAddr
	for _, tt := range []struct {
		name   string
		frame  []byte
		answer []byte // nil: not answered
	}{
		{"gateway", arpRequest(guest4.Addr(), gateway4), arpReply(guest4.Addr(), gateway4)},
		{"gateway off the link", arpRequest(guest4.Addr(), gateway4off), arpReply(guest4.Addr(), gateway4off)},
		{"neighbour", arpRequest(guest4.Addr(), neighbour4), arpReply(guest4.Addr(), neighbour4)},
		{"neighbour, from another own address", arpRequest(guest4b.Addr(), neighbour4), arpReply(guest4b.Addr(), neighbour4)},
		{"probe for a neighbour", arpRequest(none4, neighbour4), arpReply(none4, neighbour4)},
		{"unicast to the gateway", arp(GatewayMAC, guestMAC, 1, guestMAC, guest4.Addr(), GatewayMAC, gateway4), arpReply(guest4.Addr(), gateway4)},
		{"peer of a /31", arpRequest(guest4p2p.Addr(), addr("10.8.0.3")), arpReply(guest4p2p.Addr(), addr("10.8.0.3"))},
		{"padded to 60 bytes", pad(arpRequest(guest4.Addr(), gateway4), 60), pad(arpReply(guest4.Addr(), gateway4), 60)},
		{"first host", arpRequest(guest4.Addr(), addr("10.9.0.1")), arpReply(guest4.Addr(), addr("10.9.0.1"))},
		{"last host", arpRequest(guest4.Addr(), addr("10.9.0.254")), arpReply(guest4.Addr(), addr("10.9.0.254"))},

		{"own address", arpRequest(guest4.Addr(), guest4.Addr()), nil},
		{"probe for the own address", arpRequest(none4, guest4.Addr()), nil},
		{"another own address", arpRequest(guest4.Addr(), guest4p2p.Addr()), nil},
		{"network address", arpRequest(guest4.Addr(), addr("10.9.0.0")), nil},
		{"broadcast address", arpRequest(guest4.Addr(), addr("10.9.0.255")), nil},
		{"next network", arpRequest(guest4.Addr(), addr("10.9.1.1")), nil},
		{"beside a /32", arpRequest(guest4.Addr(), addr("192.0.2.8")), nil},
		{"beside a /31", arpRequest(guest4.Addr(), addr("10.8.0.4")), nil},
		{"off the link", arpRequest(guest4.Addr(), offLink4), nil},
		{"no address", arpRequest(guest4.Addr(), none4), nil},
		{"multicast", arpRequest(guest4.Addr(), addr("224.0.0.1")), nil},
		{"limited broadcast", arpRequest(guest4.Addr(), addr("255.255.255.255")), nil},
		{"a reply", arp(GatewayMAC, guestMAC, 2, guestMAC, guest4.Addr(), GatewayMAC, gateway4), nil},
		{"unicast to somebody else", arp(strangerMAC, guestMAC, 1, guestMAC, guest4.Addr(), strangerMAC, neighbour4), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reason := ReasonToHost
			if tt.answer != nil {
				reason = ReasonARPAnswered
			}
			reserve(t, p, loopback, guestEndpoint())
			check(t, p, RoleGuest, tt.frame, reason, tt.answer)

			host := guestEndpoint()
			host.Role, host.Peer, host.Redirect = RoleHost, 0, RedirectNone
			reserve(t, p, loopback, host)
			check(t, p, RoleHost, tt.frame, reason, tt.answer)

			lax := guestEndpoint()
			lax.SpoofCheck = false
			reserve(t, p, loopback, lax)
			check(t, p, RoleGuest, tt.frame, reason, tt.answer)
		})
	}
}

// A prefix of length 0 puts everything on the link but what is no host's address.
func TestARPWithTheWholeInternetOnLink(t *testing.T) {
	p := newPrograms(t)
	ep := guestEndpoint()
	ep.Addresses = []netip.Prefix{netip.MustParsePrefix("10.9.0.5/0")}
	ep.Gateways = nil
	reserve(t, p, loopback, ep)
	check(t, p, RoleGuest, arpRequest(guest4.Addr(), offLink4), ReasonARPAnswered, arpReply(guest4.Addr(), offLink4))
	for _, a := range []string{"0.0.0.0", "255.255.255.255", "224.0.0.251", "239.1.2.3"} {
		check(t, p, RoleGuest, arpRequest(guest4.Addr(), netip.MustParseAddr(a)), ReasonToHost, nil)
	}
}

// answerNA is the gateway's answer to a question of the guest.
func answerNA(to, target netip.Addr, flags byte) []byte {
	return na(guestMAC, GatewayMAC, target, to, target, flags, option(2, GatewayMAC))
}

// answerDAD is the gateway's answer to a question from no address.
func answerDAD(target netip.Addr, flags byte) []byte {
	return na(multicastMAC(allNodes), GatewayMAC, target, allNodes, target, flags, option(2, GatewayMAC))
}

// partial leaves the checksum of an ICMPv6 message behind a plain IPv6 header as NEEDS_CSUM wants it.
func partial(frame []byte) []byte {
	src, dst := netip.AddrFrom16([16]byte(frame[offIP6Src:])), netip.AddrFrom16([16]byte(frame[offIP6Dst:]))
	sum := checksum(pseudo6(src, dst, protoICMP6, len(frame)-offIP6Upper))
	return with(frame, offIP6Upper+2, ^sum[0], ^sum[1])
}

// codeOne gives an ICMPv6 message behind a plain IPv6 header another code, and the checksum that fits it.
func codeOne(frame []byte) []byte {
	out := with(frame, offIP6Upper+1, 1, 0, 0)
	src, dst := netip.AddrFrom16([16]byte(out[offIP6Src:])), netip.AddrFrom16([16]byte(out[offIP6Dst:]))
	msg := out[offIP6Upper:]
	copy(msg[2:], checksum(pseudo6(src, dst, protoICMP6, len(msg)), msg))
	return out
}

func TestNDIsAnsweredForTheLink(t *testing.T) {
	const router, solicited, override = 0x80, 0x40, 0x20
	p := newPrograms(t)
	addr := netip.MustParseAddr
	g := guest6.Addr()
	longID := addr("2001:db8:9::a1b2:c3d4:e5f6")
	toNeighbour := ns(g, neighbour6, option(1, guestMAC))
	for _, tt := range []struct {
		name   string
		frame  []byte
		answer []byte // nil: not answered
	}{
		{"gateway", ns(g, gateway6, option(1, guestMAC)), answerNA(g, gateway6, router|solicited|override)},
		{"link-local gateway", ns(g, gateway6ll, option(1, guestMAC)), answerNA(g, gateway6ll, router|solicited|override)},
		{"from a link-local address", ns(guestLL, gateway6, option(1, guestMAC)), answerNA(guestLL, gateway6, router|solicited|override)},
		{"neighbour", toNeighbour, answerNA(g, neighbour6, solicited|override)},
		{"with a nonce", ns(g, neighbour6, option(1, guestMAC), nonce()), answerNA(g, neighbour6, solicited|override)},
		{"without options", ns(g, neighbour6), answerNA(g, neighbour6, solicited|override)},
		{"neighbour with a long interface id", ns(g, longID, option(1, guestMAC)), answerNA(g, longID, solicited|override)},
		{"unicast without options", unicastNS(g, gateway6), answerNA(g, gateway6, router|solicited|override)},
		{"DAD for a neighbour's", ns(none6, neighbour6, nonce()), answerDAD(neighbour6, override)},
		{"DAD for the gateway's", ns(none6, gateway6), answerDAD(gateway6, router|override)},
		{"partial checksum", partial(toNeighbour), partial(answerNA(g, neighbour6, solicited|override))},
		{"partial checksum, unicast", partial(unicastNS(g, gateway6)), partial(answerNA(g, gateway6, router|solicited|override))},
		{"64 bytes of options", ns(g, neighbour6, option(1, guestMAC), join([]byte{14, 7}, make([]byte, 54))), answerNA(g, neighbour6, solicited|override)},
		{"bytes behind the packet", pad(toNeighbour, 120), answerNA(g, neighbour6, solicited|override)},

		{"own address", ns(g, g, option(1, guestMAC)), nil},
		{"DAD for the own address", ns(none6, g, nonce()), nil},
		{"another own address", ns(g, guest6b.Addr(), option(1, guestMAC)), nil},
		{"beside a /128", ns(g, addr("fd00:7::6"), option(1, guestMAC)), nil},
		{"off the link", ns(g, offLink6, option(1, guestMAC)), nil},
		{"a link-local neighbour", ns(g, addr("fe80::77"), option(1, guestMAC)), nil},
		{"multicast target", ns(g, addr("ff02::1:ff00:77"), option(1, guestMAC)), nil},
		{"hop limit 254", with(toNeighbour, offIP6Hop, 254), nil},
		{"code 1", with(toNeighbour, offIP6Upper+1, 1), nil},
		{"code 1, summed", codeOne(toNeighbour), nil},
		{"checksum wrong by a bit", with(toNeighbour, offIP6Upper+3, toNeighbour[offIP6Upper+3]^1), nil},
		{"checksum 0", with(toNeighbour, offIP6Upper+2, 0, 0), nil},
		{"to another solicited-node address", with(toNeighbour, offIP6Dst+15, 0x78), nil},
		{"to all nodes", eth(multicastMAC(allNodes), guestMAC, typeIPv6, ip6(g, allNodes, protoICMP6, 255, icmp6(g, allNodes, icmpNS, reserved4, neighbour6.AsSlice()))), nil},
		{"unicast DAD", fromGuest(typeIPv6, ip6(none6, neighbour6, protoICMP6, 255, icmp6(none6, neighbour6, icmpNS, reserved4, neighbour6.AsSlice()))), nil},
		{"unicast to somebody else", with(unicastNS(g, gateway6), 0, strangerMAC...), nil},
		{"72 bytes of options", ns(g, neighbour6, option(1, guestMAC), join([]byte{14, 8}, make([]byte, 62))), nil},
		{"behind an extension header", eth(multicastMAC(solicitedNode(neighbour6)), guestMAC, typeIPv6, ip6(g, solicitedNode(neighbour6), protoDest, 255, ext(protoICMP6), icmp6(g, solicitedNode(neighbour6), icmpNS, reserved4, neighbour6.AsSlice()))), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reason := ReasonToHost
			if tt.answer != nil {
				reason = ReasonNDAnswered
			}
			reserve(t, p, loopback, guestEndpoint())
			check(t, p, RoleGuest, tt.frame, reason, tt.answer)

			host := guestEndpoint()
			host.Role, host.Peer, host.Redirect = RoleHost, 0, RedirectNone
			reserve(t, p, loopback, host)
			check(t, p, RoleHost, tt.frame, reason, tt.answer)

			lax := guestEndpoint()
			lax.SpoofCheck = false
			reserve(t, p, loopback, lax)
			check(t, p, RoleGuest, tt.frame, reason, tt.answer)
		})
	}
}

// A question that carries GSO state is no question: it is left as it is.
func TestQuestionsWithGSOStateAreNotAnswered(t *testing.T) {
	// struct __sk_buff of include/uapi/linux/bpf.h, as BPF_PROG_TEST_RUN takes it.
	const size, offGSOSegs, offGSOSize = 192, 164, 176
	p := newPrograms(t)
	reserve(t, p, loopback, guestEndpoint())
	for name, frame := range map[string][]byte{
		"ARP": arpRequest(guest4.Addr(), gateway4),
		"ND":  ns(guest6.Addr(), gateway6, option(1, guestMAC)),
	} {
		for _, gso := range []uint32{0, 1000} {
			skb := make([]byte, size)
			binary.NativeEndian.PutUint32(skb[offGSOSegs:], gso/500)
			binary.NativeEndian.PutUint32(skb[offGSOSize:], gso)
			opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 200), Context: skb}
			if _, err := p.programs[RoleGuest].Run(&opts); err != nil {
				t.Fatal(err)
			}
			if answered := !bytes.Equal(opts.DataOut, frame); answered != (gso == 0) {
				t.Errorf("%s with gso_size %d: answered %t", name, gso, answered)
			}
		}
	}
}

func TestEndpointThatIsUnknownLeavesTheFrameAlone(t *testing.T) {
	p := newPrograms(t)
	reserve(t, p, loopback, guestEndpoint())
	frame := arpRequest(guest4.Addr(), gateway4)
	for role := range programNames {
		if o := run(t, p, role, frame); o.reason == ReasonUnknown {
			t.Errorf("control: the %s program counted nothing for a known endpoint", role)
		}
	}
	// The counters stay, the endpoint goes.
	if err := p.endpoints.Delete(uint32(loopback)); err != nil {
		t.Fatal(err)
	}
	for role := range programNames {
		check(t, p, role, frame, ReasonUnknown, nil)
		check(t, p, role, with(frame, offEthSrc, strangerMAC...), ReasonUnknown, nil)
	}
}

func TestPodEndSendsEverythingToTheGuest(t *testing.T) {
	p := newPrograms(t)
	reserve(t, p, loopback, Endpoint{Role: RolePod, Peer: 9, Redirect: RedirectEgress, Counters: loopback})
	for _, frame := range [][]byte{
		eth(guestMAC, GatewayMAC, typeIPv4, ip4(offLink4, guest4.Addr(), protoUDP, 0, make([]byte, 8))),
		eth(broadcast, strangerMAC, typeARP, make([]byte, 28)),
		make([]byte, 15),
	} {
		check(t, p, RolePod, frame, ReasonToGuest, nil)
	}
}

func TestEndpointWithoutPeerDrops(t *testing.T) {
	p := newPrograms(t)
	v, err := guestEndpoint().encode()
	if err != nil {
		t.Fatal(err)
	}
	reserve(t, p, loopback, guestEndpoint())
	v.Peer = 0 // what encode refuses
	if err := p.endpoints.Put(uint32(loopback), v); err != nil {
		t.Fatal(err)
	}
	frame := fromGuest(typeIPv4, ip4(guest4.Addr(), offLink4, protoUDP, 0, make([]byte, 8)))
	check(t, p, RoleGuest, frame, ReasonNoPeer, nil)
	check(t, p, RolePod, frame, ReasonNoPeer, nil)
	check(t, p, RoleGuest, arpRequest(guest4.Addr(), gateway4), ReasonARPAnswered, arpReply(guest4.Addr(), gateway4))
}
