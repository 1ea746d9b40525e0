package xdp

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/tapir-cni/tapir/internal/testnode"
)

func mapID(t testing.TB, s *Shortcut, name string) ebpf.MapID {
	t.Helper()
	m, err := s.anyMap(name)
	if err != nil {
		t.Fatal(err)
	}
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

func TestEnsureShortcutTwiceIsOne(t *testing.T) {
	s := newShortcutAt(t)
	again, err := EnsureShortcut(s.base)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if a, b := mapID(t, s, shortcutMapPods), mapID(t, again, shortcutMapPods); a != b {
		t.Errorf("maps %d and %d, want one", a, b)
	}
	if err := HaveShortcut(); err != nil {
		t.Errorf("it is loaded, and the probe says %v", err)
	}
	got, err := s.Settings()
	if want := DefaultSettings(); err != nil || len(got.TunnelPorts) != len(want.TunnelPorts) || got.UDPLifetime != want.UDPLifetime {
		t.Errorf("settings %+v, %v; want %+v", got, err, want)
	}
	layouts, err := Layouts(s.base)
	if err != nil || len(layouts) != 1 || layouts[0] != s.Layout() {
		t.Errorf("layouts %q, %v; want %q", layouts, err, s.Layout())
	}
}

func TestOpenShortcutBeforeEnsure(t *testing.T) {
	testnode.Require(t, "root", "bpf")
	if _, err := OpenShortcut(filepath.Join(DefaultDir, "nowhere")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want not exist", err)
	}
	if err := DropStale(filepath.Join(DefaultDir, "nowhere"), peerParticipant().Addresses); err != nil {
		t.Errorf("drop stale entries where nothing is pinned: %v", err)
	}
	if layouts, err := Layouts(filepath.Join(DefaultDir, "nowhere")); len(layouts) != 0 || err != nil {
		t.Errorf("layouts %q, %v", layouts, err)
	}
}

// Processes that come at once load one set of programs; what a killed one left is taken away.
func TestEnsureShortcutAtOnce(t *testing.T) {
	testnode.Require(t, "root", "bpf", "btf")
	dir := testDir(t)
	if err := mountFor(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, tempPrefix+"1"), 0o700); err != nil {
		t.Fatal(err)
	}
	const n = 5
	outs := make(chan string, n)
	for range n {
		go func() {
			out, err := helperCommand("ensure-shortcut", dir).CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
			outs <- string(out)
		}()
	}
	first := <-outs
	for range n - 1 {
		if out := <-outs; out != first {
			t.Errorf("program %q and %q, want one", first, out)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, tempPrefix+"*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left %q, %v", left, err)
	}
}

// Pins that somebody removed come back with the maps that the running attachments use.
func TestEnsureShortcutRepairs(t *testing.T) {
	for _, lost := range []string{shortcutMapPods, shortcutMapAttachments, shortcutProgGuestXdp, "all programs", "all maps but one", "all maps"} {
		t.Run(lost, func(t *testing.T) {
			s := newShortcutAt(t)
			join2(t, s, peerParticipant())
			want := mapID(t, s, shortcutMapPods)
			for _, path := range s.pins() {
				program := strings.HasPrefix(path, s.programsDir())
				gone := filepath.Base(path) == lost || lost == "all programs" && program ||
					lost == "all maps but one" && !program && filepath.Base(path) != shortcutMapSettings || lost == "all maps" && !program
				if !gone {
					continue
				}
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := OpenShortcut(s.base); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("open: %v, want not exist", err)
			}
			again, err := EnsureShortcut(s.base)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if got := mapID(t, again, shortcutMapPods); got != want {
				t.Errorf("map pods is %d, want %d as before", got, want)
			}
			published, err := again.Published()
			if err != nil || len(published) != 2 {
				t.Errorf("published %v, %v; want both addresses", published, err)
			}
		})
	}
}

// A binary of another layout finds the entries of this one's attachments, to take them out.
func TestOpenLayout(t *testing.T) {
	s := newShortcutAt(t)
	join2(t, s, peerParticipant())
	other, err := OpenLayout(s.base, s.Layout())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Withdraw(peerTAP, peer4); err != nil {
		t.Fatal(err)
	}
	if published, err := s.Published(); err != nil || len(published) != 0 {
		t.Errorf("published %v, %v; want none", published, err)
	}
	if err := other.Leave(peerTAP, peerHost); err != nil {
		t.Fatal(err)
	}
	if parts, err := s.Participants(); err != nil || len(parts) != 0 {
		t.Errorf("participants %v, %v; want none", parts, err)
	}
	for _, bad := range []string{"", "../x", "0123"} {
		if o, err := OpenLayout(s.base, bad); err == nil {
			t.Errorf("opened layout %q", bad)
			_ = o.Close()
		}
	}
}

// Methods after Close, and after the pins are gone: errors for what makes, success for what removes.
func TestShortcutWithoutPins(t *testing.T) {
	s := newShortcutAt(t)
	fresh, err := OpenShortcut(s.base)
	if err != nil {
		t.Fatal(err)
	}
	if err := Remove(s.base); err != nil {
		t.Fatal(err)
	}
	if err := fresh.Join(peerParticipant()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("join: %v, want not exist", err)
	}
	for what, err := range map[string]error{"withdraw": fresh.Withdraw(peerTAP, peer4), "leave": fresh.Leave(peerTAP, peerHost)} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := fresh.Close(); err != nil {
		t.Error(err)
	}
	if _, err := fresh.Participants(); !errors.Is(err, errClosed) {
		t.Errorf("closed: %v, want %v", err, errClosed)
	}
}

func TestParticipantEncode(t *testing.T) {
	good := peerParticipant()
	v, err := good.encode()
	if err != nil {
		t.Fatal(err)
	}
	got := v.decode()
	if got.TAP != good.TAP || got.Host != good.Host || got.HostNSID != good.HostNSID || got.MAC.String() != good.MAC.String() ||
		got.GatewayMAC.String() != GatewayMAC.String() || got.MTU != good.MTU || !got.SpoofCheck || got.NoShortcut ||
		got.Counters != good.Counters || len(got.Addresses) != 2 || got.Addresses[0].Addr() != peer4 || got.Addresses[1].Addr() != peer6 {
		t.Errorf("decoded %+v, want %+v", got, good)
	}
	for name, change := range map[string]func(*Participant){
		"no TAP":       func(p *Participant) { p.TAP = 0 },
		"no host end":  func(p *Participant) { p.Host = 0 },
		"no counters":  func(p *Participant) { p.Counters = 0 },
		"small MTU":    func(p *Participant) { p.MTU = 67 },
		"short MAC":    func(p *Participant) { p.MAC = p.MAC[:5] },
		"group MAC":    func(p *Participant) { p.MAC = broadcast },
		"no host":      func(p *Participant) { p.Addresses = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")} },
		"IPv4 as IPv6": func(p *Participant) { p.Addresses = []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.1/128")} },
		"too many":     func(p *Participant) { p.Addresses = slices.Repeat(p.Addresses, MaxAddresses+1) },
	} {
		p := peerParticipant()
		change(&p)
		if _, err := p.encode(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
