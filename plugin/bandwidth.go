package plugin

import (
	"fmt"
	"math"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
)

// minRate is the lowest rate in bits a second: a byte.
const minRate = 8

// validateBandwidth holds the limits against what containernetworking's bandwidth plugin takes: a rate and a burst together, the
// burst below 4 GiB.
func (c *Config) validateBandwidth(fs *faults) {
	const path = "runtimeConfig.bandwidth."
	b := c.RuntimeConfig.Bandwidth
	if b == nil {
		return
	}
	for _, d := range []struct {
		name        string
		rate, burst uint64
	}{{"ingress", b.IngressRate, b.IngressBurst}, {"egress", b.EgressRate, b.EgressBurst}} {
		switch {
		case d.rate != 0 && d.burst == 0:
			fs.Add(path+d.name+"Burst", fmt.Sprintf("want one with %sRate %d, got none", d.name, d.rate))
		case d.rate == 0 && d.burst != 0:
			fs.Add(path+d.name+"Rate", fmt.Sprintf("want one with %sBurst %d, got none", d.name, d.burst))
		case d.burst/8 >= math.MaxUint32:
			fs.Add(path+d.name+"Burst", fmt.Sprintf("want less than %d bits, got %d", uint64(math.MaxUint32)*8, d.burst))
		case d.rate != 0 && d.rate < minRate:
			fs.Add(path+d.name+"Rate", fmt.Sprintf("want at least %d bits a second, got %d", minRate, d.rate))
		}
	}
}

// planBandwidth takes the limits. Without a veth there are no ends to limit.
func (p *Plan) planBandwidth(cfg *Config, fs *faults) {
	b := cfg.RuntimeConfig.Bandwidth
	if b == nil || *b == (BandwidthConfig{}) {
		return
	}
	if p.OnHost {
		fs.Add("runtimeConfig.bandwidth", `want none with placement "host", which has no veth whose ends could be limited; use placement "pod"`)
	}
	limits := state.Bandwidth(*b)
	p.Bandwidth = &limits
}

// frameOverhead is what a frame has beyond an IP packet of the MTU's size, in bytes: the Ethernet header and a VLAN tag.
const frameOverhead = 18

// shapeOf is the token bucket of a rate and a burst in bits. A burst that is shorter than a frame would let none pass.
func shapeOf(rate, burst uint64, mtu int) (rtnl.Shape, bool) {
	if rate == 0 {
		return rtnl.Shape{}, false
	}
	return rtnl.Shape{Rate: rate / 8, Burst: max(uint32(burst/8), uint32(mtu+frameOverhead))}, true
}

// shapes are the token buckets of an attachment: on the host end for what the guest receives, on the pod end for what it sends.
func shapes(rec *state.Attachment) (host, pod *rtnl.Shape) {
	if rec.Bandwidth == nil {
		return nil, nil
	}
	if s, ok := shapeOf(rec.Bandwidth.IngressRate, rec.Bandwidth.IngressBurst, rec.MTU); ok {
		host = &s
	}
	if s, ok := shapeOf(rec.Bandwidth.EgressRate, rec.Bandwidth.EgressBurst, rec.MTU); ok {
		pod = &s
	}
	return host, pod
}

// shape limits both ends of the veth.
func (a *apply) shape() error {
	host, pod := shapes(a.rec)
	if err := shapeEnd(a.host, a.rec.Host, host); err != nil {
		return err
	}
	return shapeEnd(a.pod, a.rec.Pod, pod)
}

// shapeEnd puts the token bucket on one end of the veth, before it is up; nil is none.
func shapeEnd(conn *rtnl.Conn, dev state.Device, s *rtnl.Shape) error {
	if s == nil {
		return nil
	}
	if err := conn.SetShape(dev.Index, *s); err != nil {
		return fmt.Errorf("limit the bandwidth of %q: %w", dev.Name, err)
	}
	return nil
}

// shaped compares the token bucket of one end.
func (k *inspection) shaped(conn *rtnl.Conn, dev state.Device, s *rtnl.Shape) {
	if s == nil {
		return
	}
	differs, err := conn.Shaped(dev.Index, *s)
	switch {
	case err != nil:
		k.add("%s: %v", dev.Name, err)
	case differs != "":
		k.add("%s: bandwidth: want a limit of %d bytes a second, got %s", dev.Name, s.Rate, differs)
	}
}
