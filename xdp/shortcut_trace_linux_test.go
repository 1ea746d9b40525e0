package xdp

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"
)

func TestShortcutTrace(t *testing.T) {
	nd := newNode(t, 2, ModeNative)
	a, b := nd.guests[0], nd.guests[1]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	events := make(chan Event, 100)
	done := make(chan error, 1)
	go func() {
		lost, err := nd.s.Trace(ctx, Filter{Source: a.v4, Dest: b.v4, DestPort: 2000, Proto: protoUDP}, func(e Event) { events <- e })
		if lost != 0 {
			t.Errorf("lost %d events", lost)
		}
		done <- err
	}()
	eventually(t, "the trace begins", func() bool {
		raw, err := nd.s.rawSettings()
		return err == nil && raw.TraceUntil != 0
	})
	if _, err := nd.s.Trace(ctx, Filter{}, nil); !errors.Is(err, ErrTracing) {
		t.Errorf("second trace: %v, want %v", err, ErrTracing)
	}
	f := datagram(a, b)
	other := a.to(b.v4, protoUDP, udp(a.v4, b.v4, 1000, 2001, []byte("another port")))
	back := b.to(a.v4, protoUDP, udp(b.v4, a.v4, 2000, 1000, []byte("back")))
	a.reaches(b, "hello", vnetHdr{}, f, routed(f, b.mac, GatewayMAC))
	a.reaches(b, "other", vnetHdr{}, other, routed(other, b.mac, GatewayMAC))
	nd.must(nd.s.SetNoShortcut(a.tapIdx, true))
	b.reaches(a, "back", vnetHdr{}, back, routed(back, a.mac, GatewayMAC))
	want := []Event{
		{Hook: HookTAPXDP, Ifindex: a.tapIdx, Reason: ShortcutXDPToGuest, Verdict: VerdictShortcut, Len: len(f), Target: b.tapIdx, Proto: protoUDP,
			Source: netip.AddrPortFrom(a.v4, 1000), Dest: netip.AddrPortFrom(b.v4, 2000)},
		{Hook: HookTAPXDP, Ifindex: b.tapIdx, Reason: xdpFlagged, Len: len(back), Proto: protoUDP,
			Source: netip.AddrPortFrom(b.v4, 2000), Dest: netip.AddrPortFrom(a.v4, 1000)},
		{Hook: HookHostTC, Ifindex: b.hostIdx, Reason: tcReasons + xdpFlagged, Len: len(back), Proto: protoUDP,
			Source: netip.AddrPortFrom(b.v4, 2000), Dest: netip.AddrPortFrom(a.v4, 1000)},
	}
	for i, w := range want {
		select {
		case e := <-events:
			if since := time.Since(e.Time); since < 0 || since > time.Minute {
				t.Errorf("event %d was %s ago", i, since)
			}
			e.Time = time.Time{}
			if e != w {
				t.Errorf("event %d:\ngot  %+v\nwant %+v", i, e, w)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("event %d did not come", i)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if raw, err := nd.s.rawSettings(); err != nil || raw.TraceUntil != 0 {
		t.Errorf("the trace is still on: %v, %v", raw.TraceUntil, err)
	}
	if len(events) != 0 {
		t.Errorf("%d more events", len(events))
	}
}
