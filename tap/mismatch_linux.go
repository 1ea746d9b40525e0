package tap

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// layoutFlags are the flags that the driver wants to be the same at every open (tun_set_iff) or that change what a frame looks like.
const layoutFlags = unix.IFF_TUN | unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE

// MismatchError says that a TAP was created with other flags than it was to be opened with. It is EINVAL, the
// driver's own answer where IFF_MULTI_QUEUE or the type differ.
type MismatchError struct {
	Created uint16 // IFF_* that the TAP has
	Asked   uint16 // IFF_* that it was to be opened with
}

func (e *MismatchError) Error() string {
	var texts []string
	for _, side := range []struct {
		flags     uint16
		text, fix string
	}{
		{e.Created &^ e.Asked, "it was created with %s and the VMM did not ask for it", `set "queues": 1`},
		{e.Asked &^ e.Created, "it was created without %s and the VMM asked for it", `set "queues" to what the VMM opens`},
	} {
		differ := side.flags & layoutFlags
		if differ == 0 {
			continue
		}
		text := fmt.Sprintf(side.text, strings.ToLower(FlagNames(differ)))
		if differ&unix.IFF_MULTI_QUEUE != 0 {
			text += "; " + side.fix
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}

// Unwrap gives EINVAL.
func (e *MismatchError) Unwrap() error { return unix.EINVAL }

// BusyError says that a TAP has no queue left to open. It is the driver's EBUSY, or E2BIG above [MaxQueues].
type BusyError struct {
	Attached int  // queues that are attached
	Multi    bool // the TAP was created with multi_queue
	Err      error
}

func (e *BusyError) Error() string {
	why := "its only queue is attached already"
	if e.Multi {
		why = fmt.Sprintf("%d queues are attached already and %d is the kernel's limit", e.Attached, MaxQueues)
	}
	return why + ` (` + e.Err.Error() + `); "tapirctl queues" says by whom`
}

// Unwrap gives the kernel's errno.
func (e *BusyError) Unwrap() error { return e.Err }

// check finds what the driver would refuse, or take in silence, before anything is opened.
func check(is Info, flags uint16, count int) error {
	if (is.Flags^flags)&layoutFlags != 0 {
		return &MismatchError{Created: is.Flags, Asked: flags}
	}
	if is.Flags&unix.IFF_MULTI_QUEUE == 0 && count > 1 {
		return &MismatchError{Created: is.Flags, Asked: flags | unix.IFF_MULTI_QUEUE}
	}
	return nil
}

// explain gives the driver's errno the reason that it stands for here. opened is how many queues went well before.
func explain(err error, is Info, flags uint16, opened int) error {
	attached, multi := max(1, is.Queues+is.Disabled+opened), flags&unix.IFF_MULTI_QUEUE != 0
	switch {
	case errors.Is(err, unix.E2BIG), errors.Is(err, unix.EBUSY) && !multi:
		return &BusyError{Attached: attached, Multi: multi, Err: errnoOf(err)}
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w; its owner and group must both be the caller's, or the caller have CAP_NET_ADMIN", err)
	}
	return err
}

func errnoOf(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
