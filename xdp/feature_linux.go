package xdp

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// UnsupportedError says that this kernel lacks something.
type UnsupportedError struct {
	Feature string // "tcx"
	Needs   string // "kernel 6.6"
	Err     error  // the kernel's own
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s is unsupported here (%v); it needs %s", e.Feature, e.Err, e.Needs)
}

// Unwrap gives the kernel's error.
func (e *UnsupportedError) Unwrap() error { return e.Err }

// HaveTCX asks for the tcx programs of the calling thread's lo. Nil says that the kernel has tcx, an [UnsupportedError]
// that it has not; another error that the question was refused.
func HaveTCX() error {
	const lo = 1
	_, err := link.QueryPrograms(link.QueryOptions{Target: lo, Attach: ebpf.AttachTCXIngress})
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, ebpf.ErrNotSupported):
		return &UnsupportedError{Feature: "tcx", Needs: "kernel 6.6 with CONFIG_NET_XGRESS", Err: unix.EINVAL}
	case errors.Is(err, unix.ENODEV): // no lo, but the question was understood
		return nil
	case err != nil:
		return fmt.Errorf("probe tcx: %w", err)
	}
	return nil
}
