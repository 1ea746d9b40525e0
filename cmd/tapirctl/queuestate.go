package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"golang.org/x/sys/unix"
)

// What is known of a setting.
const (
	yes     = "yes"
	no      = "no"
	unknown = "unknown"
)

// States of a row that are none of an open file's.
const (
	notOpen = "not open"
	nobodys = "held by no process"
)

// queueRow is one descriptor of one queue of an attachment's TAP, as "queues -o json" prints it; or a queue that no process holds; or a TAP
// that nobody has opened.
type queueRow struct {
	state.Key
	Netns      string  `json:"netns"` // empty: the host's
	TAP        string  `json:"tap"`
	Queue      *int    `json:"queue,omitempty"`
	State      string  `json:"state"` // enabled, disabled, held by no process, not open, or unknown
	PID        int     `json:"pid,omitempty"`
	FD         int     `json:"fd,omitempty"`
	Program    string  `json:"program,omitempty"` // base name of what the process executes
	Opened     string  `json:"opened"`            // by name, handed over or unknown
	Opener     int     `json:"opener,omitempty"`  // pid of who opened it
	NAPI       string  `json:"napi"`              // yes, no or unknown: the kernel's own, of this queue
	VnetHdr    int     `json:"vnetHdr"`           // bytes; 0 without one
	MultiQueue bool    `json:"multiQueue"`
	Threaded   string  `json:"threaded"`   // yes, no or unknown: of the device
	Ring       int     `json:"ring"`       // frames; of a queue that is not known, what the next to be opened gets
	TxQueueLen int     `json:"txQueueLen"` // frames; of the device
	Dropped    *uint64 `json:"dropped"`    // frames to the guest; of the device
	Note       string  `json:"note,omitempty"`

	noNAPI bool   // the configuration says "napi": false
	vmm    string // as the configuration names it
}

// queueReader joins what the kernel says of open files with what is recorded of attachments.
type queueReader struct {
	iter *queueiter.Iterator
	why  error // why there is none
}

// newQueueReader never fails: without the iterator NAPI is unknown, and the reason is kept.
func newQueueReader() *queueReader {
	iter, err := queueiter.Open()
	return &queueReader{iter: iter, why: err}
}

func (r *queueReader) close() error {
	if r.iter == nil {
		return nil
	}
	return r.iter.Close()
}

// rows are those of the attachments that have a TAP. Files and devices are read one after the other: a queue that was opened between
// looks as if nobody held it, so what looks so is looked at again.
func (r *queueReader) rows(all []recorded) ([]queueRow, error) {
	const looks = 3
	for look := 1; ; look++ {
		rows, err := r.look(all)
		if err != nil || look == looks || !slices.ContainsFunc(rows, func(row queueRow) bool { return row.State == nobodys }) {
			return rows, err
		}
	}
}

func (r *queueReader) look(all []recorded) ([]queueRow, error) {
	var open []queueiter.Queue
	if r.iter != nil {
		var err error
		if open, err = r.iter.Read(); err != nil {
			return nil, err
		}
	}
	rows := []queueRow{}
	for _, a := range all {
		if a.TAP.Name != "" {
			rows = append(rows, r.attachmentRows(a.Attachment, open)...)
		}
	}
	return rows, nil
}

func (r *queueReader) attachmentRows(a state.Attachment, open []queueiter.Queue) []queueRow {
	path, known := a.TAPNetns()
	base := queueRow{
		Key: a.Key, Netns: path, TAP: a.TAP.Name, State: unknown, Opened: unknown, NAPI: unknown, Threaded: unknown,
		MultiQueue: a.Queues > 1, Ring: a.TxQueue, TxQueueLen: a.TxQueue, noNAPI: a.NoNAPI, vmm: a.VMM,
	}
	netns, err := netnsInode(path, known)
	if err != nil {
		base.Note = err.Error()
		return []queueRow{base}
	}
	counted := 0 // queues that the device has
	switch status, err := tap.ReadStatus(path, a.TAP.Index); {
	case !known:
		base.Note = "the sandbox is not known: the record was rebuilt from the kernel"
	case err != nil:
		base.Note = err.Error()
	default:
		base.setStatus(status)
		counted = status.Queues + status.Disabled
	}
	var rows []queueRow
	seen := 0
	for _, q := range open {
		if q.Device.Index != a.TAP.Index || q.Device.Name != a.TAP.Name || netns != 0 && q.Device.Netns != netns {
			continue
		}
		seen++
		for _, h := range q.Holders {
			rows = append(rows, base.of(q, h))
		}
	}
	return append(rows, r.remaining(base, counted, seen)...)
}

// remaining is the row of the queues that no descriptor of a process accounts for.
func (r *queueReader) remaining(base queueRow, counted, seen int) []queueRow {
	switch {
	case r.iter == nil:
		base.Note = join(base.Note, "needs the kernel's own word: "+r.why.Error())
		if counted > 0 {
			base.Note = join(fmt.Sprintf("%d queues are open", counted), base.Note)
		}
	case counted > seen:
		base.State = nobodys
		base.Note = fmt.Sprintf("%d more queues: in flight in a socket, or held by io_uring or vhost alone, or another pid namespace's", counted-seen)
	case seen == 0:
		if base.Note == "" {
			base.State = notOpen
		}
	default:
		return nil
	}
	return []queueRow{base}
}

func (row *queueRow) setStatus(s tap.Status) {
	row.MultiQueue = s.Flags&unix.IFF_MULTI_QUEUE != 0
	row.Ring, row.TxQueueLen, row.Dropped = s.TxQueueLen, s.TxQueueLen, &s.TxDropped
	if s.Threaded != nil {
		row.Threaded = yesNo(*s.Threaded)
	}
}

// of is the row of one descriptor.
func (row queueRow) of(q queueiter.Queue, h queueiter.Holder) queueRow {
	index := q.Index
	row.Queue, row.State = &index, q.Attach.String()
	row.PID, row.FD, row.Program = h.PID, h.FD, program(h)
	row.Opened, row.Opener = h.Opened.String(), h.Opener
	row.NAPI, row.VnetHdr, row.Ring = yesNo(q.NAPI), q.Device.VnetHdr(), q.Ring
	row.MultiQueue = q.Device.Flags&unix.IFF_MULTI_QUEUE != 0
	return row
}

func yesNo(b bool) string {
	if b {
		return yes
	}
	return no
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// program is what a process executes, by its file's name; by its own name where that cannot be read.
func program(h queueiter.Holder) string {
	exe, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(h.PID), "exe"))
	if err != nil {
		return h.Comm
	}
	return filepath.Base(strings.TrimSuffix(exe, " (deleted)"))
}

// netnsInode is the inode by which the kernel names a network namespace, "" this process's own; 0 where the path is not known.
func netnsInode(path string, known bool) (uint32, error) {
	switch {
	case !known:
		return 0, nil
	case path == "":
		path = "/proc/thread-self/ns/net"
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return 0, fmt.Errorf("its network namespace %s is gone", path)
		}
		return 0, fmt.Errorf("read its network namespace %s: %w", path, err)
	}
	return uint32(st.Ino), nil
}
