package xdp

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/cilium/ebpf"
)

// What passes for want of something on tapir's side, by test runs. The other reasons are in TestShortcutReasons.
func TestShortcutPassesInDoubt(t *testing.T) {
	a, b := guest4.Addr(), peer4
	frame := packet(a, b, protoUDP, udp(a, b, 1000, 2000, []byte("hello")))
	for name, c := range map[string]struct {
		change func(*testing.T, *Shortcut)
		reason shortcutPathReason
	}{
		"no device": {func(t *testing.T, s *Shortcut) {
			m, err := s.ownMap(shortcutMapDevices)
			if err == nil {
				err = m.Delete(uint32(peerTAP))
			}
			if err != nil {
				t.Fatal(err)
			}
		}, shortcutPathReasonPATH_PASS_NO_DEVICE},
		"flagged target": {func(t *testing.T, s *Shortcut) { flag(t, s, peerTAP) }, shortcutPathReasonPATH_PASS_FLAGGED},
		"flagged source": {func(t *testing.T, s *Shortcut) { flag(t, s, loopback) }, shortcutPathReasonPATH_PASS_FLAGGED},
		"withdrawn": {func(t *testing.T, s *Shortcut) {
			if err := s.Withdraw(peerTAP); err != nil {
				t.Fatal(err)
			}
		}, shortcutPathReasonPATH_PASS_NO_TARGET},
		"the netns id is nobody's": {func(t *testing.T, s *Shortcut) {
			p := guestParticipant()
			p.HostNSID = 12345
			join2(t, s, p)
		}, shortcutPathReasonPATH_PASS_LOOKUP_FAILED},
		"no spoof check, another's address": {func(t *testing.T, s *Shortcut) {
			p := guestParticipant()
			p.SpoofCheck, p.Addresses = false, p.Addresses[1:]
			join2(t, s, p)
		}, shortcutPathReasonPATH_PASS_SOURCE},
		"a control": {func(*testing.T, *Shortcut) {}, shortcutPathReasonPATH_TO_GUEST},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPair(t, true)
			c.change(t, s)
			var out []byte
			if c.reason == shortcutPathReasonPATH_TO_GUEST {
				out = routed(frame, peerMAC, GatewayMAC)
			}
			wantPath(t, s, shortcutProgGuestXdp, frame, c.reason, out)
		})
	}
}

func flag(t *testing.T, s *Shortcut, tap uint32) {
	t.Helper()
	if err := s.SetNoShortcut(tap, true); err != nil {
		t.Fatal(err)
	}
}

// A test run looks generic: a program for native mode leaves it to tc, one for generic mode takes it, and both drop forgeries.
func TestShortcutInTheGenericRun(t *testing.T) {
	s := newPair(t, false)
	a, b := guest4.Addr(), peer4
	frame := packet(a, b, protoUDP, udp(a, b, 1000, 2000, []byte("hello")))
	forged := with(frame, offEthSrc, strangerMAC...)
	wantPath(t, s, shortcutProgGuestXdp, frame, shortcutPathReasonPATH_PASS_GENERIC, nil)
	wantPath(t, s, shortcutProgGuestXdp, forged, shortcutPathReasonPATH_DROP_SPOOF_MAC, nil)
	wantPath(t, s, shortcutProgGuestXdpSkb, frame, shortcutPathReasonPATH_TO_GUEST, routed(frame, peerMAC, GatewayMAC))
	wantPath(t, s, shortcutProgGuestXdpSkb, forged, shortcutPathReasonPATH_DROP_SPOOF_MAC, nil)
}

// A device that takes no part: its frames pass uncounted.
func TestShortcutOfNobody(t *testing.T) {
	s := newPair(t, true)
	if err := s.Leave(loopback); err != nil {
		t.Fatal(err)
	}
	frame := packet(guest4.Addr(), peer4, protoUDP, udp(guest4.Addr(), peer4, 1000, 2000))
	for program, want := range map[string]int{shortcutProgGuestXdp: xdpPass, shortcutProgUplinkXdp: xdpPass, shortcutProgHostShortcut: verdictNext} {
		ret, err := s.programs[program].Run(&ebpf.RunOptions{Data: frame})
		if err != nil || int(int32(ret)) != want {
			t.Errorf("%s: verdict %d, %v; want %d", program, int32(ret), err, want)
		}
	}
	if c, err := s.ShortcutCounters(loopback); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("counters %v, %v; want none", c, err)
	}
}

// A reply goes the way of its request, and an identifier's request counts for its own two ends alone.
func TestShortcutEcho(t *testing.T) {
	s := newPair(t, true)
	for _, a := range families(peer4, peer6) {
		src, dst := a[0], a[1]
		icmp := icmpOf(src)
		// The guest answers a request of the peer's: the peer's program sees that one in its own netns, here it is written by hand.
		reply := packet(src, dst, icmp, echo(src, dst, true, 7))
		wantPath(t, s, shortcutProgGuestXdp, reply, shortcutPathReasonPATH_PASS_NO_REQUEST, nil)
		asPeer(t, s, func() {
			request := packet(dst, src, icmp, echo(dst, src, false, 7))
			request = with(request, offEthSrc, peerMAC...)
			wantPath(t, s, shortcutProgGuestXdp, request, shortcutPathReasonPATH_TO_GUEST, routed(request, guestMAC, GatewayMAC))
		})
		wantPath(t, s, shortcutProgGuestXdp, reply, shortcutPathReasonPATH_TO_GUEST, routed(reply, peerMAC, GatewayMAC))
		other := packet(src, dst, icmp, echo(src, dst, true, 8))
		wantPath(t, s, shortcutProgGuestXdp, other, shortcutPathReasonPATH_PASS_NO_REQUEST, nil)
	}
}

// asPeer makes the frames of test runs the peer's while f runs.
func asPeer(t *testing.T, s *Shortcut, f func()) {
	t.Helper()
	standIn(t, s, shortcutMapDevices, loopback)
	m, err := s.ownMap(shortcutMapAttachments)
	if err != nil {
		t.Fatal(err)
	}
	guest, err := s.attachment(loopback)
	if err != nil {
		t.Fatal(err)
	}
	peer, err := s.attachment(peerTAP)
	if err != nil {
		t.Fatal(err)
	}
	peer.Counters = loopback
	if err := m.Put(uint32(loopback), peer); err != nil {
		t.Fatal(err)
	}
	f()
	if err := m.Put(uint32(loopback), guest); err != nil {
		t.Fatal(err)
	}
}

// What XDP refused is among the attachment's counters, under the reason that tc has for it.
func TestShortcutRefusedIsCountedOnce(t *testing.T) {
	nd := newNode(t, 2, ModeNative)
	a, b := nd.guests[0], nd.guests[1]
	forged := with(datagram(a, b), offEthSrc, strangerMAC...)
	a.tap.send(vnetHdr{}, forged)
	forged = with(datagram(a, b), 26, 10, 9, 0, 99)
	a.tap.send(vnetHdr{}, forged)
	b.tap.wantNothing("a forgery")
	c, err := nd.progs.Counters(a.tapIdx)
	if err != nil || c[ReasonSpoofMAC].Frames != 1 || c[ReasonSpoofIPv4].Frames != 1 || c[ReasonSpoofMAC].Bytes != uint64(len(forged)) {
		t.Errorf("counters %v, %v; want one frame from a MAC and one from an address that are not the guest's", c, err)
	}
}
