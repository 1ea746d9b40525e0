package xdp

import (
	"net/netip"
	"testing"
)

// ND from a link-local address ends at the programs, whoever it asks for and however long it is, and what the gateway answers is
// answered. Behind another plugin's interface it goes on, and without the check as well.
func TestLinkLocalNDEndsHere(t *testing.T) {
	p := newPrograms(t)
	long := join([]byte{14, 8}, make([]byte, 62)) // more than is answered on the spot
	group := solicitedNode(gateway6)
	for name, frame := range map[string][]byte{
		"RS":                            eth(multicastMAC(allRouters), guestMAC, typeIPv6, ip6(guestLL, allRouters, protoICMP6, 255, icmp6(guestLL, allRouters, icmpRS, reserved4, option(1, guestMAC)))),
		"RS without option":             eth(multicastMAC(allRouters), guestMAC, typeIPv6, ip6(guestLL, allRouters, protoICMP6, 255, icmp6(guestLL, allRouters, icmpRS, reserved4))),
		"NS for a link-local neighbour": ns(guestLL, netip.MustParseAddr("fe80::77"), option(1, guestMAC)),
		"long NS for the gateway":       ns(guestLL, gateway6, option(1, guestMAC), long),
		"NS behind options":             eth(multicastMAC(group), guestMAC, typeIPv6, ip6(guestLL, group, protoDest, 255, ext(protoICMP6), icmp6(guestLL, group, icmpNS, reserved4, gateway6.AsSlice(), option(1, guestMAC)))),
		"NA":                            na(multicastMAC(allNodes), guestMAC, guestLL, allNodes, guestLL, 0x20, option(2, guestMAC)),
	} {
		t.Run(name, func(t *testing.T) {
			reserve(t, p, loopback, guestEndpoint())
			check(t, p, RoleGuest, frame, ReasonNDLinkLocal, nil)

			host := guestEndpoint()
			host.Role, host.Peer, host.Redirect = RoleHost, 0, RedirectNone
			reserve(t, p, loopback, host)
			check(t, p, RoleHost, frame, ReasonNDLinkLocal, nil)

			chained := guestEndpoint()
			chained.Redirect, chained.Gateways = RedirectEgress, nil
			reserve(t, p, loopback, chained)
			check(t, p, RoleGuest, frame, ReasonToHost, nil)

			lax := guestEndpoint()
			lax.SpoofCheck = false
			reserve(t, p, loopback, lax)
			check(t, p, RoleGuest, frame, ReasonToHost, nil)
		})
	}
	reserve(t, p, loopback, guestEndpoint())
	echo := fromGuest(typeIPv6, ip6(guestLL, gateway6ll, protoICMP6, 64, icmp6(guestLL, gateway6ll, icmpEcho, make([]byte, 8))))
	check(t, p, RoleGuest, echo, ReasonToHost, nil)
	check(t, p, RoleGuest, ns(guestLL, gateway6, option(1, guestMAC)), ReasonNDAnswered, answerNA(guestLL, gateway6, 0xe0))
}
