// Package supervise starts a program and answers one system call in its place: ioctl(TUNSETIFF), by which a VMM opens a TAP
// by name. It is the mechanism of "tapirctl exec"; which devices are answered for, and how, is for [Config.Decide] to say.
//
// It rests on seccomp user notification (seccomp_unotify(2), kernel/seccomp.c) and wants Linux 5.19. Design:
// docs/design/0003-napi-for-unmodified-vmms.md.
package supervise

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// auditArch is the kernel's name of the ABI in which a program of this architecture calls (include/uapi/linux/audit.h). Both
// are little-endian, which the filter's offset of an argument's low half relies on.
var auditArch = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// Offsets in struct seccomp_data, include/uapi/linux/seccomp.h.
const (
	offsetNR      = 0
	offsetArch    = 4
	offsetCommand = 24 // the low half of args[1]: an ioctl's command has 32 bits
)

// filter gives ioctl(TUNSETIFF) in the ABI arch to the listener and allows all else. The system call's number is first:
// most calls end there, and the kernel keeps that result for each number.
func filter(arch uint32) []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	orAllow := func(want uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: skip, K: want}
	}
	end := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	return []unix.SockFilter{
		load(offsetNR), orAllow(unix.SYS_IOCTL, 5),
		load(offsetCommand), orAllow(unix.TUNSETIFF, 3),
		load(offsetArch), orAllow(arch, 1),
		end(unix.SECCOMP_RET_USER_NOTIF),
		end(unix.SECCOMP_RET_ALLOW),
	}
}

// installFilter puts the filter on the calling thread and gives its listener, which is close-on-exec. A thread without
// CAP_SYS_ADMIN gets no_new_privs first, without which the kernel lets it install none.
func installFilter() (listener int, err error) {
	arch, known := auditArch[runtime.GOARCH]
	if !known {
		return -1, fmt.Errorf("install seccomp filter: want amd64 or arm64, got %s", runtime.GOARCH)
	}
	listener, err = setFilter(filter(arch))
	if errors.Is(err, unix.EACCES) {
		if nnp := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); nnp != nil {
			return -1, fmt.Errorf("set no_new_privs: %w", nnp)
		}
		listener, err = setFilter(filter(arch))
	}
	switch {
	case errors.Is(err, unix.EINVAL):
		err = fmt.Errorf("install seccomp filter: %w; want Linux 5.19 or newer with CONFIG_SECCOMP_FILTER", err)
	case errors.Is(err, unix.EBUSY):
		err = fmt.Errorf("install seccomp filter: %w; this process has a listener already, of another supervisor or of the container runtime", err)
	case err != nil:
		err = fmt.Errorf("install seccomp filter: %w", err)
	}
	return listener, err
}

func setFilter(program []unix.SockFilter) (listener int, err error) {
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}
