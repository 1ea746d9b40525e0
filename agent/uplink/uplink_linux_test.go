package uplink

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// memory is a map of routes that counts how often it is asked; the kernel's is in table_linux_test.go.
type memory struct {
	mu      sync.Mutex
	entries map[netip.Prefix]Entry
	asked   int
	written int
	uplinks map[int]Device
	broken  int // writes that still fail
}

func newMemory(n *node, routes ...Route) *memory {
	a := linkOf(n.t, n.conn).Attrs()
	m := &memory{entries: map[netip.Prefix]Entry{}, uplinks: map[int]Device{a.Index: {a.Index, a.HardwareAddr, a.MTU}}}
	for _, r := range routes {
		m.put(r)
	}
	return m
}

func (m *memory) put(r Route) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries[r.Prefix] = Entry{Route: r}
}

func (m *memory) get(p netip.Prefix) Hop {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entries[p].Hop
}

func (m *memory) open() (Table, error) { return m, nil }
func (m *memory) Close() error         { return nil }

func (m *memory) Routes() (map[netip.Prefix]Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	out := map[netip.Prefix]Entry{}
	for p, e := range m.entries {
		out[p] = e
	}
	return out, nil
}

func (m *memory) Uplinks() (map[int]Device, error) { return m.uplinks, nil }
func (m *memory) DropUplink(int) error             { return nil }

func (m *memory) SetUplink(d Device) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.uplinks = map[int]Device{d.Index: d}
	return nil
}

func (m *memory) SetHop(r Route, h Hop) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.written++; m.broken > 0 {
		m.broken--
		return errors.New("busy")
	}
	if _, ok := m.entries[r.Prefix]; !ok {
		return fs.ErrNotExist
	}
	m.entries[r.Prefix] = Entry{r, h}
	return nil
}

// wantUsable waits until the route leads to the neighbours' MAC.
func (m *memory) wantUsable(t *testing.T, n *node, p netip.Prefix) Hop {
	t.Helper()
	var h Hop
	eventually(t, p.String()+" is usable", func() (bool, any) {
		h = m.get(p)
		return h.Usable && h.MAC.String() == n.lanMAC() && h.Dev == n.up0, h
	})
	return h
}

// wantUnusable waits until the route is not usable, for a reason with that word.
func (m *memory) wantUnusable(t *testing.T, p netip.Prefix, why string) {
	t.Helper()
	eventually(t, p.String()+" is unusable: "+why, func() (bool, any) {
		h := m.get(p)
		return !h.Usable && strings.Contains(h.Why, why), h
	})
}

func TestHopIsWhatTheKernelHas(t *testing.T) {
	n := newNode(t)
	m := newMemory(n, Route{prefix4, hop4}, Route{prefix6, hop6})
	n.run(m.open, pinDir(t))
	for _, p := range []netip.Prefix{prefix4, prefix6} {
		h := m.wantUsable(t, n, p)
		if got, want := h.Source.String(), linkOf(t, n.conn).Attrs().HardwareAddr.String(); got != want || h.MTU != 1400 {
			t.Errorf("%s: want source %s and MTU 1400, got %s and %d", p, want, got, h.MTU)
		}
	}
}

func TestHopFollowsTheNeighbour(t *testing.T) {
	n := newNode(t)
	m := newMemory(n, Route{prefix4, hop4}, Route{prefix6, hop6})
	n.run(m.open, pinDir(t))
	m.wantUsable(t, n, prefix4)
	m.wantUsable(t, n, prefix6)

	// Announced: both learn it at once.
	must(t, n.there.LinkSetHardwareAddr(linkOf(t, n.there), []byte{2, 0, 0, 0, 0, 0xaa}))
	m.wantUsable(t, n, prefix4)

	// It goes without a word. Nothing is sent to it, so that only the upkeep can find it out.
	testnode.In(t, n.lan, func() { must(t, os.WriteFile("/proc/sys/net/ipv4/conf/up0/arp_notify", []byte("0"), 0)) })
	must(t, n.there.LinkSetARPOff(linkOf(t, n.there)))
	m.wantUnusable(t, prefix4, "has not answered")
	m.wantUnusable(t, prefix6, "has not answered")

	// It comes back with another MAC, and a frame on the default path makes the kernel ask.
	must(t, n.there.LinkSetARPOn(linkOf(t, n.there)))
	must(t, n.there.LinkSetHardwareAddr(linkOf(t, n.there), []byte{2, 0, 0, 0, 0, 0xbb}))
	n.send(hop4)
	n.send(hop6)
	m.wantUsable(t, n, prefix4)
	m.wantUsable(t, n, prefix6)
}

// A neighbour that nobody sends to on the default path goes stale again and again; the route stays usable all the time.
func TestHopStaysUsableWhileTheNeighbourIsConfirmed(t *testing.T) {
	n := newNode(t)
	m := newMemory(n, Route{prefix4, hop4})
	n.run(m.open, pinDir(t))
	m.wantUsable(t, n, prefix4)
	states := map[int]bool{}
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if h := m.get(prefix4); !h.Usable {
			t.Fatalf("it became unusable: %s", h.Why)
		}
		e, err := n.conn.Neighbour(n.up0, hop4)
		must(t, err)
		if e != nil {
			states[e.State] = true
		}
	}
	if !states[unix.NUD_REACHABLE] || !states[unix.NUD_DELAY] && !states[unix.NUD_PROBE] {
		t.Errorf("the neighbour's states were %v: it was never confirmed, and the test shows nothing", states)
	}
}

func TestHopFollowsTheDevice(t *testing.T) {
	n := newNode(t)
	m := newMemory(n, Route{prefix4, hop4})
	n.run(m.open, pinDir(t))
	m.wantUsable(t, n, prefix4)

	must(t, n.conn.LinkSetMTU(linkOf(t, n.conn), 1300))
	eventually(t, "the MTU is 1300", func() (bool, any) { h := m.get(prefix4); return h.Usable && h.MTU == 1300, h })

	source := []byte{2, 0, 0, 0, 0, 0xcc}
	must(t, n.conn.LinkSetHardwareAddr(linkOf(t, n.conn), source))
	eventually(t, "the source MAC is the new one", func() (bool, any) {
		h := m.get(prefix4)
		return h.Usable && string(h.Source) == string(source), h
	})

	must(t, n.there.LinkSetDown(linkOf(t, n.there)))
	m.wantUnusable(t, prefix4, "carrier")
	must(t, n.there.LinkSetUp(linkOf(t, n.there)))
	n.send(hop4)
	m.wantUsable(t, n, prefix4)

	must(t, n.conn.LinkSetDown(linkOf(t, n.conn)))
	m.wantUnusable(t, prefix4, "")
	must(t, n.conn.LinkSetUp(linkOf(t, n.conn)))
	n.route("replace", prefix4, hop4) // the kernel drops the routes of a link that goes down
	n.send(hop4)
	m.wantUsable(t, n, prefix4)

	must(t, n.conn.LinkDel(linkOf(t, n.conn)))
	m.wantUnusable(t, prefix4, "")
}

// The shortcut leads where the default path does, or nowhere.
func TestHopFollowsTheRoutingTable(t *testing.T) {
	n := newNode(t)
	m := newMemory(n, Route{prefix4, hop4})
	n.run(m.open, pinDir(t))
	m.wantUsable(t, n, prefix4)
	inside := netip.MustParsePrefix("10.9.1.128/25")
	for _, tt := range []struct {
		name  string
		spoil func()
		why   string
		mend  func()
	}{
		{"another next hop", func() { n.route("replace", prefix4, other4) }, "lead to 10.9.1.0/24 by 172.18.0.3", func() { n.route("replace", prefix4, hop4) }},
		{"no route", func() { n.route("delete", prefix4, hop4) }, "no route", func() { n.route("add", prefix4, hop4) }},
		{"part of it another way", func() { n.route("add", inside, other4) }, "10.9.1.128/25 inside it", func() { n.route("delete", inside, other4) }},
		{"part of it nowhere", func() { n.route("add", inside, netip.Addr{}) }, "10.9.1.128/25 inside it", func() { n.route("delete", inside, netip.Addr{}) }},
		{"an address of the node's own in it", func() { n.local("add", inside.Addr()) }, "10.9.1.128/32 inside it", func() { n.local("delete", inside.Addr()) }},
		{"next hop behind a router", func() { n.route("add", netip.PrefixFrom(hop4, 32), other4) }, "not on a link", func() { n.route("delete", netip.PrefixFrom(hop4, 32), other4) }},
	} {
		tt.spoil()
		m.wantUnusable(t, prefix4, tt.why)
		tt.mend()
		m.wantUsable(t, n, prefix4)
	}
	// Part of it the same way is no other way.
	n.route("add", inside, hop4)
	time.Sleep(100 * time.Millisecond)
	m.wantUsable(t, n, prefix4)
}

func TestRoutesOfTheMapComeAndGo(t *testing.T) {
	n := newNode(t)
	dir := pinDir(t)
	m := newMemory(n)
	pinned := false
	var mu sync.Mutex
	n.run(func() (Table, error) {
		mu.Lock()
		defer mu.Unlock()
		if !pinned {
			return nil, fmt.Errorf("open: %w", fs.ErrNotExist)
		}
		return m, nil
	}, dir)
	time.Sleep(100 * time.Millisecond) // it finds nothing

	m.put(Route{prefix4, hop4})
	mu.Lock()
	pinned = true
	mu.Unlock()
	pin := filepath.Join(dir, "fastpath-1")
	must(t, os.MkdirAll(pin, 0o700))
	m.wantUsable(t, n, prefix4)

	m.put(Route{prefix6, hop6})
	must(t, Touch(pin))
	m.wantUsable(t, n, prefix6)

	m.mu.Lock()
	delete(m.entries, prefix4)
	m.mu.Unlock()
	must(t, Touch(pin))
	m.put(Route{prefix4, hop4})
	must(t, Touch(pin))
	m.wantUsable(t, n, prefix4)

	m.mu.Lock() // as somebody else's write
	e := m.entries[prefix4]
	e.MAC = []byte{2, 0, 0, 0, 0, 1}
	m.entries[prefix4] = e
	m.mu.Unlock()
	must(t, Touch(pin))
	m.wantUsable(t, n, prefix4)
}

func TestEndLeavesNothingUsableAndStartMendsIt(t *testing.T) {
	n := newNode(t)
	m := newMemory(n, Route{prefix4, hop4}, Route{prefix6, hop6})
	stop := n.run(m.open, pinDir(t))
	m.wantUsable(t, n, prefix4)
	m.wantUsable(t, n, prefix6)
	stop()
	for _, p := range []netip.Prefix{prefix4, prefix6} {
		if h := m.get(p); h.Usable {
			t.Errorf("%s is usable, and nobody keeps it right", p)
		}
	}
	n.run(m.open, pinDir(t))
	m.wantUsable(t, n, prefix4)
	m.wantUsable(t, n, prefix6)
}

// A killed tapird leaves routes as they were; the next one puts right what has changed meanwhile.
func TestStartPutsRightWhatAKilledOneLeft(t *testing.T) {
	n := newNode(t)
	m := newMemory(n, Route{prefix4, hop4}, Route{prefix6, hop6})
	for p, r := range m.entries {
		r.Hop = Hop{Usable: true, Dev: n.up0, MAC: []byte{2, 0, 0, 0, 0, 1}, Source: []byte{2, 0, 0, 0, 0, 2}, MTU: 9000}
		m.entries[p] = r
	}
	n.route("delete", prefix6, hop6)
	n.run(m.open, pinDir(t))
	m.wantUsable(t, n, prefix4)
	m.wantUnusable(t, prefix6, "no route")
}

// Nothing is asked or written while nothing changes, nor for what is no route's affair.
func TestNothingHappensWhileNothingChanges(t *testing.T) {
	n := newNode(t)
	m := newMemory(n, Route{prefix4, hop4})
	n.run(m.open, pinDir(t))
	m.wantUsable(t, n, prefix4)
	m.mu.Lock()
	asked, written := m.asked, m.written
	m.mu.Unlock()
	for i := range 50 {
		n.route("replace", netip.MustParsePrefix(fmt.Sprintf("10.8.%d.0/24", i)), hop4)
	}
	time.Sleep(time.Second)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked != asked || m.written != written {
		t.Errorf("want no look at the map and no write, got %d and %d", m.asked-asked, m.written-written)
	}
}

// What could not be written is tried again, though nothing happens meanwhile.
func TestFailedWriteIsTriedAgain(t *testing.T) {
	n := newNode(t)
	m := newMemory(n, Route{prefix4, hop4})
	m.broken = 2
	n.run(m.open, pinDir(t))
	m.wantUsable(t, n, prefix4)
	if m.written < 3 {
		t.Errorf("want two failed writes and a good one, got %d: the test shows nothing", m.written)
	}
}

func TestWatchEndsWithAnErrorWhereItCannotBe(t *testing.T) {
	if _, err := watchPins("/proc/self/comm/pins", func() {}); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("below a file: want an error, got %v", err)
	}
}
