package rtnl

import (
	"errors"
	"fmt"
	"math"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Shape is a token bucket on what leaves a link (tc-tbf(8)).
type Shape struct {
	Rate  uint64 // bytes a second
	Burst uint32 // bytes that may go at once
}

// shapeLatency is how long a byte waits in the queue at most, in microseconds: that of containernetworking's bandwidth plugin.
const shapeLatency = 25_000

// ticksPerUsec are the packet scheduler's ticks in a microsecond: one is 64 ns (PSCHED_SHIFT, include/net/pkt_sched.h).
const ticksPerUsec = 1000.0 / 64

// tbf is the qdisc as that plugin computes it, but that its numbers do not overflow: the kernel counts the burst as the time that
// it takes at the rate, in ticks and 32 bits.
func (s Shape) tbf(index int) *netlink.Tbf {
	ticks := math.Floor(float64(s.Burst)*netlink.TIME_UNITS_PER_SEC/float64(s.Rate)) * ticksPerUsec
	limit := float64(s.Rate)*shapeLatency/netlink.TIME_UNITS_PER_SEC + float64(s.Burst)
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       s.Rate,
		Limit:      uint32(min(limit, math.MaxUint32)),
		Buffer:     uint32(min(ticks, math.MaxUint32)),
	}
}

// SetShape makes a token bucket the root qdisc of the link.
func (c *Conn) SetShape(index int, s Shape) error {
	err := c.QdiscReplace(s.tbf(index))
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("set qdisc tbf: %w; the kernel lacks CONFIG_NET_SCH_TBF", err)
	}
	if err != nil {
		return fmt.Errorf("set qdisc tbf: %w", err)
	}
	return nil
}

// Shaped compares the link's root qdisc with the token bucket that s makes, and says what it is where it differs.
func (c *Conn) Shaped(index int, s Shape) (differs string, err error) {
	qdiscs, err := dump(func() ([]netlink.Qdisc, error) {
		return c.QdiscList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}})
	})
	if err != nil {
		return "", fmt.Errorf("list qdiscs: %w", err)
	}
	want := s.tbf(index)
	for _, q := range qdiscs {
		if q.Attrs().Parent != netlink.HANDLE_ROOT {
			continue
		}
		got, ok := q.(*netlink.Tbf)
		if !ok {
			return q.Type(), nil
		}
		// The kernel keeps the burst in nanoseconds and gives it back in ticks: off by one.
		near := func(a, b uint32) bool { return max(a, b)-min(a, b) <= 1 }
		if got.Rate != want.Rate || got.Limit != want.Limit || !near(got.Buffer, want.Buffer) {
			return fmt.Sprintf("tbf rate %d limit %d buffer %d", got.Rate, got.Limit, got.Buffer), nil
		}
		return "", nil
	}
	return "no qdisc", nil
}
