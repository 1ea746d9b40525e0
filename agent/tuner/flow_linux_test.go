package tuner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/tapir-cni/tapir/xdp"
	"golang.org/x/sys/unix"
)

// A way is one direction of numbered frames. A number that comes twice is as wrong as one that does not come.
type way struct {
	sent, received, twice atomic.Int64
	mu                    sync.Mutex
	seen                  map[uint32]bool
}

func (w *way) take(n uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[n] {
		w.twice.Add(1)
		return
	}
	w.seen[n] = true
	w.received.Add(1)
}

// A balance is a pod and a socket of the node that send each other numbered UDP datagrams, some thousand a second each way.
type balance struct {
	t        testing.TB
	p        *pod
	socket   *net.UDPConn
	guest    netip.AddrPort
	up, down way

	q           *tap.Queues
	stopReading func()
	sendUp      atomic.Bool
	sendDown    atomic.Bool
	errnos      sync.Map
	mu          sync.RWMutex // write-held while the VMM is away
	began       map[string]int64
}

const (
	guestPort = 4000
	hostPort  = 9
	bufferMax = 1 << 26
)

func newBalance(t testing.TB, p *pod) *balance {
	t.Helper()
	b := &balance{t: t, p: p, guest: netip.AddrPortFrom(p.address(), guestPort)}
	b.up.seen, b.down.seen = map[uint32]bool{}, map[uint32]bool{}
	var err error
	b.socket, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 9, 0, 1), Port: hostPort})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.socket.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var set error
	controlErr := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferMax) })
	if err = errors.Join(controlErr, set); err != nil {
		t.Fatal(err)
	}
	var parts sync.WaitGroup
	parts.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, _, err := b.socket.ReadFromUDP(buf)
			if err != nil {
				return // closed
			}
			if n >= 4 {
				b.up.take(binary.BigEndian.Uint32(buf))
			}
		}
	})
	b.began = b.drops()
	var done atomic.Bool
	parts.Go(func() { b.sender(&done, &b.sendUp, b.writeUp) })
	parts.Go(func() { b.sender(&done, &b.sendDown, b.writeDown) })
	t.Cleanup(func() {
		done.Store(true)
		_ = b.socket.Close()
		parts.Wait()
		if b.q != nil {
			b.stopReading()
		}
	})
	return b
}

// burst frames are sent each pause.
const (
	burst      = 10
	burstPause = 2 * time.Millisecond
)

func (b *balance) sender(done, on *atomic.Bool, one func()) {
	for !done.Load() {
		b.mu.RLock()
		for range burst {
			if on.Load() {
				one()
			}
		}
		b.mu.RUnlock()
		time.Sleep(burstPause)
	}
}

// writeUp is the guest's: the VMM writes to both queues in turn.
func (b *balance) writeUp() {
	n := b.up.sent.Load()
	if b.q == nil || len(b.q.FDs()) == 0 {
		return // a failed test closes the queues
	}
	f := b.p.frame(tiny)
	guest.PutSequence(f, uint32(n))
	if _, err := unix.Write(b.q.FDs()[int(n)%len(b.q.FDs())], f); err != nil {
		b.errnos.Store(fmt.Sprintf("write of the VMM: %v", err), true)
		return
	}
	b.up.sent.Add(1)
}

func (b *balance) writeDown() {
	n := b.down.sent.Load()
	if _, err := b.socket.WriteToUDPAddrPort(binary.BigEndian.AppendUint32(make([]byte, 0, 64), uint32(n))[:60:64], b.guest); err != nil {
		b.errnos.Store(fmt.Sprintf("send of the node: %v", err), true)
		return
	}
	b.down.sent.Add(1)
}

// attach starts a VMM, which reads all that comes.
func (b *balance) attach() {
	b.t.Helper()
	q := b.p.vmm(2, true)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for _, fd := range q.FDs() {
		readers.Go(func() {
			buf := make([]byte, 1<<16)
			for {
				n, err := unix.Read(fd, buf)
				switch {
				case err == nil:
					if guest.IsUDP(buf[:n], guestPort) {
						b.down.take(guest.Sequence(buf[:n]))
					}
				case errors.Is(err, unix.EAGAIN):
					select {
					case <-stop:
						return
					default:
						poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
						_, _ = unix.Poll(poll, 10) // a signal is as good as a timeout
					}
				default:
					b.errnos.Store(fmt.Sprintf("read of the VMM: %v", err), true)
					return
				}
			}
		})
	}
	b.q = q
	b.stopReading = sync.OnceFunc(func() { close(stop); readers.Wait() })
}

// detach ends the VMM. What it has not read by then is lost with its queues, and nobody counts that: it reads all first.
func (b *balance) detach() {
	b.t.Helper()
	b.pause()
	b.stopReading()
	if err := b.q.Close(); err != nil {
		b.t.Fatal(err)
	}
	b.q = nil
}

func (b *balance) resume() { b.sendUp.Store(true); b.sendDown.Store(true) }

// pause stops both senders and waits until each frame is accounted for.
func (b *balance) pause() {
	b.t.Helper()
	b.sendUp.Store(false)
	b.sendDown.Store(false)
	b.mu.Lock() // no burst is under way
	defer b.mu.Unlock()
	b.settled(0)
}

// settled waits until sent − received − counted drops is missing, of both ways together: the drops of a device are not of one way.
func (b *balance) settled(missing int64) {
	b.t.Helper()
	testnode.Eventually(b.t, patience, func() error {
		now := b.drops()
		var dropped int64
		var said []string
		for name, n := range now {
			if d := n - b.began[name]; d != 0 {
				dropped += d
				said = append(said, fmt.Sprintf("%s %d", name, d))
			}
		}
		up, down := b.up.sent.Load()-b.up.received.Load(), b.down.sent.Load()-b.down.received.Load()
		if up+down-dropped != missing || b.up.twice.Load()+b.down.twice.Load() != 0 {
			return fmt.Errorf("sent − received is %d from the guest and %d to it, twice came %d and %d, dropped were %v; want %d frames unaccounted for",
				up, down, b.up.twice.Load(), b.down.twice.Load(), said, missing)
		}
		return nil
	})
}

// dropped is how many more drops of a kind there are than at the beginning.
func (b *balance) dropped(name string) int64 { return b.drops()[name] - b.began[name] }

// drops are all that the kernel and the programs counted: of the devices, of the reasons, of the socket.
func (b *balance) drops() map[string]int64 {
	b.t.Helper()
	all := map[string]int64{}
	a := b.p.attachment()
	for _, where := range []struct {
		name string
		in   func(func())
	}{
		{a.TAP.Name, func(f func()) { testnode.In(b.t, b.p.netns, f) }},
		{a.Pod.Name, func(f func()) { testnode.In(b.t, b.p.netns, f) }},
		{a.Host.Name, func(f func()) { f() }},
	} {
		where.in(func() { deviceDrops(b.t, where.name, all) })
	}
	programs, err := xdp.Open(xdp.DefaultDir)
	if err != nil {
		b.t.Fatal(err)
	}
	defer programs.Close()
	counters, err := programs.Counters(uint32(a.TAP.Index))
	if err != nil {
		b.t.Fatal(err)
	}
	for reason, c := range counters {
		if reason.Dropped() {
			all["reason "+reason.String()] = int64(c.Frames)
		}
	}
	all["socket"] = socketDrops(b.t)
	return all
}

// deviceDrops adds what a device of the calling thread's netns dropped, by /proc/net/dev: receive drops and transmit drops.
func deviceDrops(t testing.TB, name string, into map[string]int64) {
	t.Helper()
	data, err := os.ReadFile("/proc/thread-self/net/dev")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(strings.ReplaceAll(line, ":", " "))
		if len(f) < 13 || f[0] != name {
			continue
		}
		for what, column := range map[string]int{" rx": 4, " tx": 12} {
			n, err := strconv.ParseInt(f[column], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			into[name+what] = n
		}
		return
	}
	t.Fatalf("no device %s in %s", name, data)
}

// socketDrops is the last column of the socket on hostPort.
func socketDrops(t testing.TB) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/thread-self/net/udp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) > 12 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", hostPort)) {
			n, err := strconv.ParseInt(f[len(f)-1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no socket on port %d in %s", hostPort, data)
	return 0
}

func (p *pod) attachment() (a state.Attachment) {
	p.t.Helper()
	p.record(func(found *state.Attachment) { a = *found })
	return a
}

func (p *pod) address() netip.Addr { return p.attachment().Addresses[0].Prefix.Addr() }
