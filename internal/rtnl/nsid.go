package rtnl

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// EnsureNetnsID gives the id by which the namespace of nsFD is known in the connection's, and chooses one where it has none. Once
// given it stays for as long as both live, whoever gave it (net/core/net_namespace.c).
func (c *Conn) EnsureNetnsID(nsFD int) (int, error) {
	const none, choose = -1, -1
	id, err := c.GetNetNsIdByFd(nsFD)
	if err == nil && id == none {
		if err = c.SetNetNsIdByFd(nsFD, choose); errors.Is(err, unix.EEXIST) {
			err = nil // given meanwhile: a veth does it as well
		}
		if err == nil {
			id, err = c.GetNetNsIdByFd(nsFD)
		}
	}
	if err == nil && id < 0 {
		err = fmt.Errorf("want 0 or more, got %d", id)
	}
	if err != nil {
		return 0, fmt.Errorf("netns id: %w", err)
	}
	return id, nil
}
