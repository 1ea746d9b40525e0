package state

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrLocked is matched by a *[LockedError]: the state stayed locked for longer than [Config.LockWait] (CNI code 11).
	ErrLocked = errors.New("state is locked")
	// ErrBusy is returned by [AcquireHold] when another process keeps the attachment's hold (CNI code 11).
	ErrBusy = errors.New("attachment is being added")
	// ErrCorrupt is returned where the state is unreadable or lost and the kernel could not be asked for what it
	// described (CNI code 103).
	ErrCorrupt = errors.New("state is corrupt")
	// ErrSchema is returned where a version of tapir that is newer than this one wrote the state.
	ErrSchema = errors.New("state has an unknown schema")
	// ErrReadOnly is returned by a method that writes, called in a [Store.View] or where there is no state.
	ErrReadOnly = errors.New("state transaction is read-only")
)

// LockedError says which lock was waited for in vain and, where /proc/locks tells, who holds it.
type LockedError struct {
	Path string        // the lock file
	Wait time.Duration // how long it was waited for
	PID  int           // 0 where unknown
	Comm string        // the name of the process, empty where unknown
}

func (e *LockedError) Error() string {
	holder := "another process"
	if e.PID != 0 {
		holder = fmt.Sprintf("pid %d", e.PID)
		if e.Comm != "" {
			holder += fmt.Sprintf(" (%s)", e.Comm)
		}
	}
	return fmt.Sprintf("lock state %q: %s held it for the whole %v of waiting; try again, or look at what that process does",
		e.Path, holder, e.Wait)
}

// Is makes errors.Is(err, [ErrLocked]) true.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// MACInUseError says that another attachment of the network has the guest MAC.
type MACInUseError struct {
	MAC    string
	Holder Key
}

func (e *MACInUseError) Error() string {
	return fmt.Sprintf("guest MAC %s is used by attachment %q", e.MAC, e.Holder)
}

// corruptError is an [ErrCorrupt] with its cause. final is set once a rebuild was tried.
type corruptError struct {
	path  string
	cause error
	final bool
}

func (e *corruptError) Error() string {
	if e.final {
		return fmt.Sprintf("rebuild state %q from the kernel: %v", e.path, e.cause)
	}
	return fmt.Sprintf("read state %q: %v", e.path, e.cause)
}

func (e *corruptError) Is(target error) bool { return target == ErrCorrupt }
func (e *corruptError) Unwrap() error        { return e.cause }

// isCorrupt tells whether err asks for a rebuild.
func isCorrupt(err error) bool {
	var c *corruptError
	return errors.As(err, &c) && !c.final
}
