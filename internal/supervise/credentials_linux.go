package supervise

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// credentials are what the tun driver looks at when a device is opened (tun_not_capable in drivers/net/tun.c).
type credentials struct {
	program  string // comm, for people
	euid     int
	egid     int
	groups   []int
	netAdmin bool // CAP_NET_ADMIN in the task's own user namespace
	userns   namespace
}

// namespace tells a namespace from all others.
type namespace struct{ dev, ino uint64 }

// readCredentials reads /proc/TID.
func readCredentials(tid int) (credentials, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return credentials{}, err
	}
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/user", tid), &st); err != nil {
		return credentials{}, fmt.Errorf("user namespace: %w%s", err, ptraceHint(err))
	}
	c := credentials{euid: -1, egid: -1, userns: namespace{uint64(st.Dev), st.Ino}}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":\t")
		if err := c.set(key, value); err != nil {
			return credentials{}, fmt.Errorf("/proc/%d/status: %s: %w", tid, key, err)
		}
	}
	if c.euid < 0 || c.egid < 0 {
		return credentials{}, fmt.Errorf("/proc/%d/status: no Uid or no Gid", tid)
	}
	return c, nil
}

// set takes one line of the file; proc_pid_status(5).
func (c *credentials) set(key, value string) (err error) {
	fields := strings.Fields(value)
	effective := func() (int, error) {
		if len(fields) != 4 {
			return 0, fmt.Errorf("want 4 ids, got %q", value)
		}
		return strconv.Atoi(fields[1])
	}
	switch key {
	case "Name":
		c.program = value
	case "Uid":
		c.euid, err = effective()
	case "Gid":
		c.egid, err = effective()
	case "Groups":
		c.groups = make([]int, len(fields))
		for i, f := range fields {
			if c.groups[i], err = strconv.Atoi(f); err != nil {
				return err
			}
		}
	case "CapEff":
		var caps uint64
		caps, err = strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		c.netAdmin = caps&(1<<unix.CAP_NET_ADMIN) != 0
	}
	return err
}

// over says whether the user namespace is the one that owns the netns, or one above: its capabilities count there
// (ns_capable in kernel/capability.c).
func (n namespace) over(netns int) (bool, error) {
	var owner unix.Stat_t
	fd, err := unix.IoctlRetInt(netns, unix.NS_GET_USERNS)
	for ; err == nil; fd, err = parent(fd) {
		if err = unix.Fstat(fd, &owner); err != nil {
			_ = unix.Close(fd)
			break
		}
		if n == (namespace{uint64(owner.Dev), owner.Ino}) {
			return true, unix.Close(fd)
		}
	}
	if errors.Is(err, unix.EPERM) { // no namespace above, or none that we may see
		return false, nil
	}
	return false, fmt.Errorf("owner of the network namespace: %w", err)
}

// parent is the namespace above; it closes fd.
func parent(fd int) (int, error) {
	defer unix.Close(fd)
	return unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
}

// do runs f on a thread with these credentials, which ends with it. Its error is f's or that of taking them on.
func (c credentials) do(f func() error) error {
	done := make(chan error)
	go func() {
		// Never unlocked: a thread that gave its rights away runs nothing else.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread does not end, and others judge the process by it. While it is kept here, another one takes over.
			defer runtime.UnlockOSThread()
			done <- c.do(f)
			return
		}
		if err := c.assume(); err != nil {
			done <- fmt.Errorf("take on uid %d and gid %d: %w", c.euid, c.egid, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// assume makes the calling thread's effective ids and groups those of c and leaves it no capability but CAP_NET_ADMIN, where c
// has that. The real uid stays: permitted capabilities go with it.
func (c credentials) assume() error {
	const keep = ^uintptr(0)
	have, err := unix.Getgroups()
	if err != nil {
		return err
	}
	if !slices.Equal(have, c.groups) {
		list := make([]uint32, len(c.groups)+1) // never empty: its address is taken
		for i, gid := range c.groups {
			list[i] = uint32(gid)
		}
		// Raw calls: the system's library and Go's change every thread of the process.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(c.groups)), uintptr(unsafe.Pointer(&list[0])), 0); errno != 0 {
			return errno
		}
	}
	if c.egid != unix.Getegid() {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(c.egid), keep); errno != 0 {
			return errno
		}
	}
	if c.euid != unix.Geteuid() {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(c.euid), keep); errno != 0 {
			return errno
		}
	}
	return keepNetAdmin(c.netAdmin)
}

// keepNetAdmin makes CAP_NET_ADMIN, or nothing, the effective capabilities of the calling thread.
func keepNetAdmin(keep bool) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return err
	}
	caps[0].Effective, caps[1].Effective = 0, 0
	if keep {
		caps[0].Effective = caps[0].Permitted & (1 << unix.CAP_NET_ADMIN)
	}
	return unix.Capset(&header, &caps[0])
}
