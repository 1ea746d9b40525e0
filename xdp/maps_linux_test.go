package xdp

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
)

// samePrefix compares addresses, which hold unexported fields.
var samePrefix = cmp.Options{
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
}

func podEndpoint(tap uint32) Endpoint {
	return Endpoint{Role: RolePod, Peer: tap, Redirect: RedirectEgress, Counters: tap}
}

// attachment is the entries of a pod with a TAP, at two ifindexes.
func attachment(tap, pod uint32) map[uint32]Endpoint {
	ep := guestEndpoint()
	ep.Peer, ep.Counters = pod, tap
	return map[uint32]Endpoint{tap: ep, pod: podEndpoint(tap)}
}

func fullEndpoint() Endpoint {
	ep := guestEndpoint()
	ep.Addresses, ep.Gateways = nil, nil
	for i := range MaxAddresses {
		ep.Addresses = append(ep.Addresses, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 2, byte(i + 1)}), i*4))
	}
	for i := range MaxAddresses {
		ep.Addresses = append(ep.Addresses, netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 15: byte(i + 1)}), i*17))
	}
	for i := range MaxGateways {
		ep.Gateways = append(ep.Gateways, netip.AddrFrom4([4]byte{10, 1, 2, byte(100 + i)}))
	}
	for i := range MaxGateways {
		ep.Gateways = append(ep.Gateways, netip.AddrFrom16([16]byte{0xfe, 0x80, 15: byte(100 + i)}))
	}
	return ep
}

func TestEndpointsComeBackAsTheyWerePut(t *testing.T) {
	p := newPrograms(t)
	host := guestEndpoint()
	host.Role, host.Peer, host.Redirect, host.Counters, host.SpoofCheck = RoleHost, 0, RedirectNone, 30, false
	full := fullEndpoint()
	full.Peer, full.Counters = 41, 40
	want := map[uint32]Endpoint{40: full, 41: podEndpoint(40), 30: host}
	for _, some := range []map[uint32]Endpoint{{40: full, 41: podEndpoint(40)}, {30: host}} {
		if err := p.Reserve(some); err != nil {
			t.Fatal(err)
		}
	}
	got, err := p.Endpoints()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, samePrefix); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	one, err := p.Lookup(40)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full, one, samePrefix); diff != "" {
		t.Errorf("endpoint (-want +got):\n%s", diff)
	}
	changed := full
	changed.SpoofCheck = false
	if err := p.Update(40, changed); err != nil {
		t.Fatal(err)
	}
	if one, err = p.Lookup(40); err != nil || one.SpoofCheck {
		t.Errorf("after Update: spoof check %t, %v", one.SpoofCheck, err)
	}
	if err := p.Update(99, full); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Update of what is not there: %v, want fs.ErrNotExist", err)
	}
	if _, err := p.Lookup(99); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Lookup of what is not there: %v, want fs.ErrNotExist", err)
	}
	if _, err := p.Counters(99); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Counters of what is not there: %v, want fs.ErrNotExist", err)
	}
	for range 2 {
		if err := p.Delete(40, 41, 30, 99); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := p.Endpoints(); err != nil || len(got) != 0 {
		t.Errorf("after Delete: %v, %v", got, err)
	}
	if _, err := p.Counters(40); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("counters after Delete: %v, want fs.ErrNotExist", err)
	}
}

func TestReserveIsAllOrNothing(t *testing.T) {
	p := newPrograms(t)
	if err := p.Reserve(attachment(10, 11)); err != nil {
		t.Fatal(err)
	}
	// 9 is free and comes first; 11 is taken.
	err := p.Reserve(attachment(9, 11))
	if !errors.Is(err, ErrInUse) {
		t.Errorf("Reserve of a taken ifindex: %v, want ErrInUse", err)
	}
	if _, err := p.Lookup(9); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the free half after a failed Reserve: %v, want fs.ErrNotExist", err)
	}
	if _, err := p.Counters(9); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("counters after a failed Reserve: %v, want fs.ErrNotExist", err)
	}
	if ep, err := p.Lookup(11); err != nil || ep.Counters != 10 {
		t.Errorf("the first attachment after a failed Reserve: %+v, %v", ep, err)
	}
	if _, err := p.Counters(10); err != nil {
		t.Errorf("the first attachment's counters: %v", err)
	}
}

func TestOneOfManyReservationsWins(t *testing.T) {
	p := newPrograms(t)
	for round := range uint32(50) {
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				a := attachment(100+2*round, 101+2*round)
				ep := a[100+2*round]
				ep.GuestMAC = net.HardwareAddr{2, 0, 0, 0, 0, byte(i)}
				a[100+2*round] = ep
				errs[i] = p.Reserve(a)
			})
		}
		wg.Wait()
		winner := -1
		for i, err := range errs {
			switch {
			case err == nil && winner >= 0:
				t.Fatalf("round %d: %d and %d both reserved", round, winner, i)
			case err == nil:
				winner = i
			case !errors.Is(err, ErrInUse):
				t.Fatalf("round %d: %v", round, err)
			}
		}
		if winner < 0 {
			t.Fatalf("round %d: nobody reserved", round)
		}
		if ep, err := p.Lookup(100 + 2*round); err != nil || ep.GuestMAC[5] != byte(winner) {
			t.Fatalf("round %d: endpoint of %v, want %d's: %v", round, ep.GuestMAC, winner, err)
		}
	}
}

func TestCountersStartAtZeroAndSumOverCPUs(t *testing.T) {
	p := newPrograms(t)
	reserve(t, p, loopback, guestEndpoint())
	frame := fromGuest(typeIPv4, ip4(guest4.Addr(), offLink4, protoUDP, 0, make([]byte, 66)))
	for range 3 {
		run(t, p, RoleGuest, frame)
	}
	if diff := cmp.Diff(map[Reason]Counter{ReasonToHost: {3, 300}}, countersOf(t, p)); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
	// Each CPU's share counts.
	var counts []redirectCounts
	if err := p.counters.Lookup(uint32(loopback), &counts); err != nil {
		t.Fatal(err)
	}
	for i := range counts {
		counts[i].ByReason[ReasonVLAN].Frames = uint64(i + 1)
		counts[i].ByReason[ReasonVLAN].Bytes = 10
	}
	if err := p.counters.Put(uint32(loopback), counts); err != nil {
		t.Fatal(err)
	}
	n := uint64(len(counts))
	if got, want := countersOf(t, p)[ReasonVLAN], (Counter{n * (n + 1) / 2, 10 * n}); got != want {
		t.Errorf("sum over %d CPUs is %+v, want %+v", n, got, want)
	}
	// A dead attachment's counters are not the next one's.
	if err := p.endpoints.Delete(uint32(loopback)); err != nil {
		t.Fatal(err)
	}
	if err := p.Reserve(map[uint32]Endpoint{loopback: guestEndpoint()}); err != nil {
		t.Fatal(err)
	}
	if got := countersOf(t, p); len(got) != 0 {
		t.Errorf("counters of a new attachment: %v, want none", got)
	}
}

func TestEndpointFaultsAreNamed(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	for _, tt := range []struct {
		change func(*Endpoint)
		want   string
	}{
		{func(e *Endpoint) { e.Role = RoleUnknown }, "role: want guest, pod or host, got 0"},
		{func(e *Endpoint) { e.Role = 4 }, "role: want guest, pod or host, got 4"},
		{func(e *Endpoint) { e.Peer = 0 }, "redirect peer with peer ifindex 0: one needs the other"},
		{func(e *Endpoint) { e.Redirect = RedirectNone }, "redirect none with peer ifindex 7: one needs the other"},
		{func(e *Endpoint) { e.Role = RoleHost }, "redirect peer of a host endpoint: only a host endpoint passes frames to the stack"},
		{func(e *Endpoint) { e.GuestMAC = nil }, "guest MAC: want 6 bytes, got 0"},
		{func(e *Endpoint) { e.GuestMAC = make(net.HardwareAddr, 8) }, "guest MAC: want 6 bytes, got 8"},
		{func(e *Endpoint) { e.GatewayMAC = broadcast }, "gateway MAC: want a unicast address, got ff:ff:ff:ff:ff:ff"},
		{func(e *Endpoint) { e.Addresses = append(fullEndpoint().Addresses, prefix("10.3.3.3/24")) }, "address 10.3.3.3/24: want at most 8 IPv4 addresses"},
		{func(e *Endpoint) { e.Addresses = append(fullEndpoint().Addresses, prefix("fd00::9/64")) }, "address fd00::9/64: want at most 8 IPv6 addresses"},
		{func(e *Endpoint) { e.Gateways = append(fullEndpoint().Gateways, addr("10.3.3.3")) }, "gateway 10.3.3.3: want at most 4 IPv4 gateways"},
		{func(e *Endpoint) { e.Gateways = append(fullEndpoint().Gateways, addr("fd00::9")) }, "gateway fd00::9: want at most 4 IPv6 gateways"},
		{func(e *Endpoint) { e.Addresses = []netip.Prefix{prefix("0.0.0.0/0")} }, `address "0.0.0.0/0": want a host address with its prefix length`},
		{func(e *Endpoint) { e.Addresses = []netip.Prefix{prefix("::ffff:10.0.0.1/120")} }, `address "::ffff:10.0.0.1/120": want a host address with its prefix length`},
		{func(e *Endpoint) { e.Gateways = []netip.Addr{addr("fe80::1%eth0")} }, `gateway "fe80::1%eth0": want a host address`},
		{func(e *Endpoint) { e.Gateways = []netip.Addr{{}} }, `gateway "invalid IP": want a host address`},
	} {
		e := guestEndpoint()
		tt.change(&e)
		if _, err := e.encode(); err == nil || err.Error() != tt.want {
			t.Errorf("got  %v\nwant %s", err, tt.want)
		}
	}
	if _, err := encodeAll(map[uint32]Endpoint{5: podEndpoint(6)}); err == nil || !strings.Contains(err.Error(), "counters 6 are of no device") {
		t.Errorf("counters of another attachment: %v", err)
	}
}

// layoutOf is a hash of what the shared maps are made of.
func layoutOf(spec *ebpf.CollectionSpec) string {
	lines := []string{fmt.Sprintf("layout %d", shortcutShortcutLayoutSHORTCUT_LAYOUT)}
	for _, name := range sharedMaps {
		m := spec.Maps[name]
		lines = append(lines, fmt.Sprintf("%s %d %d %d %d %d", name, m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags))
	}
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:8])
}

// The constant must follow each change of the maps: versions that share what they understand differently break each other.
func TestShortcutLayoutIsTheObjects(t *testing.T) {
	spec, err := loadShortcut()
	if err != nil {
		t.Fatal(err)
	}
	if want := layoutOf(spec); ShortcutLayout() != want {
		t.Errorf("shortcutLayout is %q; set it to %q", ShortcutLayout(), want)
	}
}

// TestLayoutsAgree compares what Go and C think of the shared types.
func TestLayoutsAgree(t *testing.T) {
	spec, err := loadRedirect()
	if err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]uintptr{
		"endpoint": unsafe.Sizeof(redirectEndpoint{}),
		"counts":   unsafe.Sizeof(redirectCounts{}),
		"counter":  unsafe.Sizeof(redirectCounts{}.ByReason[0]),
	} {
		var s *btf.Struct
		if err := spec.Types.TypeByName(name, &s); err != nil {
			t.Fatal(err)
		}
		if uintptr(s.Size) != size {
			t.Errorf("struct %s: %d bytes in C, %d in Go", name, s.Size, size)
		}
	}
	if got, want := spec.Maps[redirectMapEndpoints].ValueSize, uint32(unsafe.Sizeof(redirectEndpoint{})); got != want {
		t.Errorf("values of map endpoints have %d bytes, want %d", got, want)
	}
	if got, want := unsafe.Sizeof(Counter{}), unsafe.Sizeof(redirectCounts{}.ByReason[0]); got != want {
		t.Errorf("Counter has %d bytes, want %d", got, want)
	}
	var e *btf.Enum
	if err := spec.Types.TypeByName("reason", &e); err != nil {
		t.Fatal(err)
	}
	for _, v := range e.Values {
		name := strings.ToLower(strings.TrimPrefix(v.Name, "REASON_"))
		if v.Name == "REASON_MAX" {
			name = fmt.Sprintf("reason_%d", v.Value)
		}
		if got := Reason(v.Value).String(); got != name {
			t.Errorf("%s is %q in Go, want %q", v.Name, got, name)
		}
	}
	names := map[string]bool{}
	for _, p := range spec.Programs {
		names[p.Name] = true
	}
	for role, name := range programNames {
		if !names[name] {
			t.Errorf("the %s program %s is not in the object", role, name)
		}
	}
}
