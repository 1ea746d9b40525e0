package xdp

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Settings are what the programs of all versions of a layout go by.
type Settings struct {
	// TunnelPorts are UDP ports whose frames keep to the default path: a guest's own tunnel may carry an inner checksum
	// that is still partial. At most MaxTunnelPorts.
	TunnelPorts []uint16

	// UDPLifetime is how long a verdict on a UDP flow holds before conntrack is asked again, in whole ticks of the kernel.
	UDPLifetime time.Duration
}

// MaxTunnelPorts bounds [Settings].
const MaxTunnelPorts = len(shortcutShortcutSettings{}.TunnelPorts)

// DefaultSettings has the ports of VXLAN (4789, and Linux's older 8472), Geneve (6081), VXLAN-GPE (4790), GUE (6080), FOU as its
// examples have it (5555) and L2TP (1701), and a second. WireGuard and QUIC carry no inner checksum that anybody could
// leave partial.
func DefaultSettings() Settings {
	return Settings{TunnelPorts: []uint16{4789, 8472, 6081, 4790, 6080, 5555, 1701}, UDPLifetime: time.Second}
}

func (v Settings) validate() error {
	if len(v.TunnelPorts) > MaxTunnelPorts {
		return &LimitError{MaxTunnelPorts, "tunnel ports"}
	}
	if slices.Contains(v.TunnelPorts, 0) {
		return errors.New("tunnel ports: want 1 to 65535, got 0")
	}
	if v.UDPLifetime < 0 {
		return fmt.Errorf("UDP lifetime: want 0s and above, got %s", v.UDPLifetime)
	}
	return nil
}

// into writes v over what the map has, the rest of which is not for users to set.
func (v Settings) into(raw *shortcutShortcutSettings) {
	raw.UdpLifetime = uint64((v.UDPLifetime + tick() - 1) / tick())
	raw.TunnelPorts = [MaxTunnelPorts]uint16{}
	for i, p := range v.TunnelPorts {
		raw.TunnelPorts[i] = htons(p)
	}
}

// Settings gives those in force.
func (s *Shortcut) Settings() (Settings, error) {
	raw, err := s.rawSettings()
	if err != nil {
		return Settings{}, err
	}
	v := Settings{UDPLifetime: time.Duration(raw.UdpLifetime) * tick()}
	for _, p := range raw.TunnelPorts {
		if p != 0 {
			v.TunnelPorts = append(v.TunnelPorts, htons(p))
		}
	}
	return v, nil
}

// Configure puts settings in force, for all pods of the node.
func (s *Shortcut) Configure(v Settings) error {
	if err := v.validate(); err != nil {
		return fmt.Errorf("configure the shortcut: %w", err)
	}
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	return s.changeSettings(v.into)
}

func (s *Shortcut) rawSettings() (shortcutShortcutSettings, error) {
	var raw shortcutShortcutSettings
	m, err := s.ownMap(shortcutMapSettings)
	if err != nil {
		return raw, err
	}
	if err := m.Lookup(uint32(0), &raw); err != nil {
		return raw, fmt.Errorf("read settings: %w", err)
	}
	return raw, nil
}

// changeSettings is for who holds the lock.
func (s *Shortcut) changeSettings(change func(*shortcutShortcutSettings)) error {
	raw, err := s.rawSettings()
	if err != nil {
		return err
	}
	change(&raw)
	m, err := s.ownMap(shortcutMapSettings)
	if err != nil {
		return err
	}
	if err := m.Put(uint32(0), raw); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}

// newEpoch makes every flow ask conntrack again at its next frame: those that it does not know go on as they did. For who
// holds the lock.
func (s *Shortcut) newEpoch() error {
	return s.changeSettings(func(raw *shortcutShortcutSettings) { raw.Epoch++ })
}

// tick is how long one of the kernel's jiffies is: the resolution of the clock that goes by them.
var tick = sync.OnceValue(func() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &ts); err != nil {
		panic(err) // no kernel since 2.6.32 lacks it
	}
	return time.Duration(ts.Nano())
})

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// freshEpoch is newEpoch for who does not hold the lock: after something let frames of running flows pass to the host, whose
// conntrack knows these flows by now.
func (s *Shortcut) freshEpoch() error {
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	return s.newEpoch()
}
