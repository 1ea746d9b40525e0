package tap

import (
	"errors"
	"fmt"
	"strconv"
	"unsafe"

	"github.com/tapir-cni/tapir/internal/sysfs"
	"golang.org/x/sys/unix"
)

// Apply writes what of the setting belongs to the device: threaded, gro_flush_timeout and napi_defer_hard_irqs of the TAP with that
// name in the network namespace at path; "" is the calling thread's. NAPI is not among it: that is asked for when a queue is
// opened. Nor is Batch, which belongs to the threads ([Setting.ApplyThread]). The kernel takes threaded only while a queue with NAPI is
// attached, and keeps it afterwards (EOPNOTSUPP before; dev_set_threaded in net/core/dev.c). It returns all errors joined, each with its errno.
func (s Setting) Apply(path, name string) error {
	if err := s.apply(path, name); err != nil {
		return fmt.Errorf("set up NAPI of tap %q: %w", name, err)
	}
	return nil
}

func (s Setting) apply(path, name string) error {
	dev, err := sysfs.Open(path, name)
	if err != nil {
		return err
	}
	defer dev.Close() //nolint:errcheck // nothing is pending in it
	threaded := "0"
	if s.Threaded {
		threaded = "1"
	}
	err = dev.Write("threaded", threaded)
	if !s.Threaded && errors.Is(err, unix.EOPNOTSUPP) {
		err = nil // no queue with NAPI, nothing that could be threaded
	}
	return errors.Join(err,
		dev.Write("napi_defer_hard_irqs", strconv.Itoa(s.DeferHardIRQs)),
		dev.Write("gro_flush_timeout", strconv.FormatInt(s.GROFlushTimeout.Nanoseconds(), 10)),
	)
}

// ApplyThread sets the scheduling policy of a thread that polls a queue, by its id: SCHED_BATCH or SCHED_OTHER (sched(7)). A thread of SCHED_OTHER
// that a write wakes interrupts the writer, so that it often finds one frame and GRO merges nothing; one of SCHED_BATCH runs when the
// writer sleeps or its time is up, or on another CPU, and finds many. The kernel makes the thread when the queue is attached, or when
// threaded is set, and it takes the policy with it when it goes.
func (s Setting) ApplyThread(tid int) error {
	policy, name := unix.SCHED_NORMAL, "SCHED_OTHER"
	if s.Batch {
		policy, name = unix.SCHED_BATCH, "SCHED_BATCH"
	}
	// Not sched_setattr, whose policy a seccomp filter such as systemd's RestrictRealtime= cannot see.
	var param struct{ priority int32 }
	_, _, errno := unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), uintptr(policy), uintptr(unsafe.Pointer(&param)))
	if errno != 0 {
		return fmt.Errorf("make NAPI thread %d %s: %w", tid, name, errno)
	}
	return nil
}
