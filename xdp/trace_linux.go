package xdp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf/ringbuf"
)

// Flags of struct trace_filter in bpf/shortcut.h.
const (
	flagTraceSource = 1 << 0
	flagTraceDest   = 1 << 1
)

const (
	// traceLock is a directory beside the maps' pins; who traces holds its lock.
	traceLock = "trace"

	// A trace says to the programs until when it runs, and again before that time.
	traceHold  = 3 * time.Second
	traceRenew = time.Second
)

// ErrTracing is the error of a trace while another runs.
var ErrTracing = errors.New("another trace is running; one at a time")

// Filter says which frames are traced: those of a flow, in either direction. What is zero is not compared.
type Filter struct {
	Source, Dest         netip.Addr
	SourcePort, DestPort uint16
	Proto                uint8
}

func (f Filter) into(raw *shortcutShortcutSettings) {
	to := &raw.Filter
	to.Flags, to.Proto = 0, uint32(f.Proto)
	to.SourcePort, to.DestPort = htons(f.SourcePort), htons(f.DestPort)
	if f.Source.IsValid() {
		to.Flags |= flagTraceSource
		to.Source = mapped(f.Source)
	}
	if f.Dest.IsValid() {
		to.Flags |= flagTraceDest
		to.Dest = mapped(f.Dest)
	}
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
	Proto        uint8   // 0: not IP
	Source, Dest netip.AddrPort
}

func (e shortcutPathEvent) decode() Event {
	reason := ShortcutReason(e.Reason)
	if Hook(e.Hook) == HookHostTC {
		reason += tcReasons
	}
	return Event{
		Time: time.Now().Add(time.Duration(e.Time) - monotonic()), Hook: Hook(e.Hook), Ifindex: e.Ifindex, Reason: reason,
		Verdict: Verdict(e.Verdict), Len: int(e.Len), GSO: int(e.GsoSize), Target: e.Target, Proto: uint8(e.Proto),
		Source: addrPort(e.Source, e.SourcePort), Dest: addrPort(e.Dest, e.DestPort),
	}
}

// Trace calls each for every frame of the filter's flow that a program of the shortcut sees, until ctx ends, which is no
// error. lost counts those that came faster than they were read. While another trace runs the error is [ErrTracing].
func (s *Shortcut) Trace(ctx context.Context, f Filter, each func(Event)) (lost uint64, err error) {
	lock, err := s.lockTrace()
	if err != nil {
		return 0, fmt.Errorf("trace: %w", err)
	}
	defer lock.Close()
	events, err := s.ownMap(shortcutMapEvents)
	if err != nil {
		return 0, err
	}
	reader, err := ringbuf.NewReader(events)
	if err != nil {
		return 0, fmt.Errorf("trace: %w", err)
	}
	defer func() { _ = reader.Close() }()
	if err := drain(reader); err != nil {
		return 0, fmt.Errorf("trace: %w", err)
	}
	before, err := s.startTrace(f)
	if err != nil {
		return 0, fmt.Errorf("trace: %w", err)
	}
	err = s.follow(ctx, reader, each)
	after, endErr := s.endTrace()
	if err := errors.Join(err, endErr); err != nil {
		return 0, fmt.Errorf("trace: %w", err)
	}
	return after - before, nil
}

// lockTrace locks the directory beside the maps, or gives ErrTracing.
func (s *Shortcut) lockTrace() (*os.File, error) {
	path := filepath.Join(s.mapsDir(), traceLock)
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	held, err := tryLock(f)
	if err == nil && !held {
		err = ErrTracing
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// drain reads what a trace that was killed left in the ring.
func drain(reader *ringbuf.Reader) error {
	reader.SetDeadline(time.Unix(1, 0))
	var rec ringbuf.Record
	for {
		err := reader.ReadInto(&rec)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// startTrace puts the filter in force and gives the count of lost events so far.
func (s *Shortcut) startTrace(f Filter) (lost uint64, err error) {
	lock, err := s.lock()
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	// A filter that changes under the programs' eyes could match what neither of both does.
	if err := s.changeSettings(func(raw *shortcutShortcutSettings) { raw.TraceUntil = 0 }); err != nil {
		return 0, err
	}
	if err := s.changeSettings(f.into); err != nil {
		return 0, err
	}
	return lost, s.changeSettings(func(raw *shortcutShortcutSettings) {
		lost = raw.TraceLost
		raw.TraceUntil = uint64(monotonic() + traceHold)
	})
}

func (s *Shortcut) renewTrace(until time.Duration) error {
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	return s.changeSettings(func(raw *shortcutShortcutSettings) { raw.TraceUntil = uint64(until) })
}

func (s *Shortcut) endTrace() (lost uint64, err error) {
	if err := s.renewTrace(0); err != nil {
		return 0, err
	}
	raw, err := s.rawSettings()
	return raw.TraceLost, err
}

// follow reads events until ctx ends.
func (s *Shortcut) follow(ctx context.Context, reader *ringbuf.Reader, each func(Event)) error {
	// A past deadline wakes the read that is waiting.
	stop := context.AfterFunc(ctx, func() { reader.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	renewed := time.Now()
	var rec ringbuf.Record
	for ctx.Err() == nil {
		if time.Since(renewed) > traceRenew {
			if err := s.renewTrace(monotonic() + traceHold); err != nil {
				return err
			}
			renewed = time.Now()
		}
		reader.SetDeadline(time.Now().Add(traceRenew / 2))
		if ctx.Err() != nil {
			return nil // its deadline was overwritten
		}
		err := reader.ReadInto(&rec)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return err
		}
		var raw shortcutPathEvent
		if _, err := binary.Decode(rec.RawSample, binary.NativeEndian, &raw); err != nil {
			return fmt.Errorf("event of %d bytes: %w", len(rec.RawSample), err)
		}
		each(raw.decode())
	}
	return nil
}
