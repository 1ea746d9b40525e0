package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/tapir-cni/tapir/test/bench/guest"
)

// foreign is an address that no pod has (RFC 5737).
var foreign = netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, 7}), firstPort)

// forge floods the sender's TAP with frames from a foreign address and gives how many the kernel took and dropped. One that
// arrives at the receiver, or a drop that happened elsewhere than it should, is an error.
func (p *pair) forge(d time.Duration) (sent flow, err error) {
	from, to, hop := p.sender(), peer, gatewayMAC
	var counter *sink
	if len(p.pods) > 1 {
		if err := p.warm(); err != nil {
			return flow{}, err
		}
		to, hop = p.receiver().address.Addr(), p.nextHop(p.receiver())
		counter = p.startSink()
	}
	frame := guest.UDP{ToMAC: hop, FromMAC: from.mac, From: foreign, To: netip.AddrPortFrom(to, sinkPort), Size: guest.MinUDP}.Frame()
	sent, passed, err := p.watched([][]byte{frame}, d)
	if counter != nil {
		arrived, failed := counter.end()
		if arrived > 0 {
			failed = errors.Join(failed, fmt.Errorf("%d of %d frames from a foreign address arrived", arrived, sent.accepted))
		}
		err = errors.Join(err, failed)
	}
	if err != nil {
		return flow{}, err
	}
	return sent, passed.forged(p.variant, sent.accepted)
}
