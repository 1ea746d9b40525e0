package shortcut_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// echoPort is where guests give datagrams back.
const echoPort = 7008

// tries and tryTime are how often a datagram is sent again, and after which time: on a busy machine a socket's buffer may be full.
const (
	tries   = 60
	tryTime = 300 * time.Millisecond
)

// listenUDP opens a socket in the guest.
func (m *machine) listenUDP(port int) *net.UDPConn {
	m.n.t.Helper()
	var conn *net.UDPConn
	testnode.In(m.n.t, m.inside, func() {
		var err error
		conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port})
		check(m.n.t, err)
	})
	m.n.t.Cleanup(func() { _ = conn.Close() }) // some tests close it before
	return conn
}

// echo gives datagrams back until the test ends.
func (m *machine) echo() {
	m.n.t.Helper()
	conn := m.listenUDP(echoPort)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for {
			size, from, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil { // an error is that of a datagram before
				_, _ = conn.WriteToUDPAddrPort(buf[:size], from) // whoever misses it asks again
			}
		}
	}()
	m.n.t.Cleanup(func() {
		check(m.n.t, conn.Close())
		<-done
	})
}

// exchange sends a datagram until it comes back from where it was sent to.
func exchange(conn *net.UDPConn, to netip.AddrPort, payload []byte) error {
	buf := make([]byte, 1<<16)
	for range tries {
		if _, err := conn.WriteToUDPAddrPort(payload, to); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(tryTime)); err != nil {
			return err
		}
		for {
			size, from, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return err
			}
			from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
			if from == to && bytes.Equal(buf[:size], payload) {
				return nil
			}
		}
	}
	return fmt.Errorf("%d bytes to %s: %w", len(payload), to, errNothing)
}

// random gives bytes that are the same in each run.
func random(r *rand.Rand, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// Each size of datagram arrives as it was sent, there and back; those in one frame by the shortcut.
func TestUDPOfEverySize(t *testing.T) {
	for _, mode := range []string{"native", "generic", "off"} {
		t.Run(mode, func(t *testing.T) {
			n := newNode(t)
			a, b := n.boot("a", conf(mode, nil)), n.boot("b", conf(mode, nil))
			a.offload(unix.TUN_F_CSUM) // so that there are partial checksums one way and complete ones the other
			b.echo()
			step := map[string]int{"native": 1, "generic": 37, "off": 211}[mode]
			r := rand.New(rand.NewPCG(5, 5))
			for family, name := range families {
				to, conn := netip.AddrPortFrom(b.addr(family), echoPort), a.listenUDP(0)
				most := mtu - []int{28, 48}[family]
				count := uint64(0)
				ofA, ofB := both(a, b, func() {
					for size := 0; size <= most; size += step {
						check(t, exchange(conn, to, random(r, size)))
						count++
					}
					check(t, exchange(conn, to, random(r, most)))
				})
				if mode == "off" {
					ofA.wantNone(t, name)
					ofB.wantNone(t, name)
				} else if ofA.taken() < count || ofB.taken() < count {
					t.Errorf("%s: of %d datagrams each way %d and %d took the shortcut: %v; %v", name, count, ofA.taken(), ofB.taken(), ofA, ofB)
				}
				conn = a.listenUDP(0) // no verdict of its flow yet
				ofA, ofB = both(a, b, func() {
					for _, size := range []int{most + 1, 4000, 20001} {
						check(t, exchange(conn, to, random(r, size)))
					}
				})
				if mode == "off" {
					continue
				}
				ofA.wantNone(t, name+", fragments", "xdp_pass_fragment")
				ofB.wantNone(t, name+", fragments back", "xdp_pass_fragment")
			}
		})
	}
}

// A pulse is a UDP flow: a datagram at a time goes to a guest that gives it back.
type pulse struct {
	m      *machine
	conn   *net.UDPConn
	echoed atomic.Int64
	stop   chan struct{}
	done   chan struct{}
}

func newPulse(m *machine, to netip.AddrPort) *pulse {
	p := &pulse{m: m, conn: m.listenUDP(0), stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		buf := make([]byte, 16)
		for {
			select {
			case <-p.stop:
				return
			default:
			}
			_, _ = p.conn.WriteToUDPAddrPort([]byte("pulse"), to) // refused or lost: the next one tells
			_ = p.conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
			if _, _, err := p.conn.ReadFromUDPAddrPort(buf); err == nil {
				p.echoed.Add(1)
				time.Sleep(flowPace)
			}
		}
	}()
	m.n.t.Cleanup(p.end)
	return p
}

// end may be called more than once.
func (p *pulse) end() {
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	<-p.done
}

func (p *pulse) goesOn(when string) {
	p.m.n.t.Helper()
	const more = 20
	want := p.echoed.Load() + more
	for deadline := time.Now().Add(patience); p.echoed.Load() < want; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.m.n.t.Fatalf("UDP of %s stands still %s", p.m.id, when)
		}
	}
}

func (p *pulse) stands(when string) {
	p.m.n.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		before := p.echoed.Load()
		time.Sleep(400 * time.Millisecond)
		if p.echoed.Load() == before {
			return
		}
		if time.Now().After(deadline) {
			p.m.n.t.Errorf("UDP of %s goes on %s", p.m.id, when)
			return
		}
	}
}
