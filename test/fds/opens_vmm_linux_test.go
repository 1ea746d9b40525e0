package fds_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// vmmArg makes the test's binary a stand-in for a VMM: it opens its TAP by the very system calls of that VMM, in their order, says what
// came of it, is the guest for some frames, and keeps its queues until its input ends.
const vmmArg = "__vmm"

// virtio-net features that a guest can negotiate (include/uapi/linux/virtio_net.h).
const (
	guestCsum = 1 << 1
	guestTSO4 = 1 << 7
	guestTSO6 = 1 << 8
	guestECN  = 1 << 9
	guestUFO  = 1 << 10

	linuxGuest = guestCsum | guestTSO4 | guestTSO6 | guestECN | guestUFO
)

// vmmCase is what the stand-in is told, on its command line; fds come after it, as "tapirctl fds" writes them.
type vmmCase struct {
	VMM      string
	TAP      string
	Pairs    int
	Features uint64 // that the guest negotiated
	Guest    guest
}

// vmmReport is what it says, as one line.
type vmmReport struct {
	Error   string // the step that failed, in the VMM's place
	PID     int
	FDs     []int
	Flags   []uint16 // by queue: in the ifreq after TUNSETIFF
	VnetHdr []int    // by queue: TUNGETVNETHDRSZ afterwards
	MTU     int      // 0: not asked for
	Offload uint     // what TUNSETOFFLOAD was given
	Existed int      // TUNSETIFFs that were EEXIST
	Passed  []passed // by queue
}

func vmmMain(args []string) int {
	var c vmmCase
	if err := json.Unmarshal([]byte(args[0]), &c); err != nil {
		fmt.Fprintln(os.Stderr, "vmm:", err)
		return 1
	}
	r := vmmReport{PID: os.Getpid()}
	if err := r.run(c, args[1:]); err != nil {
		r.Error = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func (r *vmmReport) run(c vmmCase, fds []string) (err error) {
	switch {
	case c.VMM == "firecracker":
		err = r.firecracker(c)
	case len(fds) > 0:
		err = r.cloudHypervisorFDs(c, fds[0])
	default:
		err = r.cloudHypervisor(c)
	}
	if err != nil {
		return err
	}
	for _, fd := range r.FDs {
		size, err := unix.IoctlGetInt(fd, unix.TUNGETVNETHDRSZ)
		if err != nil {
			return fmt.Errorf("TUNGETVNETHDRSZ: %w", err)
		}
		r.VnetHdr = append(r.VnetHdr, size)
	}
	for _, fd := range r.FDs {
		p, err := c.Guest.exchange(fd, r.FDs, r.VnetHdr[0])
		if err != nil {
			return err
		}
		r.Passed = append(r.Passed, p)
	}
	return nil
}

// vnetHeader is the size of struct virtio_net_hdr_v1, which both set.
const vnetHeader = 12

// firecracker is src/vmm/src/devices/virtio/net: tap.rs open_named, device.rs open_tap and, when the guest's driver starts, activate.
func (r *vmmReport) firecracker(c vmmCase) error {
	fd, err := openTUN()
	if err != nil {
		return err
	}
	if err := r.setIff(fd, c.TAP, unix.IFF_TAP|unix.IFF_NO_PI|unix.IFF_VNET_HDR); err != nil {
		return err
	}
	if err := setVnetHeader(fd); err != nil {
		return err
	}
	return r.setOffload(c.Features &^ guestECN) // which it does not offer
}

// cloudHypervisor is net_util/src/open_tap.rs, open_tap, and tap.rs, open_named; MTU and offloads are virtio-devices/src/net.rs.
func (r *vmmReport) cloudHypervisor(c vmmCase) error {
	if err := checkMQ(c.TAP, c.Pairs); err != nil {
		return err
	}
	for i := range c.Pairs {
		fd, err := openTUN()
		if err != nil {
			return err
		}
		features, err := unix.IoctlGetInt(fd, unix.TUNGETFEATURES)
		if err != nil {
			return fmt.Errorf("TUNGETFEATURES: %w", err)
		}
		if features&unix.IFF_MULTI_QUEUE == 0 && c.Pairs > 1 {
			return errors.New("MultiQueueKernelSupport")
		}
		if err := r.setIff(fd, c.TAP, cloudHypervisorFlags(c.Pairs)); err != nil {
			return err
		}
		if i == 0 {
			if err := askUp(c.TAP); err != nil {
				return err
			}
		}
		if err := setVnetHeader(fd); err != nil {
			return err
		}
	}
	return r.cloudHypervisorDevice(c)
}

// cloudHypervisorFDs is virtio-devices/src/net.rs, from_tap_fds, and net_util/src/tap.rs, from_tap_fd.
func (r *vmmReport) cloudHypervisorFDs(c vmmCase, list string) error {
	inner, ok := strings.CutPrefix(list, "fd=[")
	if !ok {
		return fmt.Errorf("want fd=[…], got %q", list)
	}
	for text := range strings.SplitSeq(strings.TrimSuffix(inner, "]"), ",") {
		given, err := strconv.Atoi(text)
		if err != nil || given <= 2 {
			return fmt.Errorf("want descriptors above 2, got %q", list)
		}
		fd, err := unix.Dup(given)
		if err != nil {
			return fmt.Errorf("dup: %w", err)
		}
		status, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, status|unix.O_NONBLOCK)
		}
		if err != nil {
			return fmt.Errorf("O_NONBLOCK: %w", err)
		}
		ifr, err := unix.NewIfreq("")
		if err == nil {
			err = unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr)
		}
		if err != nil {
			return fmt.Errorf("TUNGETIFF: %w", err)
		}
		if err := r.setIff(fd, ifr.Name(), cloudHypervisorFlags(c.Pairs)); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := setVnetHeader(fd); err != nil {
			return err
		}
	}
	return r.cloudHypervisorDevice(c)
}

func (r *vmmReport) cloudHypervisorDevice(c vmmCase) error {
	ifr, err := askDevice(unix.SIOCGIFMTU, c.TAP)
	if err != nil {
		return fmt.Errorf("SIOCGIFMTU: %w", err)
	}
	r.MTU = int(ifr.Uint32())
	return r.setOffload(c.Features)
}

func cloudHypervisorFlags(pairs int) uint16 {
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if pairs > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	return flags
}

// checkMQ is check_mq_support: it looks at the device before it opens it.
func checkMQ(name string, pairs int) error {
	text, err := os.ReadFile("/sys/class/net/" + name + "/tun_flags")
	if err != nil {
		return err // Cloud Hypervisor goes on and makes a TAP; here it is always there
	}
	flags, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(string(text)), "0x"), 16, 32)
	if err != nil {
		return err
	}
	switch multi := flags&unix.IFF_MULTI_QUEUE != 0; {
	case multi && pairs == 1:
		return errors.New("MultiQueueNoDeviceSupport")
	case !multi && pairs > 1:
		return errors.New("MultiQueueNoTapSupport")
	}
	return nil
}

// askUp is enable: SIOCGIFFLAGS, and nothing more where the device is up.
func askUp(name string) error {
	ifr, err := askDevice(unix.SIOCGIFFLAGS, name)
	if err == nil && ifr.Uint16()&unix.IFF_UP == 0 {
		err = errors.New("the TAP is down, and an unprivileged VMM cannot set it up")
	}
	return err
}

// askDevice is an ioctl on a unix socket about the device of that name in the process's netns.
func askDevice(request uint, name string) (*unix.Ifreq, error) {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(s, request, ifr)
	}
	return ifr, err
}

func openTUN() (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	return fd, nil
}

// setIff is TUNSETIFF. The queue is the VMM's also where it was its own before.
func (r *vmmReport) setIff(fd int, name string, flags uint16) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(flags)
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	if errors.Is(err, unix.EEXIST) {
		r.Existed++
	}
	if err == nil || errors.Is(err, unix.EEXIST) {
		r.FDs, r.Flags = append(r.FDs, fd), append(r.Flags, ifr.Uint16())
	}
	if err != nil {
		return fmt.Errorf("TUNSETIFF: %w", err)
	}
	return nil
}

func setVnetHeader(fd int) error {
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetHeader); err != nil {
		return fmt.Errorf("TUNSETVNETHDRSZ: %w", err)
	}
	return nil
}

// setOffload is build_tap_offload_features of Firecracker and virtio_features_to_tap_offload of Cloud Hypervisor, for each queue.
func (r *vmmReport) setOffload(features uint64) error {
	for _, f := range []struct {
		virtio uint64
		tun    uint
	}{
		{guestCsum, unix.TUN_F_CSUM}, {guestTSO4, unix.TUN_F_TSO4}, {guestTSO6, unix.TUN_F_TSO6}, {guestECN, unix.TUN_F_TSO_ECN}, {guestUFO, unix.TUN_F_UFO},
	} {
		if features&f.virtio != 0 {
			r.Offload |= f.tun
		}
	}
	for _, fd := range r.FDs {
		if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, int(r.Offload)); err != nil {
			return fmt.Errorf("TUNSETOFFLOAD %#x: %w", r.Offload, err)
		}
	}
	return nil
}
