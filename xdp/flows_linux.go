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

// Flows gives the flows that have a verdict. Those that come or go meanwhile may be there or not.
func (s *Shortcut) Flows() ([]Flow, error) {
	m, err := s.ownMap(shortcutMapFlows)
	if err != nil {
		return nil, err
	}
	raw, err := s.rawSettings()
	if err != nil {
		return nil, err
	}
	now := monotonic()
	var (
		out []Flow
		key shortcutFlowKey
		v   shortcutFlow
	)
	iter := m.Iterate()
	for iter.Next(&key, &v) {
		out = append(out, Flow{
			Source: addrPort(key.Source, key.SourcePort), Dest: addrPort(key.Dest, key.DestPort), Proto: uint8(key.Proto),
			Verdict: Verdict(v.Verdict), Age: max(0, now-time.Duration(v.Asked)), Stale: v.Epoch != raw.Epoch,
		})
	}
	if err := iter.Err(); err != nil {
		return nil, fmt.Errorf("list flows: %w", err)
	}
	return out, nil
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
	m, err := s.ownMap(shortcutMapFlows)
	if err != nil {
		return err
	}
	var (
		keys []shortcutFlowKey
		key  shortcutFlowKey
		v    shortcutFlow
	)
	iter := m.Iterate()
	for iter.Next(&key, &v) {
		keys = append(keys, key)
	}
	if err := iter.Err(); err != nil {
		return fmt.Errorf("flush flows: %w", err)
	}
	for _, key := range keys {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("flush flows: %w", err)
		}
	}
	return nil
}
