package xdp

import (
	"errors"
	"io/fs"
	"testing"

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
