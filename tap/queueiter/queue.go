package queueiter

import (
	"cmp"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Attach is whether an open file is a queue of a device.
type Attach uint8

// The states of an open file of /dev/net/tun.
const (
	AttachUnknown Attach = iota
	Unattached           // no TUNSETIFF yet, or its device was deleted
	Enabled              // a queue that takes part
	Disabled             // a queue that TUNSETQUEUE took out, IFF_DETACH_QUEUE
)

func (a Attach) String() string {
	switch a {
	case Unattached:
		return "unattached"
	case Enabled:
		return "enabled"
	case Disabled:
		return "disabled"
	}
	return "unknown"
}

// MarshalText gives the name.
func (a Attach) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// Opened is how a process came to a queue.
type Opened uint8

// The ways to a queue.
const (
	OpenedUnknown Opened = iota // the opener has ended, executed another program or changed its identity since
	ByName                      // the program that holds the file opened /dev/net/tun itself
	HandedOver                  // another process that still runs opened it: SCM_RIGHTS, pidfd_getfd, or inherited at fork
)

func (o Opened) String() string {
	switch o {
	case ByName:
		return "by name"
	case HandedOver:
		return "handed over"
	}
	return "unknown"
}

// MarshalText gives the name.
func (o Opened) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Holder is a descriptor of a queue.
type Holder struct {
	PID    int    `json:"pid"`  // of the process, as the reader's pid namespace numbers it
	FD     int    `json:"fd"`   // its number there
	Comm   string `json:"comm"` // the process's name, at most 15 bytes, as it chose it
	Opened Opened `json:"opened"`
	Opener int    `json:"opener,omitempty"` // pid of the process that opened it; 0: unknown
}

// Device is the TAP or TUN device of a queue.
type Device struct {
	Name        string `json:"name"`
	Index       int    `json:"index"`       // ifindex
	Netns       uint32 `json:"netns"`       // inode of the network namespace that the device is in
	Flags       uint16 `json:"flags"`       // IFF_*: the device's, so nothing is said of NAPI (use [Queue.NAPI])
	VnetHdrSize int    `json:"vnetHdrSize"` // bytes; of no effect without IFF_VNET_HDR
	Queues      int    `json:"queues"`      // attached and enabled, those that no process holds included
	Disabled    int    `json:"disabled"`    // attached and disabled
}

// VnetHdr is the length of the virtio-net header before each frame in bytes, 0 where there is none.
func (d Device) VnetHdr() int {
	if d.Flags&unix.IFF_VNET_HDR == 0 {
		return 0
	}
	return d.VnetHdrSize
}

// Queue is one open file of /dev/net/tun.
type Queue struct {
	Attach    Attach   `json:"attach"`
	Index     int      `json:"index"` // of the queue; a disabled one keeps its last
	NAPI      bool     `json:"napi"`
	NAPIFrags bool     `json:"napiFrags"`
	Thread    int      `json:"thread,omitempty"` // the kernel thread that polls it (napi/NAME-ID, whose name others may carry too), as the reader's pid namespace numbers it; 0: none, or not visible
	Ring      int      `json:"ring"`             // frames that fit into its ring towards the guest
	OpenedIn  uint32   `json:"openedIn"`         // inode of the network namespace in which /dev/net/tun was opened
	Device    Device   `json:"device"`           // zero while unattached
	Holders   []Holder `json:"holders"`          // by pid, then descriptor; never empty
}

// gather makes one Queue of all descriptors of a file and tells who opened it. Queues are in the order of netns, ifindex,
// state, index and first holder.
func gather(records []bpfQueue, openers []bpfOpener) []Queue {
	process := make(map[uint64]bpfOpener, len(openers))
	for _, o := range openers {
		process[o.Cred] = o
	}
	byFile := make(map[uint64]*Queue)
	var order []uint64
	for _, r := range records {
		q, ok := byFile[r.File]
		if !ok {
			q = queueOf(r)
			byFile[r.File] = q
			order = append(order, r.File)
		}
		q.Holders = append(q.Holders, holderOf(r, process))
	}
	all := make([]Queue, 0, len(order))
	for _, file := range order {
		q := byFile[file]
		slices.SortFunc(q.Holders, func(a, b Holder) int {
			return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.FD, b.FD))
		})
		q.Holders = slices.Compact(q.Holders) // threads that unshared their files show the same descriptor
		all = append(all, *q)
	}
	slices.SortFunc(all, func(a, b Queue) int {
		return cmp.Or(cmp.Compare(a.Device.Netns, b.Device.Netns), cmp.Compare(a.Device.Index, b.Device.Index),
			cmp.Compare(a.Attach, b.Attach), cmp.Compare(a.Index, b.Index), cmp.Compare(a.Holders[0].PID, b.Holders[0].PID),
			cmp.Compare(a.Holders[0].FD, b.Holders[0].FD))
	})
	return all
}

func queueOf(r bpfQueue) *Queue {
	q := &Queue{Attach: Unattached, OpenedIn: r.Netns}
	switch r.Attach {
	case bpfAttachATTACH_NONE:
		return q
	case bpfAttachATTACH_ENABLED:
		q.Attach = Enabled
	case bpfAttachATTACH_DISABLED:
		q.Attach = Disabled
	default:
		q.Attach = AttachUnknown
	}
	q.Index, q.NAPI, q.NAPIFrags, q.Ring = int(r.QueueIndex), r.Napi != 0, r.NapiFrags != 0, int(r.Ring)
	q.Thread = int(r.PollThread)
	q.Device = Device{
		Name: text(r.Name), Index: int(r.Ifindex), Netns: r.DevNetns, Flags: uint16(r.Flags), VnetHdrSize: int(r.VnetHdrSz),
		Queues: int(r.Numqueues), Disabled: int(r.Numdisabled),
	}
	return q
}

func holderOf(r bpfQueue, process map[uint64]bpfOpener) Holder {
	h := Holder{PID: int(r.Pid), FD: int(r.Fd), Comm: text(r.Comm)}
	if opener, ok := process[r.OpenCred]; ok && opener.Pid != 0 {
		h.Opener, h.Opened = int(opener.Pid), HandedOver
		if h.Opener == h.PID {
			h.Opened = ByName
		}
	}
	return h
}

func text(c [16]int8) string {
	b := make([]byte, 0, len(c))
	for _, v := range c {
		if v == 0 {
			break
		}
		b = append(b, byte(v))
	}
	return string(b)
}

// UnsupportedError says that this kernel cannot be asked.
type UnsupportedError struct {
	Needs string // "kernel 5.8 with …"
	Err   error  // what was met
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("the kernel cannot tell which queue runs NAPI (%v); it needs %s", e.Err, e.Needs)
}

// Unwrap gives what was met.
func (e *UnsupportedError) Unwrap() error { return e.Err }
