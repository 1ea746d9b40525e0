package watch

// Role is a device of an attachment.
type Role uint8

// The devices of an attachment.
const (
	NoDevice Role = iota
	TAP
	Pod  // CNI_IFNAME in the sandbox
	Host // the other end of its veth
)

var roles = []Role{TAP, Pod, Host}

func (r Role) String() string {
	switch r {
	case TAP:
		return "tap"
	case Pod:
		return "pod"
	case Host:
		return "host"
	}
	return "none"
}

// Kind is what happened.
type Kind uint8

// The kinds of events.
const (
	// Added: there is a record, pending or ready. Who subscribes gets one for each attachment that is there. Queues may
	// be attached already: see After.
	Added Kind = iota + 1
	// Removed: there is no record any more.
	Removed
	// Changed: the record is another than before, as when an ADD ends.
	Changed
	// QueueAttached: more queues of the TAP are attached and enabled than before, by TUNSETIFF or TUNSETQUEUE. The kernel sends a message for
	// each (tun_set_iff and tun_set_queue in drivers/net/tun.c, netdev_state_change), with the count for a multi-queue TAP and
	// a carrier for the other; two in a row may be one event.
	QueueAttached
	// QueueDetached: fewer than before. A queue that was closed and opened again in no time gives both: a TAP without multi-queue counts
	// how often its carrier came; of a multi-queue TAP one may be missed when the kernel's messages were lost, and only then.
	QueueDetached
	// LinkChanged: name, up, carrier, MTU, txqueuelen or disabled queues of a device are others, or it came or went.
	LinkChanged
	// NetnsGone: the sandbox's namespace is being taken down, with or without a DEL.
	NetnsGone
)

func (k Kind) String() string {
	switch k {
	case Added:
		return "added"
	case Removed:
		return "removed"
	case Changed:
		return "changed"
	case QueueAttached:
		return "queue attached"
	case QueueDetached:
		return "queue detached"
	case LinkChanged:
		return "link changed"
	case NetnsGone:
		return "netns gone"
	}
	return "unknown"
}

// Event is one change of one attachment. Events of a subscriber come one after the other in the order in which things happened.
type Event struct {
	Kind   Kind
	Device Role        // of LinkChanged
	Before *Attachment // nil with Added
	After  *Attachment // as Before with Removed
}
