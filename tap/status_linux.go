package tap

import (
	"errors"
	"fmt"

	"github.com/tapir-cni/tapir/internal/netns"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/internal/sysfs"
	"golang.org/x/sys/unix"
)

// Status is what the kernel says of a whole TAP at one moment. Of a TAP without multi_queue the queue is counted while the link is up.
type Status struct {
	Info
	Name       string
	TxQueueLen int    // frames that the ring of a queue holds when it is opened or the length is set
	TxDropped  uint64 // frames to the guest that found no room, or no queue, since the TAP was made
	Threaded   *bool  // NAPI polls in threads; nil: the kernel does not say (before 5.12, or without sysfs)
}

// ReadStatus reads the status of the TAP with that ifindex in the network namespace at path; "" is the calling thread's. It opens no queue.
func ReadStatus(path string, index int) (Status, error) {
	var s Status
	err := netns.Within(path, func() (err error) {
		s, err = readStatus(index)
		return err
	})
	if err != nil {
		return Status{}, fmt.Errorf("read the status of tap %d: %w", index, err)
	}
	return s, nil
}

func readStatus(index int) (Status, error) {
	conn, err := rtnl.Open()
	if err != nil {
		return Status{}, err
	}
	defer conn.Close()
	link, err := conn.LinkByIndex(index)
	if err != nil {
		return Status{}, err
	}
	attrs := link.Attrs()
	s := Status{Name: attrs.Name, TxQueueLen: attrs.TxQLen}
	if s.Info, err = Read(conn, index); err != nil {
		return Status{}, err
	}
	if s.Flags&unix.IFF_MULTI_QUEUE == 0 && attrs.RawFlags&unix.IFF_LOWER_UP != 0 {
		s.Queues = 1 // the driver counts those of multi-queue TAPs alone, and has a carrier while somebody has the other's
	}
	if attrs.Statistics != nil {
		s.TxDropped = attrs.Statistics.TxDropped
	}
	s.Threaded, err = threaded(attrs.Name)
	return s, err
}

// threaded reads /sys/class/net/NAME/threaded of the calling thread's network namespace.
func threaded(name string) (*bool, error) {
	dev, err := sysfs.Open("", name)
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer dev.Close() //nolint:errcheck // nothing is pending in it
	value, err := dev.Read("threaded")
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	on := value != "0" // 1: threads; 2: threads that poll without end
	return &on, nil
}
