package state

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Key names one attachment: one interface of one sandbox in one network. It is what the CNI specification
// calls an attachment, and it is compared whole: ids are never cut.
type Key struct {
	Network     string `json:"network"`     // the "name" of the network configuration
	ContainerID string `json:"containerID"` // CNI_CONTAINERID
	IfName      string `json:"ifName"`      // CNI_IFNAME
}

// aliasPrefix starts the ifalias of each device that tapir creates.
const aliasPrefix = "tapir:"

// MaxAliasLen is the longest ifalias that the kernel keeps, in bytes (IFALIASZ less the terminating NUL,
// include/uapi/linux/if.h).
const MaxAliasLen = 255

// String is the key as people write it: network/container id/ifname.
func (k Key) String() string { return k.Network + "/" + k.ContainerID + "/" + k.IfName }

// Alias is the ifalias of each device of the attachment: "tapir:<network>/<container id>/<ifname>".
func (k Key) Alias() string { return aliasPrefix + k.String() }

// ParseAlias is the inverse of [Key.Alias]. A device that is not tapir's gives ok == false.
func ParseAlias(alias string) (k Key, ok bool) {
	rest, found := strings.CutPrefix(alias, aliasPrefix)
	if !found {
		return Key{}, false
	}
	// CNI allows no '/' in any of the three.
	parts := strings.Split(rest, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return Key{}, false
	}
	return Key{Network: parts[0], ContainerID: parts[1], IfName: parts[2]}, true
}

// Status is how far an ADD came.
type Status string

// The states of an attachment. Pending is what a crashed or running ADD leaves; DEL, GC, the next ADD and the
// agent clean it.
const (
	Pending Status = "pending"
	Ready   Status = "ready"
)

// Device is one network device of an attachment.
type Device struct {
	Name  string `json:"name"`
	Index int    `json:"index"` // ifindex, unique on the node for the devices that tapir creates
	MAC   string `json:"mac,omitempty"`
}

// Address is one address of the guest with the gateway it was given.
type Address struct {
	Prefix  netip.Prefix `json:"prefix"`           // host address with the on-link prefix length
	Gateway netip.Addr   `json:"gateway,omitzero"` // invalid where the range has none
}

// Route is one route of the guest.
type Route struct {
	Dst netip.Prefix `json:"dst"`
	GW  netip.Addr   `json:"gw,omitzero"`
}

// DNS is what the guest resolves names by, as in the CNI result.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Domain      string   `json:"domain,omitempty"`
	Search      []string `json:"search,omitempty"`
	Options     []string `json:"options,omitempty"`
}

// Empty reports whether nothing is said about names.
func (d DNS) Empty() bool {
	return len(d.Nameservers)+len(d.Search)+len(d.Options) == 0 && d.Domain == ""
}

// Attachment is everything that tapir must know of an attachment to show, check and remove it.
type Attachment struct {
	Key
	Status  Status    `json:"status"`
	Created time.Time `json:"created"`
	Netns   string    `json:"netns"` // CNI_NETNS; empty after a rebuild from the kernel

	// The pod, as CNI_ARGS name it; empty without Kubernetes, and after a rebuild from the kernel.
	PodName      string `json:"podName,omitempty"`
	PodNamespace string `json:"podNamespace,omitempty"`

	TAP  Device `json:"tap,omitzero"`  // zero for a plain pod
	Pod  Device `json:"pod,omitzero"`  // the veth's end in the pod's netns; zero with placement host
	Host Device `json:"host,omitzero"` // the veth's end in the host's netns; zero with placement host

	// Group is the IFLA_GROUP of the attachment's devices in the pod's netns: one request deletes them all.
	Group uint32 `json:"group,omitempty"`

	Placement string `json:"placement"`     // [PlacementPod] or [PlacementHost]; a plain pod's is the former
	DAN       string `json:"dan,omitempty"` // path of the file by which Kata finds the TAP
	VMM       string `json:"vmm"`
	Queues    int    `json:"queues"` // 0 for a plain pod, and where a record was rebuilt from a multi-queue TAP
	Owner     *int   `json:"owner,omitempty"`
	GroupID   *int   `json:"groupID,omitempty"` // the TAP's group
	TxQueue   int    `json:"txQueueLen,omitempty"`
	NoNAPI    bool   `json:"noNAPI,omitempty"`  // the configuration says "napi": false; a rebuilt record does not know, and has NAPI on
	Profile   string `json:"profile,omitempty"` // of the agent's tuner, that the pod asks for by annotation; it is for tapird's configuration to allow it
	MTU       int    `json:"mtu"`
	GuestMAC  string `json:"guestMAC"`

	Addresses []Address `json:"addresses,omitempty"` // of the pod, IPv4 first; the guest's too, but for those of Guest
	Guest     []Address `json:"guest,omitempty"`     // what the guest has in place of the pod's address of the family, the same in each clone of a snapshot: IPv4 first
	FixedMAC  bool      `json:"fixedMAC,omitempty"`  // GuestMAC is the same in each clone: others of the network may have it
	Routes    []Route   `json:"routes,omitempty"`
	DNS       DNS       `json:"dns,omitzero"`

	// Chained is a TAP on the interface of another plugin: the pod end is not tapir's, and there is no host end.
	Chained   bool         `json:"chained,omitempty"`
	Answer    []netip.Addr `json:"answer,omitempty"`    // gateways that the TAP answers for, on the interface of another plugin
	AnswerMAC string       `json:"answerMAC,omitempty"` // with this MAC

	XDP       XDP        `json:"xdp,omitzero"`        // its part in the shortcut
	Bandwidth *Bandwidth `json:"bandwidth,omitempty"` // its limits; nil: none

	SpoofCheck bool   `json:"spoofCheck"`
	Masquerade string `json:"masquerade,omitempty"` // the nftables chain that masquerades it
	Redirect   string `json:"redirect,omitempty"`   // tcx | clsact: what is attached
	Programs   string `json:"programs,omitempty"`   // the digest of the pinned programs that are attached
	Rebuilt    bool   `json:"rebuilt,omitempty"`    // the record was rebuilt from the kernel
}

// Where a TAP may stand.
const (
	PlacementPod  = "pod"
	PlacementHost = "host"
)

// OnHost reports whether the TAP stands in the host's netns and there is no veth.
func (a Attachment) OnHost() bool { return a.Placement == PlacementHost }

// TAPNetns is the path of the netns that the TAP stands in; "" is the host's, in which whoever asks is taken to run. known is false
// for a record that was rebuilt from the kernel and whose TAP is in a sandbox.
func (a Attachment) TAPNetns() (path string, known bool) {
	if a.OnHost() {
		return "", true
	}
	return a.Netns, a.Netns != ""
}

func (a Attachment) String() string { return fmt.Sprintf("%s (%s)", a.Key, a.Status) }
