package xdp

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// verdictAsked is the first of what the answerer of these tests gives: more than any verdict of the programs.
const verdictAsked = 1000

// newAsked has an answerer that tells by its verdict what it was asked, and where that is in the frame.
func newAsked(t *testing.T) (*Programs, *ebpf.Map) {
	t.Helper()
	p := newPrograms(t)
	info, err := p.programs[RoleGuest].Info()
	if err != nil {
		t.Fatal(err)
	}
	ids, _ := info.MapIDs()
	found := map[string]*ebpf.Map{}
	if err := addNamed(found, ids, []string{redirectMapAnswerers}); err != nil {
		t.Fatal(err)
	}
	answerers := found[redirectMapAnswerers]
	t.Cleanup(func() { _ = answerers.Close() })
	const cb = 48 // of struct __sk_buff
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "asked", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R0, asm.R1, cb, asm.Word),
		asm.Mul.Imm(asm.R0, verdictAsked),
		asm.LoadMem(asm.R2, asm.R1, cb+4, asm.Word),
		asm.Add.Reg(asm.R0, asm.R2),
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = prog.Close() })
	if err := answerers.Put(uint32(0), prog); err != nil {
		t.Fatal(err)
	}
	return p, answerers
}

// The answerer gets questions about the configuration, from where they may come, and nothing else; and only of endpoints that say so.
func TestQuestionsGoToTheAnswerer(t *testing.T) {
	p, answerers := newAsked(t)
	all4, all6 := netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("ff02::1:2")
	bootp := func(src, dst netip.Addr) []byte { return ip4(src, dst, protoUDP, 0, udp(src, dst, 68, 67, odd)) }
	dhcp6 := ip6(guestLL, all6, protoUDP, 1, udp(guestLL, all6, 546, 547, odd))
	rs := func(src netip.Addr) []byte {
		return ip6(src, allRouters, protoICMP6, 255, icmp6(src, allRouters, icmpRS, reserved4))
	}
	const dhcp, solicit, dhcpv6 = 1, 2, 3
	for _, c := range []struct {
		name      string
		frame     []byte
		asked     int
		otherwise Reason
	}{
		{"DISCOVER", eth(broadcast, guestMAC, typeIPv4, bootp(none4, all4)), dhcp*verdictAsked + 34, ReasonToHost},
		{"a renewal", fromGuest(typeIPv4, bootp(guest4.Addr(), gateway4)), dhcp*verdictAsked + 34, ReasonToHost},
		{"an RS from nowhere", eth(multicastMAC(allRouters), guestMAC, typeIPv6, rs(none6)), solicit*verdictAsked + 54, ReasonToHost},
		{"an RS", eth(multicastMAC(allRouters), guestMAC, typeIPv6, rs(guestLL)), solicit*verdictAsked + 54, ReasonNDLinkLocal},
		{"DHCPv6", eth(multicastMAC(all6), guestMAC, typeIPv6, dhcp6), dhcpv6*verdictAsked + 54, ReasonToHost},
		{"a forged DISCOVER", eth(broadcast, strangerMAC, typeIPv4, bootp(none4, all4)), 0, ReasonSpoofMAC},
		{"a fragment", fromGuest(typeIPv4, with(bootp(guest4.Addr(), gateway4), 6, 0x20)), 0, ReasonToHost},
		{"DNS", fromGuest(typeIPv4, ip4(guest4.Addr(), gateway4, protoUDP, 0, udp(guest4.Addr(), gateway4, 68, 53, odd))), 0, ReasonToHost},
		{"a server's word", fromGuest(typeIPv4, ip4(guest4.Addr(), offLink4, protoUDP, 0, udp(guest4.Addr(), offLink4, 67, 68, odd))), 0, ReasonRogueDHCP},
		{"a DHCPv6 server's", fromGuest(typeIPv6, ip6(guestLL, offLink6, protoUDP, 64, udp(guestLL, offLink6, 547, 546, odd))), 0, ReasonRogueDHCP},
		{"a relay's", fromGuest(typeIPv4, ip4(guest4.Addr(), offLink4, protoUDP, 0, udp(guest4.Addr(), offLink4, 67, 67, odd))), dhcp*verdictAsked + 34, ReasonToHost},
	} {
		t.Run(c.name, func(t *testing.T) {
			ep := guestEndpoint()
			reserve(t, p, loopback, ep)
			check(t, p, RoleGuest, c.frame, c.otherwise, nil) // of an endpoint that does not say so
			ep.Answers = true
			reserve(t, p, loopback, ep)
			if c.asked == 0 {
				check(t, p, RoleGuest, c.frame, c.otherwise, nil)
				return
			}
			if got := run(t, p, RoleGuest, c.frame); got.verdict != c.asked || got.reason != ReasonUnknown {
				t.Errorf("verdict %d, counted as %s; want %d, uncounted", got.verdict, got.reason, c.asked)
			}
		})
	}
	if err := answerers.Delete(uint32(0)); err != nil {
		t.Fatal(err)
	}
	ep := guestEndpoint()
	ep.Answers = true
	reserve(t, p, loopback, ep)
	check(t, p, RoleGuest, eth(broadcast, guestMAC, typeIPv4, bootp(none4, all4)), ReasonToHost, nil) // nobody answers
}

// Where nothing is checked and nothing answered, the guest may be a server.
func TestServersMaySpeakWithoutSpoofCheck(t *testing.T) {
	p := newPrograms(t)
	ep := guestEndpoint()
	ep.SpoofCheck = false
	frame := fromGuest(typeIPv4, ip4(guest4.Addr(), offLink4, protoUDP, 0, udp(guest4.Addr(), offLink4, 67, 68, odd)))
	reserve(t, p, loopback, ep)
	check(t, p, RoleGuest, frame, ReasonToHost, nil)
	ep.Answers = true
	reserve(t, p, loopback, ep)
	check(t, p, RoleGuest, frame, ReasonRogueDHCP, nil)
}
