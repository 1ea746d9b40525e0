package xdp

import (
	"fmt"
	"net/netip"
	"testing"
)

// Offsets in an untagged frame.
const (
	offEthSrc    = 6
	offEthType   = 12
	offIP4Frag   = 20
	offIP4Proto  = 23
	offIP4Src    = 26
	offIP4Ports  = 34
	offIP6Len    = 18
	offIP6Next   = 20
	offIP6Hop    = 21
	offIP6Src    = 22
	offIP6Dst    = 38
	offIP6Upper  = 54
	offNDTarget  = 62
	offNDOption  = 78
	offARP       = 14
	offARPSHA    = 22
	offARPSPA    = 28
	offARPTarget = 38
)

// TestOneFieldDecides runs each legal frame, and its twin that differs in just that field.
func TestOneFieldDecides(t *testing.T) {
	p := newPrograms(t)
	dhcp := eth(broadcast, guestMAC, typeIPv4, ip4(none4, netip.MustParseAddr("255.255.255.255"), protoUDP, 0, udp(none4, netip.MustParseAddr("255.255.255.255"), 68, 67, make([]byte, 240))))
	udp4 := fromGuest(typeIPv4, ip4(guest4.Addr(), offLink4, protoUDP, 0, udp(guest4.Addr(), offLink4, 1000, 53, []byte("hello"))))
	udp6 := fromGuest(typeIPv6, ip6(guest6.Addr(), offLink6, protoUDP, 64, udp(guest6.Addr(), offLink6, 1000, 53, []byte("hello"))))
	ll6 := fromGuest(typeIPv6, ip6(guestLL, gateway6ll, protoUDP, 64, udp(guestLL, gateway6ll, 546, 547, []byte("dhcp"))))
	dad := ns(none6, guest6.Addr(), nonce())
	rs := eth(multicastMAC(allRouters), guestMAC, typeIPv6, ip6(guest6.Addr(), allRouters, protoICMP6, 255, icmp6(guest6.Addr(), allRouters, icmpRS, reserved4, option(1, guestMAC))))
	ownNA := na(multicastMAC(allNodes), guestMAC, guest6.Addr(), allNodes, guest6.Addr(), 0x20, option(2, guestMAC))
	offNS := ns(guest6.Addr(), offLink6, option(1, guestMAC), nonce())
	mld := eth(multicastMAC(allRouters), guestMAC, typeIPv6, ip6(none6, allRouters, protoHop, 1, ext(protoICMP6), icmp6(none6, allRouters, icmpMLD2, make([]byte, 24))))
	announce := arp(broadcast, guestMAC, 2, guestMAC, guest4.Addr(), broadcast, guest4.Addr())
	other := eth(broadcast, guestMAC, 0x88cc, make([]byte, 50))
	later := fromGuest(typeIPv4, ip4(guest4.Addr(), offLink4, protoUDP, 100, make([]byte, 32)))
	first := fromGuest(typeIPv4, ip4(guest4.Addr(), offLink4, protoUDP, 0x2000, make([]byte, 32)))
	options := dhcpWithOptions()
	later6 := fromGuest(typeIPv6, ip6(guest6.Addr(), offLink6, protoFragment, 64, fragment(protoICMP6, 1232, false), []byte{icmpRA, 0, 0, 0}))

	for _, tt := range []struct {
		name   string
		legal  []byte
		off    int
		bytes  []byte
		reason Reason
	}{
		{"MAC of IPv4", udp4, offEthSrc, strangerMAC, ReasonSpoofMAC},
		{"MAC of IPv6", udp6, offEthSrc, strangerMAC, ReasonSpoofMAC},
		{"MAC of ARP", announce, offEthSrc, strangerMAC, ReasonSpoofMAC},
		{"MAC of DHCP", dhcp, offEthSrc, strangerMAC, ReasonSpoofMAC},
		{"MAC of another protocol", other, offEthSrc, strangerMAC, ReasonSpoofMAC},
		{"MAC, one bit", udp4, offEthSrc + 5, []byte{guestMAC[5] ^ 1}, ReasonSpoofMAC},
		{"MAC, first byte", udp4, offEthSrc, []byte{guestMAC[0] ^ 4}, ReasonSpoofMAC},

		{"IPv4 source, a neighbour", udp4, offIP4Src, neighbour4.AsSlice(), ReasonSpoofIPv4},
		{"IPv4 source, the gateway", udp4, offIP4Src, gateway4.AsSlice(), ReasonSpoofIPv4},
		{"IPv4 source, none", udp4, offIP4Src, none4.AsSlice(), ReasonSpoofIPv4},
		{"IPv4 source, broadcast", udp4, offIP4Src, broadcast[:4], ReasonSpoofIPv4},
		{"IPv4 source, loopback", udp4, offIP4Src, []byte{127, 0, 0, 1}, ReasonSpoofIPv4},
		{"IPv4 source of a first fragment", first, offIP4Src, neighbour4.AsSlice(), ReasonSpoofIPv4},
		{"IPv4 source of a later fragment", later, offIP4Src, neighbour4.AsSlice(), ReasonSpoofIPv4},
		{"IPv4 version", udp4, 14, []byte{0x65}, ReasonMalformed},
		{"IPv4 header length", udp4, 14, []byte{0x44}, ReasonMalformed},
		{"DHCP source port", dhcp, offIP4Ports, be16(69), ReasonSpoofIPv4},
		{"DHCP server port", dhcp, offIP4Ports + 2, be16(53), ReasonSpoofIPv4},
		{"DHCP protocol", dhcp, offIP4Proto, []byte{protoTCP}, ReasonSpoofIPv4},
		{"DHCP more fragments", dhcp, offIP4Frag, be16(0x2000), ReasonSpoofIPv4},
		{"DHCP fragment offset", dhcp, offIP4Frag, be16(1), ReasonSpoofIPv4},
		{"DHCP source port behind options", options, offIP4Ports + 8, be16(69), ReasonSpoofIPv4},
		{"DHCP options that look like its ports", options, 14, []byte{0x45}, ReasonSpoofIPv4},
		{"DHCP source", dhcp, offIP4Src, neighbour4.AsSlice(), ReasonSpoofIPv4},

		{"IPv6 source, a neighbour", udp6, offIP6Src, neighbour6.AsSlice(), ReasonSpoofIPv6},
		{"IPv6 source, last word", udp6, offIP6Src + 12, []byte{0, 0, 0, 6}, ReasonSpoofIPv6},
		{"IPv6 source, first word", udp6, offIP6Src, []byte{0x20, 1, 0xd, 0xb9}, ReasonSpoofIPv6},
		{"IPv6 source, none, of UDP", udp6, offIP6Src, none6.AsSlice(), ReasonSpoofIPv6},
		{"IPv6 source, mapped IPv4", udp6, offIP6Src, netip.AddrFrom16(guest4.Addr().As16()).AsSlice(), ReasonSpoofIPv6},
		{"IPv6 source, multicast", udp6, offIP6Src, allNodes.AsSlice(), ReasonSpoofIPv6},
		{"IPv6 source, site-local", ll6, offIP6Src, []byte{0xfe, 0xc0}, ReasonSpoofIPv6},
		{"IPv6 source of a later fragment", later6, offIP6Src, neighbour6.AsSlice(), ReasonSpoofIPv6},
		{"IPv6 no source of a later fragment", later6, offIP6Src, none6.AsSlice(), ReasonSpoofIPv6},
		{"IPv6 version", udp6, 14, []byte{0x40}, ReasonMalformed},
		{"echo from no address", dad, offIP6Upper, []byte{icmpEcho}, ReasonSpoofIPv6},
		{"NA from no address", dad, offIP6Upper, []byte{icmpNA}, ReasonSpoofIPv6},
		{"echo behind MLD's header from no address", mld, offIP6Upper + 8, []byte{icmpEcho}, ReasonSpoofIPv6},

		{"ARP sender MAC", announce, offARPSHA, strangerMAC, ReasonSpoofARP},
		{"ARP sender address", announce, offARPSPA, neighbour4.AsSlice(), ReasonSpoofARP},
		{"ARP sender address, the gateway", announce, offARPSPA, gateway4.AsSlice(), ReasonSpoofARP},
		{"ARP hardware", announce, offARP, be16(6), ReasonSpoofARP},
		{"ARP protocol", announce, offARP + 2, be16(typeIPv6), ReasonSpoofARP},
		{"ARP hardware length", announce, offARP + 4, []byte{8}, ReasonSpoofARP},
		{"ARP protocol length", announce, offARP + 5, []byte{16}, ReasonSpoofARP},

		{"RS source address option", rs, offIP6Upper + 8 + 2, strangerMAC, ReasonSpoofND},
		{"NS source address option", offNS, offNDOption + 2, strangerMAC, ReasonSpoofND},
		{"NS option of length 0", offNS, offNDOption + 1, []byte{0}, ReasonSpoofND},
		{"NS source address option, twice as long", offNS, offNDOption + 1, []byte{2}, ReasonSpoofND},
		{"NS option past the end", offNS, offNDOption + 9, []byte{2}, ReasonSpoofND},
		{"NS second option is a source address", offNS, offNDOption + 8, []byte{1}, ReasonSpoofND},
		{"NS payload ends in an option", offNS, offIP6Len, be16(36), ReasonSpoofND},
		{"NS payload ends in the target", offNS, offIP6Len, be16(20), ReasonTruncated},
		{"NS payload longer than the frame", offNS, offIP6Len, be16(41), ReasonTruncated},
		{"NA target", ownNA, offNDTarget, neighbour6.AsSlice(), ReasonSpoofND},
		{"NA target, the gateway", ownNA, offNDTarget, gateway6.AsSlice(), ReasonSpoofND},
		{"NA target address option", ownNA, offNDOption + 2, strangerMAC, ReasonSpoofND},
		{"RA", rs, offIP6Upper, []byte{icmpRA}, ReasonRogueRA},
		{"Redirect", offNS, offIP6Upper, []byte{icmpRedirect}, ReasonRogueRedirect},

		{"VLAN tag", other, offEthType, be16(typeVLAN), ReasonVLAN},
		{"service VLAN tag", other, offEthType, be16(typeQinQ), ReasonVLAN},
		{"old QinQ tag", other, offEthType, be16(0x9100), ReasonVLAN},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reserve(t, p, loopback, guestEndpoint())
			check(t, p, RoleGuest, tt.legal, ReasonToHost, nil)
			check(t, p, RoleGuest, with(tt.legal, tt.off, tt.bytes...), tt.reason, nil)

			// The same decision at the host end of a pod without a TAP.
			ep := guestEndpoint()
			ep.Role, ep.Peer, ep.Redirect = RoleHost, 0, RedirectNone
			reserve(t, p, loopback, ep)
			check(t, p, RoleHost, tt.legal, ReasonToHost, nil)
			check(t, p, RoleHost, with(tt.legal, tt.off, tt.bytes...), tt.reason, nil)

			// Without the check the guest may lie, but is still no router.
			ep = guestEndpoint()
			ep.SpoofCheck = false
			reserve(t, p, loopback, ep)
			reason := ReasonToHost
			if tt.reason == ReasonRogueRA || tt.reason == ReasonRogueRedirect {
				reason = tt.reason
			}
			check(t, p, RoleGuest, with(tt.legal, tt.off, tt.bytes...), reason, nil)
		})
	}
}

// dhcpWithOptions is DHCP from no address with eight bytes of IPv4 options.
func dhcpWithOptions() []byte {
	all := netip.MustParseAddr("255.255.255.255")
	b := ip4(none4, all, protoUDP, 0, []byte{1, 1, 1, 1, 1, 1, 1, 0}, udp(none4, all, 68, 67, make([]byte, 240)))
	return eth(broadcast, guestMAC, typeIPv4, with(b, 0, 0x47))
}

// TestLegalFramesPass covers what has no illegal twin in one field.
func TestLegalFramesPass(t *testing.T) {
	p := newPrograms(t)
	reserve(t, p, loopback, guestEndpoint())
	for name, frame := range map[string][]byte{
		"second IPv4 address":       fromGuest(typeIPv4, ip4(guest4b.Addr(), offLink4, protoTCP, 0, make([]byte, 20))),
		"second IPv6 address":       fromGuest(typeIPv6, ip6(guest6b.Addr(), offLink6, protoTCP, 64, make([]byte, 20))),
		"IPv4 options":              fromGuest(typeIPv4, with(ip4(guest4.Addr(), offLink4, protoUDP, 0, make([]byte, 40)), 0, 0x4f)),
		"no next header":            fromGuest(typeIPv6, ip6(guest6.Addr(), offLink6, protoNone, 64)),
		"ESP":                       fromGuest(typeIPv6, ip6(guest6.Addr(), offLink6, 50, 64, make([]byte, 16))),
		"IPv6 broadcast Ethernet":   eth(broadcast, guestMAC, typeIPv6, ip6(guest6.Addr(), offLink6, protoTCP, 64, make([]byte, 20))),
		"MLDv1 report from nothing": eth(multicastMAC(allNodes), guestMAC, typeIPv6, ip6(none6, allNodes, protoHop, 1, ext(protoICMP6), icmp6(none6, allNodes, icmpMLDReport, make([]byte, 20)))),
		"RS from nothing":           eth(multicastMAC(allRouters), guestMAC, typeIPv6, ip6(none6, allRouters, protoICMP6, 255, icmp6(none6, allRouters, icmpRS, reserved4))),
		"802.3 length":              eth(broadcast, guestMAC, 38, make([]byte, 46)),
		"jumbo":                     fromGuest(typeIPv4, ip4(guest4.Addr(), offLink4, protoUDP, 0, make([]byte, 3000))),
		"NA for a link-local":       na(multicastMAC(allNodes), guestMAC, guest6.Addr(), allNodes, guestLL, 0x20, option(2, guestMAC)),
	} {
		t.Run(name, func(t *testing.T) { check(t, p, RoleGuest, frame, ReasonToHost, nil) })
	}
}

// chain puts n extension headers of one kind before an upper header.
func chain(kind, n, upper int) (next int, headers []byte) {
	for i := range n {
		follows := kind
		if i == n-1 {
			follows = upper
		}
		switch kind {
		case protoAuth: // 12 bytes: its length counts 4-byte words less 2
			headers = append(headers, byte(follows), 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1)
		default:
			headers = append(headers, ext(follows)...)
		}
	}
	if n == 0 {
		return upper, nil
	}
	return kind, headers
}

func TestExtensionHeadersHideNothing(t *testing.T) {
	p := newPrograms(t)
	strict := guestEndpoint()
	lax := guestEndpoint()
	lax.SpoofCheck = false
	src, dst := guest6.Addr(), allRouters
	spoof := icmp6(src, dst, icmpRS, reserved4, option(1, strangerMAC))
	legal := icmp6(src, dst, icmpRS, reserved4, option(1, guestMAC))
	ra := icmp6(src, dst, icmpRA, make([]byte, 12))

	for _, kind := range []int{protoHop, protoRouting, protoDest, protoAuth} {
		for n := range 10 {
			t.Run(fmt.Sprintf("%d headers of type %d", n, kind), func(t *testing.T) {
				next, headers := chain(kind, n, protoICMP6)
				frame := func(msg []byte) []byte { return fromGuest(typeIPv6, ip6(src, dst, next, 255, headers, msg)) }
				want := func(r Reason) Reason {
					if n > 8 {
						return ReasonExtHeaders
					}
					return r
				}
				reserve(t, p, loopback, strict)
				check(t, p, RoleGuest, frame(legal), want(ReasonToHost), nil)
				check(t, p, RoleGuest, frame(spoof), want(ReasonSpoofND), nil)
				check(t, p, RoleGuest, frame(ra), want(ReasonRogueRA), nil)
				reserve(t, p, loopback, lax)
				check(t, p, RoleGuest, frame(spoof), want(ReasonToHost), nil)
				check(t, p, RoleGuest, frame(ra), want(ReasonRogueRA), nil)
			})
		}
	}
	reserve(t, p, loopback, strict)
	for _, tt := range []struct {
		name    string
		next    int // -1: payload is a frame
		payload []byte
		reason  Reason
	}{
		{"ND in a first fragment", protoFragment, join(fragment(protoICMP6, 0, true), legal), ReasonFragmentedND},
		{"ND in an atomic fragment", protoFragment, join(fragment(protoICMP6, 0, false), legal), ReasonFragmentedND},
		{"RA in a first fragment", protoFragment, join(fragment(protoICMP6, 0, true), ra), ReasonRogueRA},
		{"ND in a fragment behind options", protoDest, join(ext(protoFragment), fragment(protoDest, 0, true), ext(protoICMP6), legal), ReasonFragmentedND},
		{"a second fragment header does not undo the first", protoFragment, join(fragment(protoFragment, 8, true), fragment(protoICMP6, 0, true), ra), ReasonToHost},
		{"first fragment without the upper header", protoFragment, join(fragment(protoDest, 0, true), ext(protoICMP6)), ReasonTruncated},
		{"first fragment that ends in a header", protoFragment, join(fragment(protoDest, 0, true), []byte{protoICMP6}), ReasonTruncated},
		{"later fragment", protoFragment, join(fragment(protoICMP6, 8, false), []byte("data")), ReasonToHost},
		{"MLD from no address in a first fragment", -1, eth(broadcast, guestMAC, typeIPv6, ip6(none6, allRouters, protoFragment, 1, fragment(protoICMP6, 0, true), icmp6(none6, allRouters, icmpMLD2, make([]byte, 24)))), ReasonSpoofIPv6},
		{"UDP in a first fragment", protoFragment, join(fragment(protoUDP, 0, true), make([]byte, 8)), ReasonToHost},
		{"a header longer than the frame", protoDest, []byte{protoICMP6, 200, 1, 4, 0, 0, 0, 0}, ReasonTruncated},
		{"a long header, whole", protoDest, join([]byte{protoICMP6, 200}, make([]byte, 201*8-2), ra), ReasonRogueRA},
		{"eight options", protoICMP6, icmp6(src, dst, icmpRS, reserved4, join(nonce(), nonce(), nonce(), nonce(), nonce(), nonce(), nonce(), option(1, guestMAC))), ReasonToHost},
		{"nine options", protoICMP6, icmp6(src, dst, icmpRS, reserved4, join(nonce(), nonce(), nonce(), nonce(), nonce(), nonce(), nonce(), nonce(), option(1, guestMAC))), ReasonSpoofND},
		{"the eighth option lies", protoICMP6, icmp6(src, dst, icmpRS, reserved4, join(nonce(), nonce(), nonce(), nonce(), nonce(), nonce(), nonce(), option(1, strangerMAC))), ReasonSpoofND},
	} {
		t.Run(tt.name, func(t *testing.T) {
			frame := tt.payload // the whole
			if tt.next >= 0 {
				frame = fromGuest(typeIPv6, ip6(src, dst, tt.next, 255, tt.payload))
			}
			check(t, p, RoleGuest, frame, tt.reason, nil)
		})
	}
}

// TestRunts cuts legal frames at every length. A frame that ends inside what is checked is dropped; one that ends behind
// it passes as the whole does.
func TestRunts(t *testing.T) {
	p := newPrograms(t)
	reserve(t, p, loopback, guestEndpoint())
	dhcp := eth(broadcast, guestMAC, typeIPv4, ip4(none4, netip.MustParseAddr("255.255.255.255"), protoUDP, 0, udp(none4, netip.MustParseAddr("255.255.255.255"), 68, 67, make([]byte, 24))))
	for _, tt := range []struct {
		name  string
		frame []byte
		need  int // the shortest that passes
	}{
		{"IPv4", fromGuest(typeIPv4, ip4(guest4.Addr(), offLink4, protoUDP, 0, udp(guest4.Addr(), offLink4, 1, 2, make([]byte, 24)))), 34},
		{"DHCP", dhcp, 38},
		{"IPv6", fromGuest(typeIPv6, ip6(guest6.Addr(), offLink6, protoTCP, 64, make([]byte, 24))), 54},
		{"IPv6 options", fromGuest(typeIPv6, ip6(guest6.Addr(), offLink6, protoDest, 64, ext(protoTCP), make([]byte, 24))), 56},
		{"ICMPv6 echo", fromGuest(typeIPv6, ip6(guest6.Addr(), offLink6, protoICMP6, 64, icmp6(guest6.Addr(), offLink6, icmpEcho, make([]byte, 24)))), 55},
		{"NS", ns(guest6.Addr(), offLink6, option(1, guestMAC)), 86},
		{"ARP", pad(arp(broadcast, guestMAC, 2, guestMAC, guest4.Addr(), broadcast, guest4.Addr()), 60), 42},
		{"another protocol", eth(broadcast, guestMAC, 0x88cc, make([]byte, 46)), 14},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checked := 0
			for n := range len(tt.frame) + 1 {
				if n < 54 && !runnable(p, tt.frame[:n]) {
					continue // TestRuntsFromTAP has every length
				}
				checked++
				reason := ReasonTruncated
				if n >= tt.need {
					reason = ReasonToHost
				}
				check(t, p, RoleGuest, tt.frame[:n], reason, nil)
			}
			if want := len(tt.frame) - 54; checked < want {
				t.Errorf("checked %d lengths, want %d", checked, want)
			}
		})
	}
}
