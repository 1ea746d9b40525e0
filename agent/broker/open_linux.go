// Package broker hands the open queues of attachments to the processes that may have them: a unix socket that gives
// descriptors by SCM_RIGHTS (docs/tapird.md). It keeps nothing between two requests: what an attachment is, is read from the
// state and the kernel each time, and tokens are files.
package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/tapir-cni/tapir/agent/client"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"golang.org/x/sys/unix"
)

// refuse makes a refusal.
func refuse(code client.Code, format string, args ...any) *client.Error {
	return &client.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Open opens queues of an attachment's TAP and describes them; 0 are as many as it was made for. It asks nobody's leave. On
// error none stays open. Errors: [*client.Error].
func Open(a state.Attachment, count int) (*tap.Queues, client.Description, error) {
	if err := open(a); err != nil {
		return nil, client.Description{}, err
	}
	count, err := queueCount(a, count)
	if err != nil {
		return nil, client.Description{}, err
	}
	netns, _ := a.TAPNetns() // open has looked
	q, openErr := tap.OpenQueues(tap.QueueOptions{Netns: netns, Name: a.TAP.Name, Index: a.TAP.Index, Count: count, NAPI: !a.NoNAPI})
	if openErr != nil {
		return nil, client.Description{}, openRefusal(openErr)
	}
	d := client.Description{
		Version: client.Version, Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName,
		Name: q.Name, Netns: netns, MTU: a.MTU, MAC: a.GuestMAC, Queues: count, Flags: int(q.Flags), NAPI: q.Flags&unix.IFF_NAPI != 0,
	}
	if q.Flags&unix.IFF_VNET_HDR != 0 {
		size, err := unix.IoctlGetInt(q.FDs()[0], unix.TUNGETVNETHDRSZ)
		if err != nil {
			return nil, client.Description{}, refuse(client.Internal, "%v", errors.Join(fmt.Errorf("read the vnet header's size of %q: %w", q.Name, err), q.Close()))
		}
		d.VnetHdrSize = size
	}
	return q, d, nil
}

// open tells whether the attachment has a TAP that could be opened: made whole, in a network namespace that is there. That of a TAP in
// the host's is this process's own.
func open(a state.Attachment) error {
	netns, known := a.TAPNetns()
	switch {
	case a.Status != state.Ready:
		return refuse(client.NotReady, "attachment %q: want it ready, got %q: its ADD has not ended", a.Key, a.Status)
	case a.TAP.Index == 0:
		return refuse(client.NoTAP, "attachment %q has no TAP", a.Key)
	case !known:
		return refuse(client.NetnsGone, "attachment %q: its network namespace is not known: the record was rebuilt from the kernel", a.Key)
	}
	if netns == "" {
		return nil
	}
	var sfs unix.Statfs_t
	err := unix.Statfs(netns, &sfs)
	if err == nil && sfs.Type != unix.NSFS_MAGIC {
		err = errors.New("it is a file and no namespace: it was unmounted")
	}
	if err != nil {
		return refuse(client.NetnsGone, "attachment %q: network namespace %q: %v", a.Key, netns, err)
	}
	return nil
}

// queueCount is how many queues to open.
func queueCount(a state.Attachment, asked int) (int, *client.Error) {
	have := max(a.Queues, 1)
	if a.Rebuilt && a.Queues == 0 && asked > 0 {
		have = tap.MaxQueues // a multi-queue TAP, and how many it was made for nobody knows any more
	}
	switch {
	case asked < 0 || asked > tap.MaxQueues:
		return 0, refuse(client.BadQueues, "queues: want 1 to %d, or 0 for all, got %d", tap.MaxQueues, asked)
	case asked > have:
		return 0, refuse(client.BadQueues, "queues: want at most %d, which tap %q was made for, got %d", have, a.TAP.Name, asked)
	case asked == 0:
		return have, nil
	}
	return asked, nil
}

// openRefusal says what kind of failure it was.
func openRefusal(err error) *client.Error {
	var busy *tap.BusyError
	switch {
	case errors.As(err, &busy):
		return refuse(client.QueueBusy, "%v", err)
	case gone(err):
		return refuse(client.TAPGone, "%v", err)
	case errors.Is(err, fs.ErrNotExist):
		return refuse(client.NetnsGone, "%v", err)
	}
	return refuse(client.Internal, "%v", err)
}

// gone tells whether the TAP is no longer there, or is another one.
func gone(err error) bool { return rtnl.Gone(err) || errors.Is(err, unix.ENODEV) }

// closeQueues closes what was handed over, or could not be.
func closeQueues(q *tap.Queues) error {
	if err := q.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close the queues of %q: %w", q.Name, err)
	}
	return nil
}
