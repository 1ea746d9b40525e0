package page

import (
	"fmt"

	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/xdp"
)

// Hop is one place on a way. Counters are since ADD, as the place itself counts; a place that counts nothing (a guest, the node) has none.
type Hop struct {
	Kind    string   `json:"kind"` // guest, tap, program, veth, interface, node, shortcut, uplink, others
	Name    string   `json:"name"`
	Counts  bool     `json:"counts"`            // frames and bytes are known here
	Frames  uint64   `json:"frames"`            // that went on from here
	Bytes   uint64   `json:"bytes"`             //
	Dropped uint64   `json:"dropped"`           // frames
	Ended   uint64   `json:"ended,omitempty"`   // frames that were answered here, or are nobody's: not lost
	Reasons []Reason `json:"reasons,omitempty"` // of a program: what became of frames
}

// Path is the ways of an attachment's frames, each in the order in which a frame meets the places.
type Path struct {
	ToNode      []Hop `json:"toNode"`
	ToGuest     []Hop `json:"toGuest"`
	ShortcutOut []Hop `json:"shortcutOut,omitempty"` // what the guest sends by the shortcut; nil: no part in it
	ShortcutIn  []Hop `json:"shortcutIn,omitempty"`  // what it gets by XDP. What comes by the host end's program is counted by pod_ingress, on the default way
}

// PathOf is the ways of an attachment's frames as a sample counts them.
func PathOf(a *measure.Attachment) Path {
	guest := Hop{Kind: "guest", Name: guestName(a)}
	node := Hop{Kind: "node", Name: "routing, Services, policies"}
	tapIn := received("tap", a.Record.TAP.Name, a.TAP)
	tapOut := sent("tap", a.Record.TAP.Name, a.TAP)
	switch KindOf(a.Record) {
	case kindPlain:
		guest.Name = "pod"
		return Path{
			ToNode:  []Hop{guest, received("veth", vethName(a, true), a.Host), fromGuest("host_ingress", a), node},
			ToGuest: []Hop{node, sent("veth", vethName(a, false), a.Host), guest},
		}
	case kindHost:
		return Path{ToNode: []Hop{guest, tapIn, fromGuest("host_ingress", a), node}, ToGuest: []Hop{node, tapOut, guest}}
	case kindChained:
		other := a.Record.Pod.Name
		return Path{
			ToNode:  []Hop{guest, tapIn, fromGuest("guest_ingress", a), sent("interface", other, a.Pod), node},
			ToGuest: []Hop{node, received("interface", other, a.Pod), toGuest("pod_ingress", a), tapOut, guest},
		}
	}
	p := Path{
		ToNode:  []Hop{guest, tapIn, fromGuest("guest_ingress", a), received("veth", vethName(a, true), a.Host), node},
		ToGuest: []Hop{node, sent("veth", vethName(a, false), a.Host), toGuest("pod_ingress", a), tapOut, guest},
	}
	if a.Record.XDP.Mode != "" {
		p.ShortcutOut, p.ShortcutIn = shortcutOut(a, guest), shortcutIn(a, guest)
	}
	return p
}

// guestName tells who has the TAP open.
func guestName(a *measure.Attachment) string {
	for _, q := range a.Queues {
		for _, h := range q.Holders {
			return fmt.Sprintf("%s, pid %d", h.Comm, h.PID)
		}
	}
	if a.TAP != nil && a.TAP.Queues > 0 {
		return "VMM"
	}
	return "no VMM"
}

func vethName(a *measure.Attachment, toNode bool) string {
	if toNode {
		return a.Record.Pod.Name + " → " + a.Record.Host.Name
	}
	return a.Record.Host.Name + " → " + a.Record.Pod.Name
}

func received(kind, name string, l *links.Link) Hop {
	h := Hop{Kind: kind, Name: name}
	if l != nil {
		h.Counts, h.Frames, h.Bytes, h.Dropped = true, l.Stats.RxFrames, l.Stats.RxBytes, l.Stats.RxDropped
	}
	return h
}

func sent(kind, name string, l *links.Link) Hop {
	h := Hop{Kind: kind, Name: name}
	if l != nil {
		h.Counts, h.Frames, h.Bytes, h.Dropped = true, l.Stats.TxFrames, l.Stats.TxBytes, l.Stats.TxDropped
	}
	return h
}

// fromGuest is the program that sees what the guest sends. no_peer may be of either way and is counted here.
func fromGuest(name string, a *measure.Attachment) Hop {
	h := Hop{Kind: "program", Name: name, Counts: a.Frames != nil}
	of := map[xdp.Reason]xdp.Counter{}
	for r, c := range a.Frames {
		switch {
		case r == xdp.ReasonToGuest:
			continue
		case r.Dropped():
			h.Dropped += c.Frames
		case r == xdp.ReasonToHost || r == xdp.ReasonUnknown:
			h.Frames, h.Bytes = h.Frames+c.Frames, h.Bytes+c.Bytes
		default:
			h.Ended += c.Frames
		}
		of[r] = c
	}
	h.Reasons = reasons(of)
	return h
}

func toGuest(name string, a *measure.Attachment) Hop {
	c := a.Frames[xdp.ReasonToGuest]
	return Hop{Kind: "program", Name: name, Counts: a.Frames != nil, Frames: c.Frames, Bytes: c.Bytes}
}

// shortcutOut is the way of what the guest sends past the node: the XDP program on the TAP, and for what that passes on the tc program on the host end.
func shortcutOut(a *measure.Attachment, guest Hop) []Hop {
	h := Hop{Kind: "shortcut", Name: "XDP " + a.Record.XDP.Mode + ", host end", Counts: a.Shortcut != nil, Reasons: reasons(a.Shortcut)}
	others, uplink := Hop{Kind: "others", Name: "guests of this node", Counts: h.Counts}, Hop{Kind: "uplink", Name: "uplink", Counts: h.Counts}
	for r, c := range a.Shortcut {
		switch {
		case r.Beside():
			continue
		case r.Dropped():
			h.Dropped += c.Frames
		case r.Taken():
			h.Frames, h.Bytes = h.Frames+c.Frames, h.Bytes+c.Bytes
			to := &others
			if r == xdp.ShortcutXDPToUplink || r == xdp.ShortcutTCToUplink {
				to = &uplink
			}
			to.Frames, to.Bytes = to.Frames+c.Frames, to.Bytes+c.Bytes
		}
	}
	return []Hop{guest, received("tap", a.Record.TAP.Name, a.TAP), h, others, uplink}
}

// shortcutIn is what came to the TAP past pod_ingress. No program of the attachment's own counts it: it is what the TAP counts beyond what
// pod_ingress and the answers of guest_ingress put into it, so that the two readings' difference in time is in it.
func shortcutIn(a *measure.Attachment, guest Hop) []Hop {
	h := Hop{Kind: "shortcut", Name: "from guests and uplink", Counts: a.TAP != nil && a.Frames != nil}
	if h.Counts {
		total := a.TAP.Stats.TxFrames + a.TAP.Stats.TxDropped
		known := a.Frames[xdp.ReasonToGuest].Frames + a.Frames[xdp.ReasonARPAnswered].Frames + a.Frames[xdp.ReasonNDAnswered].Frames
		h.Frames = total - min(known, total)
	}
	return []Hop{h, sent("tap", a.Record.TAP.Name, a.TAP), guest}
}
