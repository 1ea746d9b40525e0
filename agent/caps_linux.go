package agent

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Capability is one that tapird keeps.
type Capability struct {
	Number uint
	Name   string
	Why    string
}

// Capabilities are those that the parts need once they run; a test takes each away and sees what fails. CAP_SYS_RESOURCE is not among them:
// limits are the service manager's. Nor is CAP_SYS_PTRACE: who holds a queue is told by a BPF iterator. Nor are CAP_BPF and CAP_PERFMON: the kernel
// takes CAP_SYS_ADMIN for both (bpf_capable, perfmon_capable), which nothing else lets a thread enter a namespace. tapird runs as root, and what is
// root's own it opens without any.
var Capabilities = []Capability{
	{unix.CAP_NET_ADMIN, "NET_ADMIN", "links of other network namespaces, settings of TAPs"},
	{unix.CAP_NET_BROADCAST, "NET_BROADCAST", "messages of other network namespaces"},
	{unix.CAP_SYS_ADMIN, "SYS_ADMIN", "entering network namespaces, their sysfs, BPF"},
	{unix.CAP_SYS_NICE, "SYS_NICE", "policy and CPUs of NAPI threads, which as threads of the kernel's have every capability"},
	{unix.CAP_CHOWN, "CHOWN", "giving a token to the TAP's owner"},
	{unix.CAP_FOWNER, "FOWNER", "the mode of a token that was given away"},
	{unix.CAP_DAC_OVERRIDE, "DAC_OVERRIDE", "reading a token that was given away"},
}

// DropCapabilities leaves the process [Capabilities] alone, those of them that it has, for good: what it executes gets no others back. It
// needs a binary without cgo, on whose threads the kernel's calls can be made all at once.
func DropCapabilities() error {
	var keep uint64
	for _, c := range Capabilities {
		keep |= 1 << c.Number
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return fmt.Errorf("read the process's capabilities: %w", err)
	}
	permitted := uint64(have[0].Permitted) | uint64(have[1].Permitted)<<32
	if permitted&(1<<unix.CAP_SETPCAP) != 0 {
		for c := uint(0); c <= unix.CAP_LAST_CAP; c++ {
			if keep&(1<<c) != 0 {
				continue
			}
			_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0)
			if errno != 0 && errno != unix.EINVAL { // EINVAL: this kernel has no such capability
				return fmt.Errorf("drop capability %d from the bounding set: %w", c, errno)
			}
		}
	}
	now := keep & permitted
	few := [2]unix.CapUserData{{Effective: uint32(now), Permitted: uint32(now)}, {Effective: uint32(now >> 32), Permitted: uint32(now >> 32)}}
	var pin runtime.Pinner // the kernel reads both by their addresses, from every thread
	pin.Pin(&header)
	pin.Pin(&few)
	defer pin.Unpin()
	header.Pid = 0
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&few)), 0)
	if errno != 0 {
		return fmt.Errorf("drop capabilities: %w", errno)
	}
	return nil
}

// notifyEnv names the service manager's socket (sd_notify(3)).
const notifyEnv = "NOTIFY_SOCKET"

// Notify tells the service manager that started the process, where there is one that wants to know; state is as in "READY=1".
func Notify(state string) error {
	path := os.Getenv(notifyEnv)
	if path == "" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, []byte(state), 0, &unix.SockaddrUnix{Name: path}); err != nil { // a leading '@' is an abstract name there too
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}
