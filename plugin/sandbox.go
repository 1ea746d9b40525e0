package plugin

import (
	"fmt"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// isOwnNetns reports whether a netns is the one that the plugin runs in.
func isOwnNetns(netns ns.NetNS) (bool, error) {
	var own, other unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return false, fmt.Errorf("read the plugin's own netns: %w", err)
	}
	if err := unix.Fstat(int(netns.Fd()), &other); err != nil {
		return false, fmt.Errorf("read netns %q: %w", netns.Path(), err)
	}
	return own.Dev == other.Dev && own.Ino == other.Ino, nil
}
