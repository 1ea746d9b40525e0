package netdevgenl

import (
	"fmt"

	"github.com/mdlayher/netlink"
)

// Attributes of include/uapi/linux/netdev.h.
const (
	poolID            = 1
	poolIfIndex       = 2
	poolNAPI          = 3
	poolInflight      = 4
	poolInflightBytes = 5

	poolStatsInfo  = 1
	poolStatsFirst = 8

	queueID      = 1
	queueIfIndex = 2
	queueType    = 3
	queueNAPI    = 4

	napiIfIndex = 1
	napiID      = 2
	napiIRQ     = 3
	napiPID     = 4
)

// PagePool is a pool of receive buffers.
type PagePool struct {
	ID            uint64
	IfIndex       int    // 0: its device is gone, or it has none
	NAPI          uint32 // id of the NAPI that fills it; 0: none
	Inflight      uint64 // pages that are out
	InflightBytes uint64
}

// PageEvent is something that a page pool counts.
type PageEvent int

// PageEvents is how many there are, and events their names, in the order of the attributes.
const PageEvents = len(events)

var events = [...]string{
	"alloc_fast", "alloc_slow", "alloc_slow_high_order", "alloc_empty", "alloc_refill", "alloc_waive",
	"recycle_cached", "recycle_cache_full", "recycle_ring", "recycle_ring_full", "recycle_released_refcnt",
}

func (e PageEvent) String() string { return events[e] }

// PagePoolStats is what a pool counted.
type PagePoolStats struct {
	ID      uint64
	IfIndex int
	Pages   [PageEvents]uint64
}

// QueueType is a queue's direction.
type QueueType uint32

// The directions, of the device.
const (
	QueueRx QueueType = iota
	QueueTx
)

func (t QueueType) String() string {
	switch t {
	case QueueRx:
		return "rx"
	case QueueTx:
		return "tx"
	}
	return fmt.Sprintf("type_%d", uint32(t))
}

// Queue is a queue of a device.
type Queue struct {
	ID      uint32
	IfIndex int
	Type    QueueType
	NAPI    uint32 // id of the NAPI that polls it; 0: the driver does not say
}

// NAPI is a NAPI of a device.
type NAPI struct {
	ID      uint32
	IfIndex int
	IRQ     uint32 // 0: none, or the driver does not say
	PID     uint32 // of the thread that polls it; 0: softirq does
}

// unsigned reads the spec's type uint, which is of four bytes where the number fits and of eight else.
func unsigned(d *netlink.AttributeDecoder) uint64 {
	if len(d.Bytes()) == 4 {
		return uint64(d.Uint32())
	}
	return d.Uint64()
}

func parsePagePool(d *netlink.AttributeDecoder) (p PagePool, err error) {
	for d.Next() {
		switch d.Type() {
		case poolID:
			p.ID = unsigned(d)
		case poolIfIndex:
			p.IfIndex = int(d.Uint32())
		case poolNAPI:
			p.NAPI = uint32(unsigned(d))
		case poolInflight:
			p.Inflight = unsigned(d)
		case poolInflightBytes:
			p.InflightBytes = unsigned(d)
		}
	}
	return p, d.Err()
}

func parsePagePoolStats(d *netlink.AttributeDecoder) (s PagePoolStats, err error) {
	for d.Next() {
		switch t := d.Type(); {
		case t == poolStatsInfo:
			d.Nested(func(inner *netlink.AttributeDecoder) error {
				pool, err := parsePagePool(inner)
				s.ID, s.IfIndex = pool.ID, pool.IfIndex
				return err
			})
		case t >= poolStatsFirst && int(t-poolStatsFirst) < PageEvents:
			s.Pages[t-poolStatsFirst] = unsigned(d)
		}
	}
	return s, d.Err()
}

func parseQueue(d *netlink.AttributeDecoder) (q Queue, err error) {
	for d.Next() {
		switch d.Type() {
		case queueID:
			q.ID = d.Uint32()
		case queueIfIndex:
			q.IfIndex = int(d.Uint32())
		case queueType:
			q.Type = QueueType(d.Uint32())
		case queueNAPI:
			q.NAPI = d.Uint32()
		}
	}
	return q, d.Err()
}

func parseNAPI(d *netlink.AttributeDecoder) (n NAPI, err error) {
	for d.Next() {
		switch d.Type() {
		case napiIfIndex:
			n.IfIndex = int(d.Uint32())
		case napiID:
			n.ID = d.Uint32()
		case napiIRQ:
			n.IRQ = d.Uint32()
		case napiPID:
			n.PID = d.Uint32()
		}
	}
	return n, d.Err()
}
