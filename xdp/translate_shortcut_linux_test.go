package xdp

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
)

// clonePair has two guests of one snapshot: both have the same addresses inside.
func clonePair(t testing.TB, from, to bool) *Shortcut {
	t.Helper()
	s := newShortcutPrograms(t, true)
	g, p := guestParticipant(), peerParticipant()
	g.Addresses = []netip.Prefix{guest4, guest6}
	if from {
		g.Inside = []netip.Addr{inside4.Addr(), inside6.Addr()}
	}
	if to {
		p.Inside = []netip.Addr{inside4.Addr(), inside6.Addr()}
	}
	join2(t, s, g)
	join2(t, s, p)
	standIn(t, s, shortcutMapDevices, peerTAP)
	return s
}

// Frames of all three kinds of pairs come out as if they had been written with the addresses that the reader knows, partial checksums
// complete.
func TestShortcutTranslates(t *testing.T) {
	for name, translated := range map[string][2]bool{"from a clone": {true, false}, "to a clone": {false, true}, "between clones": {true, true}} {
		t.Run(name, func(t *testing.T) {
			s := clonePair(t, translated[0], translated[1])
			for _, v6 := range []bool{false, true} {
				in, src, dst := inside4.Addr(), guest4.Addr(), peer4
				if v6 {
					in, src, dst = inside6.Addr(), guest6.Addr(), peer6
				}
				sentFrom, readAt := src, dst
				if translated[0] {
					sentFrom = in
				}
				if translated[1] {
					readAt = in
				}
				for _, c := range segments(icmpOf(src)) {
					sent := packet(sentFrom, dst, c.proto, c.make(sentFrom, dst))
					// Who reads sees the sender's address outside, the one that it is called there.
					want := packet(src, readAt, c.proto, c.make(src, readAt))
					wantPath(t, s, shortcutProgGuestXdp, sent, shortcutPathReasonPATH_TO_GUEST, routed(want, peerMAC, GatewayMAC))
					if c.proto != protoTCP && c.proto != protoUDP || bytes.Contains([]byte(c.name), []byte("without")) {
						continue
					}
					_, partial := leavePartial(sent)
					got := wantPath(t, s, shortcutProgGuestXdp, partial, shortcutPathReasonPATH_TO_GUEST, routed(want, peerMAC, GatewayMAC))
					if got.beside[ShortcutChecksumCompleted] != 1 {
						t.Errorf("%s: the partial checksum was not seen", c.name)
					}
				}
			}
		})
	}
}

type segment struct {
	name  string
	proto int
	make  func(src, dst netip.Addr) []byte
}

func segments(icmp int) []segment {
	return []segment{
		{"TCP", protoTCP, func(s, d netip.Addr) []byte { return tcp(s, d, 1000, 80, tcpACK, odd) }},
		{"UDP", protoUDP, func(s, d netip.Addr) []byte { return udp(s, d, 1000, 53, odd) }},
		{"UDP without a checksum", protoUDP, func(s, d netip.Addr) []byte { return with(udp(s, d, 1001, 53, odd), 6, 0, 0) }},
		{"echo", icmp, func(s, d netip.Addr) []byte { return echo(s, d, false, 7, odd) }},
	}
}

// A clone's source is its inside address, and nothing else is.
func TestShortcutOfACloneChecksItsInsideAddress(t *testing.T) {
	s := clonePair(t, true, true)
	frame := func(src, dst netip.Addr) []byte { return packet(src, dst, protoUDP, udp(src, dst, 1, 2, odd)) }
	wantPath(t, s, shortcutProgGuestXdp, frame(guest4.Addr(), peer4), shortcutPathReasonPATH_DROP_SPOOF_IPV4, frame(guest4.Addr(), peer4))
	wantPath(t, s, shortcutProgGuestXdp, frame(guest6.Addr(), peer6), shortcutPathReasonPATH_DROP_SPOOF_IPV6, frame(guest6.Addr(), peer6))
	// To itself, and to what the other has inside: no shortcut leads there.
	wantPath(t, s, shortcutProgGuestXdp, frame(inside4.Addr(), guest4.Addr()), shortcutPathReasonPATH_PASS_NO_TARGET, frame(inside4.Addr(), guest4.Addr()))
	wantPath(t, s, shortcutProgGuestXdp, frame(inside4.Addr(), insideGW[0]), shortcutPathReasonPATH_PASS_NO_TARGET, frame(inside4.Addr(), insideGW[0]))
	// From the host end a clone is its outside address.
	wantPath(t, s, shortcutProgHostShortcut, frame(guest4.Addr(), peer4), shortcutPathReasonPATH_TO_GUEST, routed(frame(guest4.Addr(), peer4), peerMAC, GatewayMAC))
	wantPath(t, s, shortcutProgHostShortcut, frame(inside4.Addr(), peer4), shortcutPathReasonPATH_PASS_SOURCE, frame(inside4.Addr(), peer4))
}

// Who speaks from the address that the target has itself is not brought to it.
func TestShortcutKeepsInsideAddressesFromOutside(t *testing.T) {
	s := newShortcutPrograms(t, true)
	g, p := guestParticipant(), peerParticipant()
	g.Addresses = append([]netip.Prefix{inside4}, g.Addresses...)
	p.Inside = []netip.Addr{inside4.Addr()}
	join2(t, s, g)
	join2(t, s, p)
	standIn(t, s, shortcutMapDevices, peerTAP)
	frame := packet(inside4.Addr(), peer4, protoUDP, udp(inside4.Addr(), peer4, 1, 2, odd))
	wantPath(t, s, shortcutProgGuestXdp, frame, shortcutPathReasonPATH_PASS_SOURCE, frame)
}

// An error's quote is tc's to translate.
func TestShortcutLeavesErrorsOfClonesToTC(t *testing.T) {
	for _, translated := range [][2]bool{{true, false}, {false, true}} {
		s := clonePair(t, translated[0], translated[1])
		src := guest4.Addr()
		if translated[0] {
			src = inside4.Addr()
		}
		// A flow of the peer's that went by the shortcut, or the error would pass for that.
		key := shortcutFlow4Key{Source: word4(peer4), Dest: word4(guest4.Addr()), SourcePort: htons(1), DestPort: htons(2), Proto: protoUDP}
		raw, err := s.rawSettings()
		if err != nil {
			t.Fatal(err)
		}
		flows, err := s.ownMap(shortcutMapFlows4)
		if err != nil {
			t.Fatal(err)
		}
		if err := flows.Put(key, shortcutFlow{Epoch: raw.Epoch, Verdict: shortcutVerdictVERDICT_SHORTCUT}); err != nil {
			t.Fatal(err)
		}
		quote := ip4(peer4, src, protoUDP, 0, udp(peer4, src, 1, 2, odd))
		frame := fromGuest(typeIPv4, ip4(src, peer4, 1, 0, icmp4(3, 3, reserved4, quote)))
		wantPath(t, s, shortcutProgGuestXdp, frame, shortcutPathReasonPATH_PASS_TRANSLATED, frame)
	}
}

// What is written of a participant is read again.
func TestParticipantKeepsItsInside(t *testing.T) {
	p := guestParticipant()
	p.Addresses = []netip.Prefix{guest4, guest6}
	p.Inside = []netip.Addr{inside4.Addr(), inside6.Addr()}
	v, err := p.encode()
	if err != nil {
		t.Fatal(err)
	}
	if got := v.decode().Inside; !slices.Equal(got, p.Inside) {
		t.Errorf("inside %v, want %v", got, p.Inside)
	}
	for _, wrong := range [][]netip.Addr{{inside4.Addr(), inside4.Addr()}, {netip.Addr{}}, {none4}} {
		p.Inside = wrong
		if _, err := p.encode(); err == nil {
			t.Errorf("took %v", wrong)
		}
	}
}
