// Package watch keeps the live picture of the node's attachments: what the state folders record, joined with what the kernel
// says of the devices, in whatever network namespace they are. It is told of every change by inotify and one netlink socket, and
// tells those who subscribe.
package watch

import (
	"cmp"
	"slices"

	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/state"
)

// ID names an attachment on the node: two state folders may know the same key.
type ID struct {
	Dir string `json:"stateDir"` // the state folder
	state.Key
}

func compareID(a, b ID) int {
	return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.IfName, b.IfName), cmp.Compare(a.Dir, b.Dir))
}

// Netns is what is known of the network namespace that a sandbox is in.
type Netns uint8

// The states of a namespace.
const (
	NetnsUnknown Netns = iota // a record rebuilt from the kernel does not say where it is, or it could not be asked
	NetnsThere
	NetnsLost // taken down, or nothing is mounted at its path any more
)

func (n Netns) String() string {
	switch n {
	case NetnsThere:
		return "there"
	case NetnsLost:
		return "lost"
	}
	return "unknown"
}

// MarshalText gives the name.
func (n Netns) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// Attachment is one attachment at one moment. It is never changed, and must not be: a change makes another one.
type Attachment struct {
	ID
	Record state.Attachment
	Netns  Netns
	NSID   int   // of the sandbox's namespace in tapird's own, while Netns is NetnsThere
	Why    error // why Netns is not NetnsThere, or a device could not be read; nil else

	// TAP, Pod and Host are the devices as the kernel last showed them; nil: the attachment has no such device, or it is not there. Their
	// counters are those of that moment: package measure reads them anew.
	TAP, Pod, Host *links.Link
}

// Attached is how many queues of the TAP are attached and enabled: 0 or 1 without IFF_MULTI_QUEUE.
func (a *Attachment) Attached() int {
	if a.TAP == nil {
		return 0
	}
	return a.TAP.Queues
}

// Ready tells whether the ADD has ended.
func (a *Attachment) Ready() bool { return a.Record.Status == state.Ready }

// link is the place of a device.
func (a *Attachment) link(r Role) **links.Link {
	switch r {
	case TAP:
		return &a.TAP
	case Pod:
		return &a.Pod
	}
	return &a.Host
}

// device is what the record says of a device; its Index is 0 where the attachment has none.
func (a *Attachment) device(r Role) state.Device {
	switch r {
	case TAP:
		return a.Record.TAP
	case Pod:
		return a.Record.Pod
	}
	return a.Record.Host
}

// Ref is where a device is; ok is false where the attachment has none, or its namespace is not there.
func (a *Attachment) Ref(r Role) (ref links.Ref, ok bool) {
	d := a.device(r)
	if r == Host || r == TAP && a.Record.OnHost() {
		return links.Ref{NSID: links.Here, Index: d.Index}, d.Index != 0
	}
	return links.Ref{NSID: a.NSID, Index: d.Index}, d.Index != 0 && a.Netns == NetnsThere
}

// Owns tells whether a link that was read by [Attachment.Ref] is the attachment's device: another one may have its ifindex in a namespace
// that took its predecessor's nsid.
func (a *Attachment) Owns(r Role, link *links.Link) bool {
	if r == Pod && a.Record.Chained {
		return link.Name == a.Record.Pod.Name // it is another plugin's
	}
	return link.Alias == a.Alias()
}

func sortedByID(list []*Attachment) []*Attachment {
	slices.SortFunc(list, func(a, b *Attachment) int { return compareID(a.ID, b.ID) })
	return list
}
