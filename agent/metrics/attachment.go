package metrics

import (
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"github.com/tapir-cni/tapir/xdp"
)

// Reasons of tapDroppedFrames that no program counts.
const (
	reasonRingFull = "ring_full"
	reasonReceive  = "receive"

	reasonShaperToGuest   = "shaper_to_guest"
	reasonShaperFromGuest = "shaper_from_guest"
)

// base are the labels of an attachment.
func (p *page) base(a *measure.Attachment) []*dto.LabelPair {
	r := &a.Record
	values := [...]string{r.PodNamespace, r.PodName, a.Network, a.ContainerID, a.IfName}
	list := p.labels.take(len(values))[:0]
	for i, v := range values {
		if v == "" {
			continue
		}
		if attachmentLabels[i] == "namespace" || attachmentLabels[i] == "network" || attachmentLabels[i] == "interface" {
			list = append(list, p.shared(attachmentLabels[i], v))
		} else {
			list = append(list, p.pair(attachmentLabels[i], v))
		}
	}
	return list
}

// attachment adds the series of one attachment. shaped are the frames that its shapers dropped, by reason.
func (p *page) attachment(a *measure.Attachment, shaped map[string]uint64) {
	base := p.base(a)
	p.add(attachmentInfo, base, 1, a.Record.TAP.Name, a.Record.VMM, a.Record.Placement, a.Dir)
	p.add(attachmentNetnsLost, base, number(a.Netns == watch.NetnsLost))
	p.tap(a, base)
	for i := range a.Queues {
		p.queue(&a.Queues[i], base)
	}
	p.redirect(a, base)
	p.shortcut(a, base)
	for reason, frames := range shaped {
		p.add(tapDroppedFrames, base, float64(frames), reason)
	}
}

func (p *page) tap(a *measure.Attachment, base []*dto.LabelPair) {
	if a.TAP == nil {
		return
	}
	s := &a.TAP.Stats
	p.add(tapFromGuestFrames, base, float64(s.RxFrames))
	p.add(tapFromGuestBytes, base, float64(s.RxBytes))
	p.add(tapToGuestFrames, base, float64(s.TxFrames))
	p.add(tapToGuestBytes, base, float64(s.TxBytes))
	p.add(tapDroppedFrames, base, float64(a.RingDrops()), reasonRingFull)
	p.add(tapDroppedFrames, base, float64(s.RxDropped), reasonReceive)
	p.add(tapCarrierUps, base, float64(a.TAP.CarrierUps))
	p.add(tapQueues, base, float64(a.TAP.Queues), "enabled")
	p.add(tapQueues, base, float64(a.TAP.Disabled), "disabled")
	p.add(tapRing, base, float64(a.TAP.TxQueueLen))
	for f, v := range map[id]*int{tapThreaded: a.NAPI.Threaded, tapDeferHardIRQs: a.NAPI.DeferHardIRQs} {
		if v != nil {
			p.add(f, base, float64(*v))
		}
	}
	if v := a.NAPI.FlushTimeout; v != nil {
		p.add(tapFlushTimeout, base, float64(*v)/1e9)
	}
}

// queue adds the series of an open queue. One that is disabled keeps the index of a place that another may have now, and has none here.
func (p *page) queue(q *queueiter.Queue, attachment []*dto.LabelPair) {
	opened := map[queueiter.Opened]string{queueiter.ByName: "by_name", queueiter.HandedOver: "handed_over", queueiter.OpenedUnknown: "unknown"}
	if q.Attach != queueiter.Enabled {
		return
	}
	base := p.labels.take(len(attachment) + 1)
	base[copy(base, attachment)] = p.shared("queue", strconv.Itoa(q.Index))
	p.add(queueInfo, base, 1, q.Holders[0].Comm, opened[q.Holders[0].Opened])
	p.add(queueNAPI, base, number(q.NAPI))
	p.add(queueThreaded, base, number(q.Thread != 0))
	p.add(queueRing, base, float64(q.Ring))
}

// redirect adds what the redirect programs counted. The two ways that frames go are always there, what is rare once it was met.
func (p *page) redirect(a *measure.Attachment, base []*dto.LabelPair) {
	if a.Frames == nil {
		return
	}
	for _, r := range []xdp.Reason{xdp.ReasonToHost, xdp.ReasonToGuest} {
		c := a.Frames[r]
		p.add(redirectFrames, base, float64(c.Frames), r.String())
		p.add(redirectBytes, base, float64(c.Bytes), r.String())
	}
	for r, c := range a.Frames {
		switch {
		case c.Frames == 0 || r == xdp.ReasonToHost || r == xdp.ReasonToGuest:
		case r.Dropped():
			p.add(tapDroppedFrames, base, float64(c.Frames), r.String())
		default:
			p.add(redirectFrames, base, float64(c.Frames), r.String())
		}
	}
}

// shortcutTaken are always there.
var shortcutTaken = []xdp.ShortcutReason{xdp.ShortcutXDPToGuest, xdp.ShortcutXDPToUplink, xdp.ShortcutTCToGuest, xdp.ShortcutTCToUplink}

func (p *page) shortcut(a *measure.Attachment, base []*dto.LabelPair) {
	if a.Record.XDP == (state.XDP{}) || a.Shortcut == nil {
		return
	}
	for _, r := range shortcutTaken {
		c := a.Shortcut[r]
		hook, reason := hookAndReason(r)
		p.add(shortcutFrames, base, float64(c.Frames), hook, reason)
		p.add(shortcutBytes, base, float64(c.Bytes), hook, reason)
	}
	for r, c := range a.Shortcut {
		switch {
		case c.Frames == 0 || r.Taken():
		case r.Dropped():
			p.add(tapDroppedFrames, base, float64(c.Frames), r.String())
		default:
			hook, reason := hookAndReason(r)
			p.add(shortcutFrames, base, float64(c.Frames), hook, reason)
		}
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// hookAndReason takes a reason of the shortcut apart: "xdp_pass_conntrack" is of "xdp".
func hookAndReason(r xdp.ShortcutReason) (hook, reason string) {
	hook, reason, _ = strings.Cut(r.String(), "_")
	return hook, reason
}
