package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// Property is a kind of thing that ADD made right and that may have been changed since.
type Property string

// The properties of an attachment, in the order in which they are compared and repaired.
const (
	PropertyPins       Property = "pins"       // the programs are pinned; no repair: the next ADD pins them
	PropertyEntry      Property = "entry"      // what the programs know of its devices
	PropertyDevice     Property = "device"     // its devices are there; no repair
	PropertyLink       Property = "link"       // MAC, MTU, alias, up
	PropertyTAP        Property = "tap"        // flags, owner, group, persistence; no repair
	PropertyRing       Property = "ring"       // txqueuelen of the TAP
	PropertyQdisc      Property = "qdisc"      // noqueue on the TAP, the token buckets of its bandwidth limits
	PropertyProgram    Property = "program"    // the programs on its devices
	PropertyGateway    Property = "gateway"    // the gateways' addresses on its device in the host's netns
	PropertyNeighbour  Property = "neighbour"  // the permanent neighbours
	PropertyRoute      Property = "route"      // the host routes to its addresses
	PropertyForwarding Property = "forwarding" // the node forwards, and its device does
	PropertyRPFilter   Property = "rp-filter"  // reverse path filtering lets in what it sends
	PropertyShortcut   Property = "shortcut"   // its part in the shortcut
	PropertyMasquerade Property = "masquerade" // chain and sets of nftables
	PropertyDAN        Property = "dan"        // its device in Kata's file
	PropertyPod        Property = "pod"        // addresses and routes of a plain pod; no repair: the pod may change them
)

// Properties are all properties in the order of their constants.
var Properties = []Property{
	PropertyPins, PropertyEntry, PropertyDevice, PropertyLink, PropertyTAP, PropertyRing, PropertyQdisc, PropertyProgram, PropertyGateway, PropertyNeighbour,
	PropertyRoute, PropertyForwarding, PropertyRPFilter, PropertyShortcut, PropertyMasquerade, PropertyDAN, PropertyPod,
}

// Difference is one property of one thing that is not as ADD made it.
type Difference struct {
	Property Property
	Object   string // the device or address
	What     string // wanted and got

	Repairable bool
	Repaired   bool  // by [Drift.Mend]
	Err        error // why it was not, though that was asked for; nil else
}

// Drift compares an attachment that was added with the kernel, and repairs it, by what ADD makes it with. It touches neither a link's
// queues nor, after another plugin, that plugin's interface but for tapir's program on it, and sets no link down.
type Drift struct {
	StateDir string
	BPFFS    string // the folder of the pinned programs

	// Rings are lengths of the TAP's ring, in frames, that are right beside that of the record: the agent's tuner chose them. A repair sets the
	// first.
	Rings []int
}

// ErrHeld says that an attachment is being added or removed, or is another by now: it is nobody else's affair.
var ErrHeld = errors.New("the attachment is being added or removed")

// lookWait bounds the wait for the hold of an attachment that is looked after: who has it is at work on it.
const lookWait = 200 * time.Millisecond

// Look compares. A record that was rebuilt from the kernel knows too little and gives none. The error is for a sandbox or a kernel
// that could not be asked. What is changed while Look runs may be in the result or not; [Drift.Mend] looks again.
func (d Drift) Look(rec state.Attachment) ([]Difference, error) {
	return d.visit(rec, func(Difference) bool { return false })
}

// Mend compares under the attachment's hold and repairs what want asks for. Where the attachment is no longer that of rec, or somebody has its hold,
// the error is [ErrHeld].
func (d Drift) Mend(ctx context.Context, rec state.Attachment, want func(Difference) bool) (out []Difference, err error) {
	err = heldStill(ctx, d.StateDir, rec, func() (err error) {
		out, err = d.visit(rec, want)
		return err
	})
	return out, err
}

// heldStill calls fn under the attachment's hold, unless it is another by now.
func heldStill(ctx context.Context, dir string, rec state.Attachment, fn func() error) (err error) {
	if state.Held(dir, rec.Key) {
		return ErrHeld // to wait for each of many would take long
	}
	hold, err := state.AcquireHold(ctx, dir, rec.Key, lookWait)
	if errors.Is(err, state.ErrBusy) {
		return ErrHeld
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release()) }()
	same := false
	err = state.New(state.Config{Dir: dir}).View(ctx, func(tx *state.Tx) error {
		now, ok, lookErr := tx.Attachment(rec.Key)
		same = lookErr == nil && sameAs(rec)(now, ok)
		return lookErr
	})
	switch {
	case err != nil:
		return err
	case !same:
		return ErrHeld
	}
	return fn()
}

// visit opens what the properties are compared by, and compares them.
func (d Drift) visit(rec state.Attachment, want func(Difference) bool) (out []Difference, err error) {
	if rec.Rebuilt || rec.Status != state.Ready {
		return nil, nil
	}
	v := &visit{Drift: d, rec: rec, want: want}
	netns, err := openSandbox(rec.Netns)
	if err != nil {
		return nil, err
	}
	defer netns.Close()
	if v.host, err = rtnl.Open(); err != nil {
		return nil, err
	}
	defer v.host.Close()
	v.progs, err = xdp.OpenVersion(d.BPFFS, rec.Programs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.add(PropertyPins, rec.Programs, fmt.Sprintf("%v; the next ADD pins the programs anew, this attachment's run on", err))
	case err != nil:
		return nil, err
	default:
		defer v.progs.Close()
	}
	v.entries()
	if !rec.OnHost() {
		err = netns.Do(func(host ns.NetNS) (err error) {
			if v.pod, err = rtnl.Open(); err != nil {
				return err
			}
			defer v.pod.Close()
			v.inPod()
			return nil
		})
	}
	if err == nil {
		v.onHost()
		err = v.inShortcut(netns)
	}
	v.dan()
	return v.out, err
}

// visit is one comparison of one attachment.
type visit struct {
	Drift
	rec   state.Attachment
	host  *rtnl.Conn
	pod   *rtnl.Conn    // nil with placement host
	progs *xdp.Programs // nil where they are not pinned
	want  func(Difference) bool
	out   []Difference
}

func (v *visit) add(p Property, object, what string) {
	v.out = append(v.out, Difference{Property: p, Object: object, What: what})
}

// compare runs a comparison, in the netns where it belongs, and the repair where it is asked for; then it compares again.
func (v *visit) compare(p Property, object string, check func(*inspection), repair func() error) (right bool) {
	look := func() string {
		k := &inspection{rec: v.rec, progs: v.progs}
		check(k)
		return strings.Join(k.findings, "; ")
	}
	d := Difference{Property: p, Object: object, What: look(), Repairable: repair != nil}
	if d.What == "" {
		return true
	}
	if repair != nil && v.want(d) {
		if d.Err = repair(); d.Err == nil {
			if left := look(); left != "" {
				d.Err = fmt.Errorf("it was repaired and differs still: %s", left)
			}
		}
		d.Repaired = d.Err == nil
	}
	v.out = append(v.out, d)
	return d.Repaired
}
