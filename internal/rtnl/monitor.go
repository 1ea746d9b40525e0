package rtnl

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrLost is the error of [Monitor.Receive] where the kernel had more events than the socket could hold: what is known must be
// read anew.
var ErrLost = errors.New("events were lost")

// monitorBuffer is the socket's receive buffer in bytes: a node that starts a hundred pods at once has some thousand events.
const monitorBuffer = 4 << 20

// Monitor receives rtnetlink's events of one network namespace.
type Monitor struct{ s *nl.NetlinkSocket }

// Watch subscribes to groups (RTNLGRP_…) in the network namespace of the calling thread, which the monitor keeps.
func Watch(groups ...uint) (*Monitor, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return nil, fmt.Errorf("subscribe to rtnetlink: %w", err)
	}
	if err := s.SetReceiveBufferSize(monitorBuffer, true); err != nil {
		_ = s.SetReceiveBufferSize(monitorBuffer, false) // as much as an unprivileged process may have
	}
	return &Monitor{s}, nil
}

// Receive waits for events. After [Monitor.Close] it ends with an error.
func (m *Monitor) Receive() ([]syscall.NetlinkMessage, error) {
	for {
		msgs, from, err := m.s.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			return nil, ErrLost
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, fmt.Errorf("receive rtnetlink events: %w", err)
		case from.Pid == nl.PidKernel:
			return msgs, nil
		}
	}
}

// Close ends the subscription, and a Receive that waits.
func (m *Monitor) Close() { m.s.Close() }
