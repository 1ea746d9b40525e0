package vm_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/microvm/stream"
	"github.com/tapir-cni/tapir/xdp"
)

var families = []string{"IPv4", "IPv6"}

// offloads are what a guest's card does for its kernel: checksums, and cutting what TCP sends. Off, every frame on the
// TAP is at most one MTU long and has its checksum.
var offloads = []string{"tx-checksum-ip-generic", "tx-tcp-segmentation", "tx-tcp6-segmentation"}

// TestGuests boots a pair of guests for each number of queues and MTU and moves traffic between them and to the node.
// The streams are of 100 MB for two of the pairs, which between them have both queue counts and both MTUs, and shorter
// for the others.
func TestGuests(t *testing.T) {
	for _, tt := range []struct {
		queues, mtu int
		bytes       int64
	}{
		{1, 1500, 100e6},
		{2, 9000, 100e6},
		{1, 9000, 10e6},
		{2, 1500, 10e6},
	} {
		t.Run(fmt.Sprintf("%d queues, MTU %d", tt.queues, tt.mtu), func(t *testing.T) {
			img, pods := addPods(t, tt.queues, tt.mtu, 2)
			serve(t)
			if tt.queues == 1 {
				t.Run("Firecracker's flags", func(t *testing.T) { testFirecracker(t, pods[0]) })
			}
			boot(t, img, pods)
			t.Run("cards", func(t *testing.T) { testCards(t, pods, tt.queues, tt.mtu) })
			t.Run("pings", func(t *testing.T) { testPings(t, pods, tt.mtu) })
			t.Run("TCP with offloads", func(t *testing.T) { testStreams(t, pods, tt.mtu, tt.bytes, true) })
			t.Run("TCP without offloads", func(t *testing.T) { testStreams(t, pods, tt.mtu, tt.bytes, false) })
			if tt.queues == 2 && tt.mtu == 1500 {
				t.Run("forged frames", func(t *testing.T) { testForgeries(t, pods[0], pods[1]) })
			}
		})
	}
}

// testCards wants the guests to have just what the result says, and to use each queue.
func testCards(t *testing.T, pods []*pod, queues, mtu int) {
	for _, p := range pods {
		i := p.vm.Event.Info
		if i.MAC != p.guest.MAC || i.MTU != mtu || i.RxQueues != queues || i.Pairs != queues {
			t.Errorf("%s: want MAC %s, MTU %d, %d queue pairs, got %+v", p.id, p.guest.MAC, mtu, queues, i)
		}
		if len(i.Tentative) > 0 {
			t.Errorf("%s: duplicate address detection has not ended for %q", p.id, i.Tentative)
		}
	}
}

// testPings pings every way that there is, with payloads of one frame and of 8000 bytes. These must be fragmented at MTU
// 1500 and must not at 9000, or the MTU is not what it says.
func testPings(t *testing.T, pods []*pod, mtu int) {
	for family, name := range families {
		for _, way := range []struct {
			from *pod
			to   netip.Addr
			what string
		}{
			{pods[0], pods[1].addr(family), "guest to guest"},
			{pods[1], pods[0].addr(family), "guest to guest, back"},
			{pods[0], nodeAddrs[family], "guest to node"},
			{pods[0], pods[0].guest.Addresses[family].Gateway, "guest to gateway"},
		} {
			for _, size := range []int{56, 8000} {
				before := fragments(t, way.from, family)
				r, err := way.from.vm.Ping(t.Context(), way.to, size, 3, 15*time.Second)
				if err != nil || r.Received != 3 || r.Sent != 3 {
					t.Errorf("%s, %s, %d bytes to %s: %d of %d answered, %v", what(way.what, name), name, size, way.to, r.Received, r.Sent, err)
					continue
				}
				if got, want := fragments(t, way.from, family) > before, size > mtu; got != want {
					t.Errorf("%s, %d bytes at MTU %d: fragmented %v, want %v", what(way.what, name), size, mtu, got, want)
				}
			}
		}
	}
}

func what(way, family string) string { return way + ", " + family }

// fragments is how many the guest's kernel has made.
func fragments(t *testing.T, p *pod, family int) uint64 {
	t.Helper()
	c, err := p.vm.Counters(t.Context())
	check(t, err)
	return c.SNMP[[]string{"Ip.FragCreates", "Ip6FragCreates"}[family]]
}

// testStreams sends n bytes of TCP every way that there is, with the cards' offloads on or off. Both families cross each
// way over the two calls of it.
func testStreams(t *testing.T, pods []*pod, mtu int, n int64, on bool) {
	a, b := pods[0], pods[1]
	for _, p := range pods {
		set := map[string]bool{}
		for _, name := range offloads {
			set[name] = on
		}
		if _, err := p.vm.Offloads(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}
	guests, node := 0, 1 // families
	if !on {
		guests, node = 1, 0
	}
	const limit = 2 * time.Minute
	for i, way := range []struct {
		what   string
		family int
		sender *pod // whose frames are measured; nil: the node
		move   func(seed uint64) (stream.Result, error)
	}{
		{"guest to guest", guests, a, func(seed uint64) (stream.Result, error) {
			return a.vm.Upload(t.Context(), b.addr(guests), seed, n, limit)
		}},
		{"guest to guest, back", guests, b, func(seed uint64) (stream.Result, error) {
			return b.vm.Upload(t.Context(), a.addr(guests), seed, n, limit)
		}},
		{"guest to node", node, a, func(seed uint64) (stream.Result, error) {
			return a.vm.Upload(t.Context(), nodeAddrs[node], seed, n, limit)
		}},
		{"node to guest", node, nil, func(seed uint64) (stream.Result, error) {
			return a.vm.Download(t.Context(), nodeAddrs[node], seed, n, limit)
		}},
	} {
		name := what(way.what, families[way.family])
		before := sent(t, way.sender)
		r, err := way.move(uint64(i + 1))
		if err == nil {
			err = r.Err(n)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		mean := ""
		if way.sender != nil {
			mean = meanFrame(t, name, before, sent(t, way.sender), mtu, on)
		}
		t.Logf("%s: %d MB, %.0f Mbit/s, hash %016x sent and received%s", name, r.Bytes/1e6, r.Mbps(), r.Received, mean)
	}
}

// sent counts what the pod's guest has sent to the host.
func sent(t *testing.T, p *pod) xdp.Counter {
	t.Helper()
	if p == nil {
		return xdp.Counter{}
	}
	return p.counters(t)[xdp.ReasonToHost]
}

// meanFrame wants frames longer than the MTU where the guest's card cuts them, and none where it does not: the control
// that the offloads were what the test says.
func meanFrame(t *testing.T, name string, before, after xdp.Counter, mtu int, on bool) string {
	t.Helper()
	frames, bytes := after.Frames-before.Frames, after.Bytes-before.Bytes
	if frames == 0 {
		t.Errorf("%s: the TAP has counted no frame", name)
		return ""
	}
	const ethernetHeader = 14
	mean := bytes / frames
	if long := mean > uint64(mtu+ethernetHeader); long != on {
		t.Errorf("%s, offloads %v: mean frame %d bytes at MTU %d", name, on, mean, mtu)
	}
	return fmt.Sprintf(", mean frame %d bytes", mean)
}
