package rtnl

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Names tells whether links exist in one network namespace without the kernel's RTNL lock, for which rtnetlink would wait
// while any namespace of the node is taken down.
type Names struct{ fd int }

// OpenNames opens it in the network namespace of the calling thread, which it keeps.
func OpenNames() (Names, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Names{}, fmt.Errorf("open a socket to look up links: %w", err)
	}
	return Names{fd}, nil
}

// Close closes the socket.
func (n Names) Close() { _ = unix.Close(n.fd) }

// Any reports whether there is a link with one of the names; empty ones are passed over.
func (n Names) Any(names ...string) (bool, error) {
	for _, name := range names {
		if name == "" {
			continue
		}
		ifr, err := unix.NewIfreq(name)
		if err != nil {
			return false, fmt.Errorf("look up %q: %w", name, err)
		}
		err = unix.IoctlIfreq(n.fd, unix.SIOCGIFINDEX, ifr)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, unix.ENODEV) {
			return false, fmt.Errorf("look up %q: %w", name, err)
		}
	}
	return false, nil
}
