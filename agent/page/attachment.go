package page

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/agent/journal"
	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"github.com/tapir-cni/tapir/xdp"
)

// Kinds of attachments.
const (
	kindTAP     = "tap"     // a TAP in the sandbox, and a veth
	kindHost    = "host"    // a TAP on the host, no veth
	kindChained = "chained" // a TAP on another plugin's interface
	kindPlain   = "plain"   // no TAP
)

// Attachment is a row of /api/v1/attachments.
type Attachment struct {
	watch.ID
	Pod       string       `json:"pod,omitempty"` // namespace/name; empty without Kubernetes
	Kind      string       `json:"kind"`          // tap, host, chained or plain
	Status    state.Status `json:"status"`
	Netns     string       `json:"netns"`         // there, lost or unknown
	Why       string       `json:"why,omitempty"` // why a device or the namespace could not be read
	Created   time.Time    `json:"created"`
	VMM       string       `json:"vmm"`
	Addresses []string     `json:"addresses"` // with the on-link prefix length
	MAC       string       `json:"mac"`       // of the guest
	Shortcut  string       `json:"shortcut"`  // native or generic; empty: no part in it

	Device   string   `json:"device"` // the TAP; of a plain pod the veth's end on the host
	Attached int      `json:"attached"`
	Disabled int      `json:"disabled,omitempty"`
	Ring     int      `json:"ring,omitempty"` // frames
	Counters Counters `json:"counters"`

	NAPI   measure.NAPI `json:"napi"`
	Queues []Queue      `json:"queues"` // those that a process holds
	Tuned  *Tuned       `json:"tuned,omitempty"`
}

// Queue is one open file of a TAP.
type Queue struct {
	Index   int      `json:"index"`
	State   string   `json:"state"` // enabled or disabled
	NAPI    bool     `json:"napi"`
	Thread  int      `json:"thread,omitempty"` // pid of the kernel thread that polls it
	Ring    int      `json:"ring"`             // frames
	Holders []Holder `json:"holders"`
}

// Holder is a process that has a queue open.
type Holder struct {
	PID    int    `json:"pid"`
	FD     int    `json:"fd"`
	Comm   string `json:"comm"`
	Opened string `json:"opened"` // by name, handed over or unknown
}

func queuesOf(all []queueiter.Queue) []Queue {
	list := make([]Queue, 0, len(all))
	for _, q := range all {
		one := Queue{Index: q.Index, State: q.Attach.String(), NAPI: q.NAPI, Thread: q.Thread, Ring: q.Ring, Holders: []Holder{}}
		for _, h := range q.Holders {
			one.Holders = append(one.Holders, Holder{PID: h.PID, FD: h.FD, Comm: h.Comm, Opened: h.Opened.String()})
		}
		list = append(list, one)
	}
	return list
}

// Counters are since ADD. "From" and "to" are as the guest sees it: frames that it wrote, and frames that were put into its ring.
type Counters struct {
	FromFrames uint64 `json:"fromFrames"`
	FromBytes  uint64 `json:"fromBytes"`
	ToFrames   uint64 `json:"toFrames"`
	ToBytes    uint64 `json:"toBytes"`
	RingDrops  uint64 `json:"ringDrops"` // to the guest: no room, or no queue
	Refused    uint64 `json:"refused"`   // from the guest: dropped by tapir's programs
	Shortcut   uint64 `json:"shortcut"`  // from the guest: frames that took the shortcut
}

// CountersOf are those of a TAP; of a plain pod, those of the veth's end on the host, seen from the other side.
func CountersOf(a *measure.Attachment) Counters {
	c := Counters{RingDrops: a.RingDrops()}
	if own := deviceOf(a); own != nil {
		c.FromFrames, c.FromBytes, c.ToFrames, c.ToBytes = own.Stats.RxFrames, own.Stats.RxBytes, own.Stats.TxFrames, own.Stats.TxBytes
	}
	for r, n := range a.Frames {
		if r.Dropped() {
			c.Refused += n.Frames
		}
	}
	for r, n := range a.Shortcut {
		switch {
		case r.Beside():
		case r.Taken():
			c.Shortcut += n.Frames
		case r.Dropped():
			c.Refused += n.Frames
		}
	}
	return c
}

// deviceOf is the device whose counters are the guest's; nil: it is not there.
func deviceOf(a *measure.Attachment) *links.Link {
	if a.Record.TAP.Index == 0 {
		return a.Host
	}
	return a.TAP
}

// KindOf is the kind of an attachment: "tap", "host", "chained" or "plain".
func KindOf(r state.Attachment) string {
	switch {
	case r.TAP.Index == 0:
		return kindPlain
	case r.Chained:
		return kindChained
	case r.OnHost():
		return kindHost
	}
	return kindTAP
}

func (p *Page) row(a *measure.Attachment) Attachment {
	r := a.Record
	row := Attachment{
		ID: a.ID, Kind: KindOf(r), Status: r.Status, Netns: a.Netns.String(), Created: r.Created, VMM: r.VMM, Addresses: []string{}, MAC: r.GuestMAC,
		Shortcut: r.XDP.Mode, Device: r.TAP.Name, Counters: CountersOf(a), NAPI: a.NAPI, Queues: queuesOf(a.Queues),
	}
	if r.PodName != "" {
		row.Pod = r.PodNamespace + "/" + r.PodName
	}
	if a.Why != nil {
		row.Why = a.Why.Error()
	}
	for _, ip := range r.Addresses {
		row.Addresses = append(row.Addresses, ip.Prefix.String())
	}
	if row.Device == "" {
		row.Device = r.Host.Name
	}
	if a.TAP != nil {
		row.Attached, row.Disabled, row.Ring = a.TAP.Queues, a.TAP.Disabled, a.TAP.TxQueueLen
	}
	if p.c.Tuned != nil {
		if t, ok := p.c.Tuned(a.ID); ok {
			row.Tuned = &t
		}
	}
	return row
}

// listAnswer is /api/v1/attachments.
type listAnswer struct {
	at
	Attachments []Attachment `json:"attachments"` // by network, container id and ifname
}

func (p *Page) attachments(w http.ResponseWriter, r *http.Request) {
	s, ok := p.sample(w, r)
	if !ok {
		return
	}
	data, err := p.list.get(s, func() any {
		a := listAnswer{at: p.at(s.Time), Attachments: make([]Attachment, 0, len(s.Attachments))}
		for _, one := range s.Attachments {
			a.Attachments = append(a.Attachments, p.row(one))
		}
		return a
	})
	if err != nil {
		answerError(w, http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // who asked may be gone
}

// detailAnswer is one attachment with all that is known of it.
type detailAnswer struct {
	at
	Attachment Attachment       `json:"attachment"`
	Record     state.Attachment `json:"record"`
	TAP        *links.Link      `json:"tap,omitempty"`
	PodEnd     *links.Link      `json:"podEnd,omitempty"`
	HostEnd    *links.Link      `json:"hostEnd,omitempty"`
	Frames     []Reason         `json:"frames"`   // by reason, most first, those above 0
	Shortcut   []Reason         `json:"shortcut"` // likewise
	Path       Path             `json:"path"`
	Changes    []journal.Change `json:"changes"`   // settings that tapird changed
	Decisions  []Decision       `json:"decisions"` // newest first
	Findings   []Finding        `json:"findings"`
}

// Reason is a counter with its name.
type Reason struct {
	Name string `json:"name"`
	xdp.Counter
	Dropped bool `json:"dropped,omitempty"`
}

// attachment answers for one; ?stateDir= names the folder where two know the same key.
func (p *Page) attachment(w http.ResponseWriter, r *http.Request) {
	s, ok := p.sample(w, r)
	if !ok {
		return
	}
	key := state.Key{Network: r.PathValue("network"), ContainerID: r.PathValue("containerID"), IfName: r.PathValue("ifName")}
	dir := r.URL.Query().Get("stateDir")
	var found []*measure.Attachment
	for _, a := range s.Attachments {
		if a.Key == key && (dir == "" || dir == a.Dir) {
			found = append(found, a)
		}
	}
	switch len(found) {
	case 1:
		answer(w, p.detail(s, found[0]))
	case 0:
		answerError(w, http.StatusNotFound, fmt.Errorf("no attachment %q", key))
	default:
		answerError(w, http.StatusConflict, fmt.Errorf("attachment %q: want one, got %d; name its stateDir", key, len(found)))
	}
}

func (p *Page) detail(s *measure.Sample, a *measure.Attachment) detailAnswer {
	d := detailAnswer{
		at: p.at(s.Time), Attachment: p.row(a), Record: a.Record, TAP: a.TAP, PodEnd: a.Pod, HostEnd: a.Host, Path: PathOf(a),
		Frames: reasons(a.Frames), Shortcut: reasons(a.Shortcut), Changes: []journal.Change{}, Decisions: []Decision{}, Findings: []Finding{},
	}
	name := a.Key.String()
	if p.c.Changes != nil {
		d.Changes = append(d.Changes, p.c.Changes(name)...)
	}
	if p.c.Decisions != nil {
		for _, one := range p.c.Decisions() {
			if one.Attachment == name && (one.StateDir == "" || one.StateDir == a.Dir) {
				d.Decisions = append(d.Decisions, one)
			}
		}
	}
	if p.c.Findings != nil {
		for _, one := range p.c.Findings() {
			if one.Object == name {
				d.Findings = append(d.Findings, one)
			}
		}
	}
	return d
}

// reasons are counters by name, most frames first, without those that are 0.
func reasons[R interface {
	comparable
	String() string
	Dropped() bool
}](counters map[R]xdp.Counter) []Reason {
	list := []Reason{}
	for r, c := range counters {
		if c.Frames > 0 {
			list = append(list, Reason{Name: r.String(), Counter: c, Dropped: r.Dropped()})
		}
	}
	slices.SortFunc(list, func(a, b Reason) int {
		if a.Frames != b.Frames {
			return map[bool]int{true: -1, false: 1}[a.Frames > b.Frames]
		}
		return strings.Compare(a.Name, b.Name)
	})
	return list
}
