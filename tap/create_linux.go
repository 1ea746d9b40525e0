// Package tap owns the TAP device itself: how it is created, what flags it has, and what a VMM that opens it will
// find. Facts about the driver are from drivers/net/tun.c.
package tap

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Device is the clone device through which TAPs are made and opened.
const Device = "/dev/net/tun"

// MaxQueues is the kernel's limit of queues a TAP (MAX_TAP_QUEUES).
const MaxQueues = 256

// MinMTU and MaxMTU bound the MTU that the driver takes, in bytes (tun_net_initialize).
const (
	MinMTU = 68
	MaxMTU = 65521
)

// MaxTxQueueLen bounds the ring of a queue, in frames. The driver takes any length, and fails when a VMM opens the queue and
// there is no memory for it (tun_attach, ptr_ring_init).
const MaxTxQueueLen = 1 << 16

// baseFlags are the flags of every TAP of tapir: those that Firecracker, Cloud Hypervisor and QEMU open with.
const baseFlags = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR

// tunExcl is IFF_TUN_EXCL: an existing device is EBUSY and is not attached to.
const tunExcl = 0x8000

// statusFlags are what the driver adds to the flags it reports.
const statusFlags = unix.IFF_PERSIST | 0x0800 // IFF_NOFILTER

// Spec is a TAP to create.
type Spec struct {
	Name   string
	Index  int  // ifindex; 0: the kernel chooses
	Queues int  // 1: no IFF_MULTI_QUEUE; up to [MaxQueues]
	Owner  *int // uid that may open it; nil: not restricted
	Group  *int // gid that may open it; the kernel wants both to match where both are set
}

// Flags are the IFF_* flags that a VMM must open the TAP with, and with no others of IFF_TUN, IFF_NO_PI,
// IFF_VNET_HDR and IFF_MULTI_QUEUE.
func (s Spec) Flags() uint16 { return Flags(s.Queues) }

// Flags are the IFF_* flags of a TAP with that many queues.
func Flags(queues int) uint16 {
	if queues > 1 {
		return baseFlags | unix.IFF_MULTI_QUEUE
	}
	return baseFlags
}

// ErrExists says that a device of that name or ifindex is there already.
var ErrExists = errors.New("a device of that name or ifindex exists")

// Create creates the TAP in the network namespace of the calling thread, persistent, down and with no queue
// attached: the fd it was made through is closed when Create returns. The flags are read back and compared. Errors: an error
// that is [ErrExists]; the driver's errno. On error no device is left.
func Create(s Spec) error {
	fd, err := unix.Open(Device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("create tap %q: open %s: %w%s", s.Name, Device, err, deviceHint(err))
	}
	err = create(fd, s)
	// Without IFF_PERSIST the device goes with this fd, so a failed create leaves none.
	return errors.Join(err, os.NewSyscallError("close", unix.Close(fd)))
}

func deviceHint(err error) string {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return `; load the kernel module "tun" (modprobe tun)`
	}
	return ""
}

func create(fd int, s Spec) error {
	if s.Index != 0 {
		if err := unix.IoctlSetPointerInt(fd, unix.TUNSETIFINDEX, s.Index); err != nil {
			return fmt.Errorf("create tap %q: choose ifindex %d: %w", s.Name, s.Index, err)
		}
	}
	ifr, err := unix.NewIfreq(s.Name)
	if err != nil {
		return fmt.Errorf("create tap %q: name: %w", s.Name, err)
	}
	ifr.SetUint16(s.Flags() | tunExcl)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("create tap %q: %w (%w)", s.Name, ErrExists, err)
		}
		return fmt.Errorf("create tap %q with flags %#x: %w", s.Name, s.Flags(), err)
	}
	if s.Owner != nil {
		if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, *s.Owner); err != nil {
			return fmt.Errorf("create tap %q: set owner %d: %w", s.Name, *s.Owner, err)
		}
	}
	if s.Group != nil {
		if err := unix.IoctlSetInt(fd, unix.TUNSETGROUP, *s.Group); err != nil {
			return fmt.Errorf("create tap %q: set group %d: %w", s.Name, *s.Group, err)
		}
	}
	if err := compare(fd, s); err != nil {
		return err
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("create tap %q: make it persistent: %w", s.Name, err)
	}
	return nil
}

// compare reads the flags back: a driver that drops one in silence would fail the VMM later, with less to say.
func compare(fd int, s Spec) error {
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr); err != nil {
		return fmt.Errorf("create tap %q: read its flags: %w", s.Name, err)
	}
	if got := ifr.Uint16() &^ statusFlags; got != s.Flags() || ifr.Name() != s.Name {
		return fmt.Errorf("create tap %q: want flags %#x, got %q with %#x", s.Name, s.Flags(), ifr.Name(), got)
	}
	return nil
}
