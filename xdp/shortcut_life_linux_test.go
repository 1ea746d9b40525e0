package xdp

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// datagram is a datagram from one guest to another, of the family of like.
func datagram(from, to *guest) []byte {
	return from.to(to.v4, protoUDP, udp(from.v4, to.v4, 1000, 2000, []byte("hello")))
}

// A flag of either end acts at once, on both directions, and the flow that had the default path meanwhile keeps it.
func TestShortcutFlag(t *testing.T) {
	nd := newNode(t, 2, ModeNative)
	a, b := nd.guests[0], nd.guests[1]
	data := func(from, to *guest) []byte {
		return from.to(to.v4, protoTCP, tcp(from.v4, to.v4, 1000, 1000, tcpACK, []byte("data")))
	}
	go1 := func(what string, from, to *guest, reasons ...ShortcutReason) {
		t.Helper()
		f := data(from, to)
		from.wantTook(what, func() { from.reaches(to, what, vnetHdr{}, f, routed(f, to.mac, GatewayMAC)) }, reasons...)
	}
	go1("before", a, b, ShortcutXDPToGuest)
	go1("before, back", b, a, ShortcutXDPToGuest)
	nd.must(nd.s.SetNoShortcut(b.tapIdx, true))
	go1("flagged target", a, b, xdpFlagged, tcReasons+xdpFlagged)
	go1("flagged source", b, a, xdpFlagged, tcReasons+xdpFlagged)
	if no, err := nd.s.NoShortcut(b.tapIdx); !no || err != nil {
		t.Errorf("flag %v, %v; want it set", no, err)
	}
	nd.must(nd.s.SetNoShortcut(b.tapIdx, false))
	// No conntrack runs in this netns without a rule that wants it: the flow is unknown to it, and free.
	go1("unflagged", a, b, ShortcutXDPToGuest)
	nd.nft("table inet t {\n chain f { type filter hook forward priority 0;\n ct state invalid drop\n }\n}")
	nd.must(nd.s.SetNoShortcut(a.tapIdx, true))
	go1("flagged, tracked", a, b, xdpFlagged, tcReasons+xdpFlagged)
	go1("flagged, tracked, back", b, a, xdpFlagged, tcReasons+xdpFlagged)
	nd.must(nd.s.SetNoShortcut(a.tapIdx, false))
	go1("unflagged, but tracked", a, b, xdpConntrack, tcReasons+xdpConntrack)
	go1("unflagged, but tracked, back", b, a, xdpConntrack, tcReasons+xdpConntrack)
}

// Off and on again under a long flow, where the host drops what conntrack calls invalid.
func TestShortcutOffAndOnUnderAFlow(t *testing.T) {
	nd := newNode(t, 2, ModeNative)
	a, b := nd.guests[0], nd.guests[1]
	nd.nft("table inet t {\n chain f { type filter hook forward priority 0;\n ct state invalid drop\n }\n}")
	seq := uint32(1)
	send := func(what string, reasons ...ShortcutReason) {
		t.Helper()
		l4 := tcp(a.v4, b.v4, 1000, 1000, tcpACK, make([]byte, 1000))
		l4[4], l4[5], l4[6], l4[7] = byte(seq>>24), byte(seq>>16), byte(seq>>8), byte(seq)
		seq += 1000
		copy(l4[16:], []byte{0, 0})
		copy(l4[16:], checksum(pseudo4(a.v4, b.v4, protoTCP, len(l4)), l4))
		f := a.to(b.v4, protoTCP, l4)
		run := func() { a.reaches(b, what, vnetHdr{}, f, routed(f, b.mac, GatewayMAC)) }
		if reasons == nil {
			run()
			return
		}
		a.wantTook(what, run, reasons...)
	}
	send("on", ShortcutXDPToGuest)
	seq += 40 << 20 // what went by the shortcut in the meantime
	a.leave()
	send("off")
	a.join(ModeNative)
	for range 3 {
		send("on again: conntrack follows it now", xdpConntrack, tcReasons+xdpConntrack)
	}
	a.leave()
	send("off again")
}

// An address that another guest has next reaches that one alone, whatever was left behind.
func TestShortcutReusedAddress(t *testing.T) {
	nd := newNode(t, 2, ModeNative)
	a, old := nd.guests[0], nd.guests[1]
	f := datagram(a, old)
	a.wantTook("before", func() { a.reaches(old, "before", vnetHdr{}, f, routed(f, old.mac, GatewayMAC)) }, ShortcutXDPToGuest)

	// A guest without the shortcut gets the address: its ADD drops what a killed DEL left.
	nd.must(DropStale(nd.s.base, old.part.Addresses))
	a.wantTook("dropped", func() { a.tap.send(vnetHdr{}, f); old.tap.receive(patience) }, xdpNoTarget, tcReasons+xdpNoTarget)

	// One with it: the last to publish has it, and the late DEL of the old one does not take it away.
	fresh := nd.addGuest(2, ModeNative)
	fresh.part.Addresses = append(fresh.part.Addresses, old.part.Addresses...)
	nd.must(nd.s.Join(fresh.part))
	nd.must(nd.s.Publish(fresh.tapIdx))
	nd.must(nd.s.Withdraw(old.tapIdx, old.v4, old.v6))
	a.wantTook("reused", func() { a.reaches(fresh, "reused", vnetHdr{}, f, routed(f, fresh.mac, GatewayMAC)) }, ShortcutXDPToGuest)
	old.tap.wantNothing("the old guest")
	published, err := nd.s.Published()
	if err != nil || published[old.v4] != fresh.tapIdx {
		t.Errorf("published %v, %v; want %s at the new guest", published, err, old.v4)
	}
}

func TestShortcutLeavesNoEntry(t *testing.T) {
	nd := newNode(t, 2, ModeNative)
	for _, g := range nd.guests {
		g.leave()
		g.leave() // twice is success
	}
	parts, err := nd.s.Participants()
	published, err2 := nd.s.Published()
	if err != nil || err2 != nil || len(parts)+len(published) != 0 {
		t.Errorf("participants %v, published %v, %v, %v; want none", parts, published, err, err2)
	}
	if _, err := nd.s.ShortcutCounters(nd.guests[0].tapIdx); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("counters: %v, want not exist", err)
	}
	if has, err := nd.s.HasDevice(nd.guests[0].tapIdx); has || err != nil {
		t.Errorf("device %v, %v; want none", has, err)
	}
	testnode.In(t, nd.guests[0].ns, func() {
		if d, err := nd.s.TAPState(int(nd.guests[0].tapIdx)); err != nil || d.Mode != ModeOff {
			t.Errorf("state %+v, %v; want off", d, err)
		}
	})
}

// passProgram is an XDP program of somebody else.
func passProgram(t testing.TB, name string) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = prog.Close() })
	return prog
}

// Somebody else's program stays, by whatever name.
func TestShortcutLeavesForeignPrograms(t *testing.T) {
	for _, name := range []string{"theirs", shortcutProgGuestXdp} {
		t.Run(name, func(t *testing.T) {
			nd := newNode(t, 1, ModeOff)
			g := nd.guests[0]
			prog := passProgram(t, name)
			id, err := programID(prog)
			nd.must(err)
			testnode.In(t, g.ns, func() {
				nd.must(writeHook(int(g.tapIdx), prog.FD(), xdpDrvMode, nil))
				for _, m := range []Mode{ModeAuto, ModeNative, ModeGeneric} {
					_, err := nd.s.AttachTAP(int(g.tapIdx), m)
					var foreign *ForeignProgramError
					if !errors.As(err, &foreign) || foreign.Name != name || foreign.ID != uint32(id) {
						t.Errorf("%s: %v, want an error that names it", m, err)
					}
				}
				nd.must(nd.s.DetachTAP(int(g.tapIdx)))
				if changed, err := nd.s.Upgrade(int(g.tapIdx)); changed || err != nil {
					t.Errorf("upgraded %v, %v", changed, err)
				}
				d, err := nd.s.TAPState(int(g.tapIdx))
				if err != nil || !d.Foreign || d.ID != uint32(id) || d.Mode != ModeNative {
					t.Errorf("state %+v, %v; want the foreign program as it was", d, err)
				}
			})
		})
	}
}

func TestShortcutModes(t *testing.T) {
	nd := newNode(t, 1, ModeOff)
	g := nd.guests[0]
	testnode.In(t, g.ns, func() {
		for _, step := range []struct{ mode, want Mode }{
			{ModeNative, ModeNative}, {ModeNative, ModeNative}, {ModeGeneric, ModeGeneric}, {ModeAuto, ModeNative},
		} {
			got, err := nd.s.AttachTAP(int(g.tapIdx), step.mode)
			if err != nil || got != step.want {
				t.Fatalf("attach %s: %s, %v; want %s", step.mode, got, err, step.want)
			}
			d, err := nd.s.TAPState(int(g.tapIdx))
			if err != nil || d.Mode != step.want || d.Foreign || !d.Current || d.Version != nd.s.Digest() {
				t.Errorf("state %+v, %v; want %s of this version", d, err, step.want)
			}
		}
		if _, err := nd.s.AttachTAP(int(g.tapIdx), ModeOff); err == nil {
			t.Error("attached in mode off")
		}
		if _, err := nd.s.AttachTAP(99, ModeNative); !errors.Is(err, unix.ENODEV) {
			t.Errorf("no device: %v, want ENODEV", err)
		}
		nd.must(nd.s.DetachTAP(99))
	})
}

// otherVersion pins programs that differ from this binary's in nothing but their identity, and gives a handle on them.
func otherVersion(t testing.TB, s *Shortcut, digest string) *Shortcut {
	t.Helper()
	spec, err := loadShortcut()
	if err != nil {
		t.Fatal(err)
	}
	shared, err := openSharedMaps(s)
	if err != nil {
		t.Fatal(err)
	}
	defer closeMaps(shared)
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		t.Fatal(err)
	}
	defer coll.Close()
	other := newShortcut(s.base, digest, s.layout)
	programs := map[string]pinner{}
	for _, name := range fastpathPrograms {
		programs[name] = coll.Programs[name]
	}
	if err := pinAll(s.base+"/tmp-other", other.programsDir(), programs); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	return other
}

// Another version's programs are replaced under traffic and no frame is lost; both versions share the maps.
func TestShortcutUpgradeUnderTraffic(t *testing.T) {
	for _, mode := range []Mode{ModeNative, ModeGeneric} {
		t.Run(string(mode), func(t *testing.T) {
			nd := newNode(t, 0, ModeOff)
			fresh := nd.s
			old := otherVersion(t, fresh, "0123456789abcdef")
			nd.s = old
			a, b := nd.addGuest(0, mode), nd.addGuest(1, mode)
			testnode.In(t, a.ns, func() {
				d, err := fresh.TAPState(int(a.tapIdx))
				if err != nil || d.Foreign || d.Current || d.Version != old.Digest() {
					t.Fatalf("state %+v, %v; want the other version", d, err)
				}
			})
			loss := newStream(t, a, b)
			for i := range 40 {
				to := []*Shortcut{fresh, old}[i%2]
				testnode.In(t, a.ns, func() {
					if changed, err := to.Upgrade(int(a.tapIdx)); !changed || err != nil {
						t.Fatalf("upgrade: %v, %v", changed, err)
					}
				})
				testnode.In(t, a.host, func() {
					if changed, err := to.UpgradeHost(int(a.hostIdx), a.method); !changed || err != nil {
						t.Fatalf("upgrade of the host end: %v, %v", changed, err)
					}
				})
			}
			sent, received := loss.end()
			if sent == 0 || sent != received {
				t.Errorf("%d frames sent, %d received", sent, received)
			}
			if got := a.paths()[ShortcutXDPToGuest]; got != sent {
				t.Errorf("%d of %d frames took the shortcut", got, sent)
			}
			testnode.In(t, a.ns, func() {
				if changed, err := old.Upgrade(int(a.tapIdx)); changed || err != nil {
					t.Errorf("upgrade to what it is: %v, %v; want no change", changed, err)
				}
			})
		})
	}
}

// stream is paced traffic between two guests, so slow that the reader loses nothing of its own.
type stream struct {
	sent, received atomic.Uint64
	stop           chan struct{}
	wg             sync.WaitGroup
}

func newStream(t testing.TB, from, to *guest) *stream {
	s := &stream{stop: make(chan struct{})}
	f := join(vnetHdr{}.bytes(), datagram(from, to))
	s.wg.Add(2)
	go func() {
		defer s.wg.Done()
		for {
			select {
			case <-s.stop:
				return
			default:
			}
			// A window, since a frame is lost where the reader's ring is full.
			if s.sent.Load()-s.received.Load() > 200 {
				time.Sleep(100 * time.Microsecond)
				continue
			}
			if _, err := unix.Write(from.tap.fd, f); err != nil {
				t.Errorf("send: %v", err)
				return
			}
			s.sent.Add(1)
		}
	}()
	go func() {
		defer s.wg.Done()
		for {
			if _, _, ok := to.tap.receive(500 * time.Millisecond); ok {
				s.received.Add(1)
				continue
			}
			select {
			case <-s.stop:
				return
			default:
			}
		}
	}()
	return s
}

// end stops sending, waits for what is on the way and gives the counts.
func (s *stream) end() (sent, received uint64) {
	close(s.stop)
	s.wg.Wait()
	return s.sent.Load(), s.received.Load()
}

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
