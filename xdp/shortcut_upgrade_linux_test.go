package xdp

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/testnode"
)

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
