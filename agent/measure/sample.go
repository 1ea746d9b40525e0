// Package measure takes samples: everything that the kernel and the state count of the node's attachments, at one moment and
// in one go. It enters no network namespace for it.
package measure

import (
	"time"

	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/counts"
	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"github.com/tapir-cni/tapir/xdp"
)

// Sample is one reading. It is shared by all who asked meanwhile, and must not be changed.
type Sample struct {
	Time        time.Time     `json:"time"` // when it was begun; monotonic too, so that two samples can be told apart by Sub
	Took        time.Duration `json:"took"` // ns
	Attachments []*Attachment `json:"attachments"`
	IPAM        []Range       `json:"ipam"`
	Calls       []Calls       `json:"calls"`

	// Queues says whether queues could be told apart at all: nil, or why the kernel cannot be asked.
	QueuesErr error `json:"-"`
	// Problems are what could not be read, one a line; what depends on it is missing from the sample. Empty: all was read.
	Problems []string `json:"problems,omitempty"`
}

// Attachment is what was read of one attachment.
type Attachment struct {
	*watch.Attachment `json:"-"` // the picture when the sample was begun

	// TAP, Pod and Host are the devices with their counters, read for this sample; nil: not there.
	TAP  *links.Link `json:"tap,omitempty"`
	Pod  *links.Link `json:"pod,omitempty"`
	Host *links.Link `json:"host,omitempty"`

	// Frames are the redirect programs' counters by reason, since ADD; nil: there are none. A GSO frame counts as one.
	Frames map[xdp.Reason]xdp.Counter `json:"frames,omitempty"`
	// Shortcut are the counters of the shortcut's programs by reason, since ADD; nil where the attachment takes no part. What they sent on by
	// themselves is not among Frames.
	Shortcut map[xdp.ShortcutReason]xdp.Counter `json:"shortcut,omitempty"`

	// Queues are the open files of the TAP, the disabled ones too, by state and index; nil where [Sample.QueuesErr] says why. Queues that no process
	// holds (in flight in a socket, or io_uring's alone) are counted in TAP.Queues and are not among them.
	Queues []queueiter.Queue `json:"queues,omitempty"`

	NAPI NAPI `json:"napi"`
}

// NAPI is what sysfs says of a TAP (Documentation/ABI/testing/sysfs-class-net). Nil where it could not be read.
type NAPI struct {
	Threaded      *int `json:"threaded,omitempty"`      // 0; 1: threads; 2: threads that poll without end
	FlushTimeout  *int `json:"flushTimeout,omitempty"`  // gro_flush_timeout, ns
	DeferHardIRQs *int `json:"deferHardIRQs,omitempty"` // napi_defer_hard_irqs
}

// RingDrops are the frames to the guest that found no room in the ring, or no queue, since the TAP was made.
func (a *Attachment) RingDrops() uint64 {
	if a.TAP == nil {
		return 0
	}
	return a.TAP.Stats.TxDropped
}

// GRO is what became of the guest's frames on their way in: the TAP counts them as the VMM wrote them, the redirect program, which
// runs after GRO, as they go on. merged is how many were written for each that went on, 1 where none was merged (and where nothing
// was sent), and size the bytes of one that went on, with its Ethernet header. Both are of the time between an earlier sample of the attachment and
// this one; of all its life where before is nil. A guest that sends GSO frames has few and large ones without any GRO: size tells, merged does not.
func (a *Attachment) GRO(before *Attachment) (merged, size float64) {
	if a.TAP == nil || a.Frames == nil {
		return 1, 0
	}
	written, frames, bytes := a.guestFrames()
	if before != nil && before.TAP != nil && before.TAP.Index == a.TAP.Index {
		w, f, b := before.guestFrames()
		written, frames, bytes = written-w, frames-f, bytes-b
	}
	if frames == 0 {
		return 1, 0
	}
	return max(float64(written)/float64(frames), 1), float64(bytes) / float64(frames)
}

// guestFrames are the frames that the guest wrote and that came to GRO, and what came out of it. XDP takes frames before that, which the TAP
// counts all the same (tun_xdp_act in drivers/net/tun.c).
func (a *Attachment) guestFrames() (written, frames, bytes uint64) {
	written = a.TAP.Stats.RxFrames - a.Shortcut[xdp.ShortcutXDPToGuest].Frames - a.Shortcut[xdp.ShortcutXDPToUplink].Frames
	for r, c := range a.Frames {
		if fromGuest(r) {
			frames, bytes = frames+c.Frames, bytes+c.Bytes
		}
	}
	return written, frames, bytes
}

// fromGuest tells whether a reason is one of frames that the guest sent. (no_peer can be of either way, and is never met on an attachment
// that is whole.)
func fromGuest(r xdp.Reason) bool { return r != xdp.ReasonToGuest && r != xdp.ReasonNoPeer }

// Range is the use of one range of addresses, which is known once an address of it has been given out.
type Range struct {
	Dir     string `json:"stateDir"`
	Range   string `json:"range"`   // "first-last", both included
	Size    uint64 `json:"size"`    // addresses from first to last, gateways and excluded ones among them; saturates
	Leased  int    `json:"leased"`  // by whatever network
	Resting int    `json:"resting"` // released, and not to be used yet
}

// Calls are CNI calls of one kind.
type Calls struct {
	Dir string `json:"stateDir"`
	counts.Series
}
