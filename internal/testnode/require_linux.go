package testnode

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// requireEnv lists what this machine must have: what it lists and the machine lacks fails a test and does not skip it.
const requireEnv = "TAPIR_REQUIRE"

// needs are the names that Require knows, each with a probe that tries the thing itself.
var needs = map[string]func() error{
	"root": func() error {
		if !Inside() {
			return errors.New("the test runs on the machine itself; run as root, and give the package a TestMain that calls testnode.Main")
		}
		return nil
	},
	"bpf":  probeBPF,
	"btf":  func() error { return probeFile("/sys/kernel/btf/vmlinux", os.O_RDONLY) },
	"tcx":  probeTCX,
	"tun":  func() error { return probeFile("/dev/net/tun", os.O_RDWR) },
	"kvm":  func() error { return probeFile("/dev/kvm", os.O_RDWR) },
	"ipv6": func() error { return probeFile("/proc/net/if_inet6", os.O_RDONLY) },
	"qemu": func() error {
		_, err := exec.LookPath("qemu-system-x86_64")
		return err
	},
	"chromium": func() error {
		_, err := exec.LookPath("chromium")
		return err
	},
}

// Require skips the test where one of the needs is not met, or fails it where TAPIR_REQUIRE lists that need or "all".
// The needs are root (a private node, see [Main]), bpf, btf, tcx, tun, ipv6, kvm, qemu and chromium; another name fails the test.
func Require(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		probe, ok := needs[name]
		if !ok {
			t.Fatalf("testnode.Require: unknown need %q; known are %s", name, strings.Join(slices.Sorted(maps.Keys(needs)), ", "))
		}
		err := probe()
		if err == nil {
			continue
		}
		if Required(name) {
			t.Fatalf("needs %s, and %s says that it is here: %v", name, requireEnv, err)
		}
		t.Skipf("needs %s: %v", name, err)
	}
}

// Required says whether TAPIR_REQUIRE lists the need, or "all".
func Required(name string) bool {
	list := strings.Split(os.Getenv(requireEnv), ",")
	return slices.Contains(list, name) || slices.Contains(list, "all")
}

func probeFile(path string, flags int) error {
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// probeBPF creates the smallest map there is. The attributes are those of BPF_MAP_CREATE in include/uapi/linux/bpf.h.
func probeBPF() error {
	attr := struct{ mapType, keySize, valueSize, maxEntries, flags uint32 }{
		mapType: unix.BPF_MAP_TYPE_ARRAY, keySize: 4, valueSize: 4, maxEntries: 1,
	}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return fmt.Errorf("create a BPF map: %w", errno)
	}
	return unix.Close(int(fd))
}

// probeTCX asks lo for its tcx programs, which kernels before 6.6 refuse with EINVAL.
func probeTCX() error {
	const lo = 1
	// BPF_PROG_QUERY's attributes, include/uapi/linux/bpf.h; prog_ids is 0: only the count is asked for.
	attr := struct {
		target, attachType, queryFlags, attachFlags uint32
		progIDs                                     uint64
		count, _                                    uint32
		progAttachFlags, linkIDs, linkAttachFlags   uint64
		revision                                    uint64
	}{target: lo, attachType: unix.BPF_TCX_INGRESS}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return fmt.Errorf("ask for the tcx programs of lo: %w", errno)
	}
	return nil
}
