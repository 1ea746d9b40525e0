package broker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"github.com/tapir-cni/tapir/agent/client"
	"github.com/tapir-cni/tapir/tap"
	"golang.org/x/sys/unix"
)

// maxGroups bounds the supplementary groups of a process (NGROUPS_MAX, include/uapi/linux/limits.h).
const maxGroups = 65536

// peer is who connected, as the kernel saw it then. Ids are those of tapird's user namespace: root of another one is not 0.
type peer struct {
	pid    int
	uid    int
	groups []int // the effective one first
}

// peerOf asks the kernel (SO_PEERCRED, SO_PEERGROUPS).
func peerOf(conn *net.UnixConn) (p peer, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return peer{}, err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		p = peer{pid: int(cred.Pid), uid: int(cred.Uid), groups: []int{int(cred.Gid)}}
		var more []int
		more, err = peerGroups(int(fd))
		p.groups = append(p.groups, more...)
	})
	if err = errors.Join(ctlErr, err); err != nil {
		return peer{}, fmt.Errorf("read the peer's credentials: %w", err)
	}
	return p, nil
}

// peerGroups are the supplementary groups. The kernel says ERANGE, and how much room it wants, where there is too little.
func peerGroups(fd int) ([]int, error) {
	for room := 64; room <= maxGroups; {
		gids := make([]uint32, room)
		size := uint32(4 * room)
		_, _, errno := syscall.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&gids[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch errno {
		case 0:
			groups := make([]int, 0, size/4)
			for _, g := range gids[:size/4] {
				groups = append(groups, int(g))
			}
			return groups, nil
		case unix.ERANGE:
			room = max(room*2, int(size/4))
		default:
			return nil, os.NewSyscallError("getsockopt SO_PEERGROUPS", errno)
		}
	}
	return nil, fmt.Errorf("supplementary groups: want at most %d", maxGroups)
}

// mayOpen holds the peer against the TAP's owner and group as the driver does (tun_not_capable in drivers/net/tun.c): both
// must match where both are set. A TAP that belongs to nobody is root's alone here: the driver lets everybody in its netns open
// it, and this socket is in no netns.
func (p peer) mayOpen(info tap.Info) *client.Error {
	switch {
	case p.uid == 0:
		return nil
	case info.Owner == nil && info.Group == nil:
		return refuse(client.WrongUser, `uid %d: the TAP has no owner, so only root may have its queues; set "owner" or "group" in the network configuration`, p.uid)
	case info.Owner != nil && *info.Owner != p.uid:
		return refuse(client.WrongUser, "uid %d: the TAP belongs to uid %d", p.uid, *info.Owner)
	case info.Group != nil && !slices.Contains(p.groups, *info.Group):
		return refuse(client.WrongUser, "uid %d: the TAP belongs to gid %d, and the peer's groups are %v", p.uid, *info.Group, p.groups)
	}
	return nil
}
