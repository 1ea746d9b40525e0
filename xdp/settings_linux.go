package xdp

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Settings are what the programs of all versions of a layout go by.
type Settings struct {
	// TunnelPorts are UDP ports whose frames keep to the default path: a guest's own tunnel may carry an inner checksum
	// that is still partial. At most MaxTunnelPorts.
	TunnelPorts []uint16

	// UDPLifetime is how long a verdict on a UDP or ICMP flow holds before conntrack is asked again.
	UDPLifetime time.Duration
}

// MaxTunnelPorts bounds [Settings].
const MaxTunnelPorts = len(shortcutShortcutSettings{}.TunnelPorts)

// DefaultSettings has the ports of VXLAN (IANA's, Linux's), Geneve, VXLAN-GPE, GUE, FOU's customary one and WireGuard-free
// L2TP, and a second.
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
	raw.UdpLifetime = uint64(v.UDPLifetime)
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
	v := Settings{UDPLifetime: time.Duration(raw.UdpLifetime)}
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
