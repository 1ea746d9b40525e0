package shortcut_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// gatewayMAC is that of every guest's gateway, see ARCHITECTURE.md.
var gatewayMAC = []byte{0x02, 0x74, 0x61, 0x70, 0x69, 0x72}

// loadPort is where the frames of a load go.
const loadPort = 9999

// A tapEnd is a pod whose TAP the test itself reads and writes.
type tapEnd struct {
	*pod
	queue *guest.Queue
}

// bare attaches a pod without a guest.
func (n *node) bare(id string, c object) *tapEnd {
	n.t.Helper()
	return openEnd(n.pod(id, c))
}

func openEnd(p *pod) *tapEnd {
	t := p.n.t
	t.Helper()
	q, err := guest.Open(p.netns, p.result.tap, guest.OffloadNone)
	check(t, err)
	t.Cleanup(func() { _ = q.Close() }) // a test may have closed it
	return &tapEnd{p, q}
}

// frame is a small UDP frame from a pod.
func (e *tapEnd) frame(to netip.Addr, port uint16) []byte {
	return guest.UDP{
		ToMAC: gatewayMAC, FromMAC: e.result.mac, Size: guest.MinUDP,
		From: netip.AddrPortFrom(e.result.address[ipv4].Addr(), port), To: netip.AddrPortFrom(to, loadPort),
	}.Frame()
}

// A load is frames that one pod writes to another's TAP, about 100,000 a second, while they are counted at both ends.
type load struct {
	from, to       *tapEnd
	port           uint16 // the first that it sends from
	sent, received atomic.Uint64
	refused        atomic.Uint64 // EIO or another error that ends a VMM
	stop           atomic.Bool
	readerStop     atomic.Bool
	writer, reader chan struct{}
	dropped        uint64 // before
	begin          time.Time
}

// startLoad starts one of new flows, and waits until frames take the shortcut.
func startLoad(from, to *tapEnd) *load {
	from.n.t.Helper()
	l := &load{from: from, to: to, port: uint16(20000 + loads.Add(1)*loadFlows), writer: make(chan struct{}), reader: make(chan struct{}), begin: time.Now()}
	// A test that ends early leaves nobody at queues that are closed then.
	from.n.t.Cleanup(func() {
		l.stop.Store(true)
		l.readerStop.Store(true)
		<-l.writer
		<-l.reader
	})
	l.dropped = l.drops()
	go l.read()
	before := from.row().Taken
	go l.write()
	testnode.Eventually(from.n.t, patience, func() error {
		if r := from.row(); r.Taken <= before {
			return fmt.Errorf("no frame takes the shortcut: %v", r.Counters)
		}
		return nil
	})
	return l
}

// loads counts the loads, so that none has flows that the host's conntrack knows.
var loads atomic.Uint32

const loadFlows = 4

// write writes a burst each millisecond.
func (l *load) write() {
	defer close(l.writer)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const burst = 100
	var frames [loadFlows][]byte
	for i := range frames {
		frames[i] = l.from.frame(l.to.result.address[ipv4].Addr(), l.port+uint16(i))
	}
	for next := time.Now(); !l.stop.Load(); {
		for i := range burst {
			switch errno := l.from.queue.Write(frames[i%loadFlows]); errno {
			case 0:
				l.sent.Add(1)
			case unix.EAGAIN, unix.EINTR, unix.ENOBUFS:
			default:
				l.refused.Add(1)
			}
		}
		next = next.Add(time.Millisecond)
		if late := time.Since(next); late > 100*time.Millisecond {
			next = time.Now() // the machine is busy: no burst to make up for it
		}
		time.Sleep(time.Until(next))
	}
}

func (l *load) read() {
	defer close(l.reader)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	buf := make([]byte, guest.MaxFrame)
	for !l.readerStop.Load() {
		size, errno := l.to.queue.Read(buf)
		switch {
		case errno == 0 && guest.IsUDP(buf[:size], loadPort):
			l.received.Add(1)
		case errno == unix.EAGAIN:
			_, _ = l.to.queue.Wait(20 * time.Millisecond)
		}
	}
}

// drops are what the kernel and the programs have counted on the way.
func (l *load) drops() (frames uint64) {
	t := l.from.n.t
	t.Helper()
	for _, ns := range []string{l.from.netns, l.to.netns, l.from.n.netns} {
		testnode.In(t, ns, func() {
			links, err := netlink.LinkList()
			check(t, err)
			for _, link := range links {
				s := link.Attrs().Statistics
				frames += s.RxDropped + s.TxDropped
			}
		})
	}
	return frames
}

// ends ends the load. What was sent and not received must have been counted as dropped.
func (l *load) ends(t *testing.T) {
	t.Helper()
	l.stop.Store(true)
	<-l.writer
	took := time.Since(l.begin)
	// What is under way arrives before long: the reader goes on until nothing does.
	for last := l.received.Load(); ; {
		time.Sleep(150 * time.Millisecond)
		now := l.received.Load()
		if now == last {
			break
		}
		last = now
	}
	l.readerStop.Store(true)
	<-l.reader
	sent, received, dropped := l.sent.Load(), l.received.Load(), l.drops()-l.dropped
	t.Logf("%d frames, %.0f a second, %d received, %d dropped", sent, float64(sent)/took.Seconds(), received, dropped)
	if sent != received+dropped {
		t.Errorf("of %d frames %d were received and %d counted as dropped: %d are missing", sent, received, dropped, int64(sent-received-dropped))
	}
	if n := l.refused.Load(); n > 0 {
		t.Errorf("%d writes gave an error that ends a VMM", n)
	}
	if received < 1000 || dropped > sent/2 {
		t.Errorf("%d of %d frames arrived: the test shows nothing", received, sent)
	}
}

// Whatever is done to the shortcut meanwhile, each frame that was sent is received or counted as dropped.
func TestNoFrameIsLost(t *testing.T) {
	other := otherVersion(t)
	n := newNode(t)
	c := conf("native", object{"txQueueLen": 16384})
	a, b := n.bare("a", c), n.bare("b", c)
	xdp := func(args ...string) func(*testing.T) {
		return func(*testing.T) { n.ctl(append([]string{"xdp"}, args...)...) }
	}
	own := a.row().Version
	for _, tt := range []struct {
		name string
		do   []func(*testing.T)
	}{
		{"control", []func(*testing.T){func(*testing.T) { time.Sleep(400 * time.Millisecond) }}},
		{"tapird comes and goes", []func(*testing.T){func(t *testing.T) { n.tapird().stop() }}},
		{"others come and go", []func(*testing.T){func(t *testing.T) {
			other := n.sandbox("other", c)
			other.add()
			other.del()
		}}},
		{"flag", []func(*testing.T){xdp("flag", "a"), xdp("unflag", "a"), xdp("flag", "b"), xdp("unflag", "b")}},
		{"modes", []func(*testing.T){xdp("on", "a", "--mode", "generic"), xdp("on", "a", "--mode", "native"), xdp("on", "a", "--mode", "auto")}},
		{"off and on", []func(*testing.T){xdp("off", "a"), xdp("on", "a"), xdp("off", "b"), xdp("on", "b")}},
		{"upgrade and back", []func(*testing.T){
			func(t *testing.T) {
				if _, err := n.run(nil, nil, other(), "xdp", "upgrade"); err != nil {
					t.Error(err)
				}
				if is := a.row().Version; is == own || is == "" {
					t.Errorf("after the upgrade the TAP has version %q, as before", is)
				}
			},
			xdp("upgrade"),
			func(t *testing.T) {
				if is := a.row().Version; is != own {
					t.Errorf("after the way back the TAP has version %q, want %q", is, own)
				}
			},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := startLoad(a, b)
			for range 2 {
				for _, do := range tt.do {
					do(t)
				}
			}
			l.ends(t)
		})
	}
}
