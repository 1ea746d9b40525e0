package xdp

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Verdict is what conntrack's answer made of a flow.
type Verdict uint32

// The verdicts of enum verdict in bpf/shortcut.h.
const (
	VerdictUnknown  = Verdict(shortcutVerdictVERDICT_UNKNOWN)
	VerdictShortcut = Verdict(shortcutVerdictVERDICT_SHORTCUT)
	VerdictDefault  = Verdict(shortcutVerdictVERDICT_DEFAULT)
)

func (v Verdict) String() string {
	switch v {
	case VerdictShortcut:
		return "shortcut"
	case VerdictDefault:
		return "default"
	}
	return "unknown"
}

// Flow is one direction of a flow. Of ICMP echo, Source's port is the identifier.
type Flow struct {
	Source, Dest netip.AddrPort
	Proto        uint8
	Verdict      Verdict
	Age          time.Duration // since conntrack was asked
	Stale        bool          // the next frame asks again, whatever the age
}

// Flows gives the flows that have a verdict, IPv4 first. Those that come or go meanwhile may be there or not.
func (s *Shortcut) Flows() ([]Flow, error) {
	raw, err := s.rawSettings()
	if err != nil {
		return nil, err
	}
	var out []Flow
	err = s.eachFlow(func(_ *ebpf.Map, key flowKey, v shortcutFlow) {
		f := key.flow()
		f.Verdict, f.Stale = Verdict(v.Verdict), v.Epoch != raw.Epoch
		f.Age = max(0, monotonic()-time.Duration(v.Asked))
		out = append(out, f)
	})
	return out, err
}

// flowKey is the key of map flows4 or flows6.
type flowKey interface{ flow() Flow }

func (k shortcutFlow4Key) flow() Flow {
	return Flow{
		Source: netip.AddrPortFrom(addr4(k.Source), htons(k.SourcePort)), Dest: netip.AddrPortFrom(addr4(k.Dest), htons(k.DestPort)),
		Proto: uint8(k.Proto),
	}
}

func (k shortcutFlowKey) flow() Flow {
	return Flow{Source: addrPort(k.Source, k.SourcePort), Dest: addrPort(k.Dest, k.DestPort), Proto: uint8(k.Proto)}
}

// eachFlow walks both maps.
func (s *Shortcut) eachFlow(each func(*ebpf.Map, flowKey, shortcutFlow)) error {
	four, err := s.ownMap(shortcutMapFlows4)
	if err != nil {
		return err
	}
	six, err := s.ownMap(shortcutMapFlows6)
	if err != nil {
		return err
	}
	return errors.Join(walkFlows[shortcutFlow4Key](four, each), walkFlows[shortcutFlowKey](six, each))
}

func walkFlows[K flowKey](m *ebpf.Map, each func(*ebpf.Map, flowKey, shortcutFlow)) error {
	var (
		key K
		v   shortcutFlow
	)
	iter := m.Iterate()
	for iter.Next(&key, &v) {
		each(m, key, v)
	}
	if err := iter.Err(); err != nil {
		return fmt.Errorf("list flows: %w", err)
	}
	return nil
}

func addrPort(a shortcutIpv6Addr, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(bytes16(a.Word)).Unmap(), htons(port))
}

// monotonic is the clock of the programs.
func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // no kernel lacks it
	}
	return time.Duration(ts.Nano())
}

// FlushFlows forgets all verdicts: each flow asks conntrack at its next frame.
func (s *Shortcut) FlushFlows() error {
	var errs []error
	gone := map[flowKey]*ebpf.Map{} // a walk starts again where its key is deleted
	errs = append(errs, s.eachFlow(func(m *ebpf.Map, key flowKey, _ shortcutFlow) { gone[key] = m }))
	for key, m := range gone {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("flush flows: %w", err))
		}
	}
	return errors.Join(errs...)
}
