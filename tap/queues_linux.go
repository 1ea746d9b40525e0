package tap

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tapir-cni/tapir/internal/netns"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"golang.org/x/sys/unix"
)

// QueueOptions say which queues to open and how.
type QueueOptions struct {
	Netns string // path of the TAP's network namespace; empty: the calling thread's
	Name  string
	Index int // ifindex that Name must have, so that no other device of that name is opened; 0: any
	Count int // queues to open, 1 to [MaxQueues]
	NAPI  bool

	// Flags are the IFF_* flags to open with, IFF_NAPI aside; 0: those that the TAP was created with. Others of
	// IFF_TUN, IFF_NO_PI, IFF_VNET_HDR and IFF_MULTI_QUEUE are a [*MismatchError], as they are for a VMM.
	Flags uint16

	// The kernel keeps the following two for the whole device, and the last to set them wins: VMMs set their own when their
	// guest's driver starts. They are set on each queue, so that each is ready by itself.
	Offload     *int // TUN_F_* mask of what the reader takes; nil: left as it is
	VnetHdrSize int  // bytes of the virtio-net header, 10, 12 or more; 0: left as it is
}

// Queues are open queues of one TAP, each a descriptor that a VMM can be given.
type Queues struct {
	Name     string
	Index    int
	Flags    uint16 // IFF_* as each was opened with
	Attached int    // enabled queues of the TAP after these were opened, those of others included

	fds []int
}

// FDs are the descriptors, by queue as opened, non-blocking and close-on-exec. They stay those of q.
func (q *Queues) FDs() []int { return append([]int(nil), q.fds...) }

// Close closes the descriptors: queues that nobody else was given go.
func (q *Queues) Close() error {
	var errs []error
	for _, fd := range q.fds {
		errs = append(errs, os.NewSyscallError("close", unix.Close(fd)))
	}
	q.fds = nil
	return errors.Join(errs...)
}

// OpenQueues opens queues of a TAP that exists and is persistent. It creates no device. On error none stays open. Errors: [*MismatchError],
// [*BusyError], [ErrUnsupported] where the driver has no IFF_NAPI, and the kernel's errno for all else.
//
// IFF_NAPI is taken by the driver for each descriptor as it was asked for (tun_napi_init in drivers/net/tun.c), and is not shown again:
// TUNGETIFF gives flags of the device, which the first opener wrote. So what is verified here is that the driver knows the flag, and for
// the first opener that it took it; what runs is told by package queueiter alone.
func OpenQueues(o QueueOptions) (*Queues, error) {
	if o.Count < 1 || o.Count > MaxQueues {
		return nil, fmt.Errorf("open queues of tap %q: want 1 to %d, got %d", o.Name, MaxQueues, o.Count)
	}
	var q *Queues
	err := netns.Within(o.Netns, func() (err error) {
		q, err = openQueues(o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open tap %q: %w", o.Name, err)
	}
	return q, nil
}

func openQueues(o QueueOptions) (_ *Queues, err error) {
	conn, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	index, before, err := lookUp(conn, o)
	if err != nil {
		return nil, err
	}
	q := &Queues{Name: o.Name, Index: index, Flags: o.Flags}
	if q.Flags == 0 {
		q.Flags = before.Flags
	}
	if o.NAPI {
		q.Flags |= unix.IFF_NAPI
	}
	if err := check(before, q.Flags, o.Count); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, q.Close())
		}
	}()
	for i := range o.Count {
		// The driver counts queues of multi-queue TAPs alone (tun_fill_info); another has one, or none and an EBUSY.
		initial := before.Flags&unix.IFF_MULTI_QUEUE == 0 || before.Queues+before.Disabled+i == 0
		fd, err := openQueue(o, q.Flags, initial)
		if err != nil {
			return nil, explain(err, before, q.Flags, i)
		}
		q.fds = append(q.fds, fd)
	}
	return q, q.verify(conn, before, o)
}

// lookUp finds the device and what it was created as.
func lookUp(conn *rtnl.Conn, o QueueOptions) (int, Info, error) {
	link, err := conn.LinkByName(o.Name)
	if err != nil {
		return 0, Info{}, err
	}
	index := link.Attrs().Index
	if o.Index != 0 && o.Index != index {
		return 0, Info{}, fmt.Errorf("want ifindex %d, got %d: another device has that name now", o.Index, index)
	}
	info, err := Read(conn, index)
	if err != nil {
		return 0, Info{}, err
	}
	if !info.Persistent {
		return 0, Info{}, errors.New("it is not persistent: it belongs to the process that created it")
	}
	return index, info, nil
}

// openQueue opens one queue. initial says that nobody had one, so that the device's flags become those of this descriptor.
func openQueue(o QueueOptions, flags uint16, initial bool) (_ int, err error) {
	fd, err := unix.Open(Device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w%s", Device, err, deviceHint(err))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.NewSyscallError("close", unix.Close(fd)))
		}
	}()
	if err := haveFlags(fd, flags); err != nil {
		return -1, err
	}
	ifr, err := unix.NewIfreq(o.Name)
	if err != nil {
		return -1, fmt.Errorf("name: %w", err)
	}
	ifr.SetUint16(flags)
	if err := attach(fd, ifr); err != nil {
		return -1, fmt.Errorf("attach with flags %s: %w", FlagNames(flags), err)
	}
	if err := readBack(fd, o.Name, flags, initial); err != nil {
		return -1, err
	}
	if o.Offload != nil {
		if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, *o.Offload); err != nil {
			return -1, fmt.Errorf("set offload mask %#x: %w", *o.Offload, err)
		}
	}
	return fd, setVnetHdrSize(fd, o.VnetHdrSize)
}

// attach is TUNSETIFF. A descriptor that was closed a moment ago may be held for another by who looks at the process's open files (the queue
// iterator, /proc/PID/fdinfo): busy is believed after some milliseconds.
func attach(fd int, ifr *unix.Ifreq) error {
	for try := 1; ; try++ {
		err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
		if !errors.Is(err, unix.EBUSY) || try == 10 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// haveFlags asks whether the driver knows the flags: it drops in silence what it does not know.
func haveFlags(fd int, flags uint16) error {
	features, err := unix.IoctlGetInt(fd, unix.TUNGETFEATURES)
	if err != nil {
		return fmt.Errorf("read the features of %s: %w", Device, err)
	}
	if missing := flags &^ uint16(features); missing != 0 {
		return fmt.Errorf("%w: %s are missing; IFF_NAPI wants Linux 4.15 or newer", ErrUnsupported, FlagNames(missing))
	}
	return nil
}

// readBack compares what the driver says of the device. One that is not persistent is not the one that was looked up: TUNSETIFF
// creates a device where the name is free, and that one goes with fd.
func readBack(fd int, name string, flags uint16, initial bool) error {
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr); err != nil {
		return fmt.Errorf("read its flags: %w", err)
	}
	got := ifr.Uint16()
	if got&unix.IFF_PERSIST == 0 || ifr.Name() != name {
		return fmt.Errorf("it was deleted meanwhile: %w", unix.ENODEV)
	}
	if (got^flags)&layoutFlags != 0 {
		return &MismatchError{Created: got, Asked: flags}
	}
	if initial && (got^flags)&unix.IFF_NAPI != 0 {
		return fmt.Errorf("the driver took other flags: want %s, got %s", FlagNames(flags), FlagNames(got))
	}
	return nil
}

func setVnetHdrSize(fd, size int) error {
	if size == 0 {
		return nil
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, size); err != nil {
		return fmt.Errorf("set the vnet header's size to %d: %w", size, err)
	}
	got, err := unix.IoctlGetInt(fd, unix.TUNGETVNETHDRSZ)
	if err != nil {
		return fmt.Errorf("read the vnet header's size: %w", err)
	}
	if got != size {
		return fmt.Errorf("set the vnet header's size: want %d, got %d", size, got)
	}
	return nil
}

// verify counts what is attached, and looks whether it is still the same device.
func (q *Queues) verify(conn *rtnl.Conn, before Info, o QueueOptions) error {
	if index, _, err := lookUp(conn, o); err != nil || index != q.Index {
		return errors.Join(fmt.Errorf("it was replaced meanwhile: %w", unix.ENODEV), err)
	}
	if before.Flags&unix.IFF_MULTI_QUEUE == 0 {
		q.Attached = 1
		return nil
	}
	after, err := Read(conn, q.Index)
	if err != nil {
		return err
	}
	if after.Queues < o.Count {
		return fmt.Errorf("want %d queues attached, got %d (%d before)", o.Count, after.Queues, before.Queues)
	}
	q.Attached = after.Queues
	return nil
}
