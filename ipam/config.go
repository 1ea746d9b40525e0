// Package ipam gives each attachment one address of each range set: round robin, with a rest before an address is
// used again, and at a cost that does not grow with the addresses held. The plugin calls [Acquire] and [Release] in its
// own state transaction; [Main] offers the same to any other CNI plugin as the IPAM plugin tapir-ipam.
package ipam

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/tapir-cni/tapir/internal/jsonkeys"
	"github.com/tapir-cni/tapir/state"
)

// Config is the ipam object of a network configuration.
type Config struct {
	Type       string    `json:"type"`       // "tapir-ipam"
	Ranges     [][]Range `json:"ranges"`     // sets of ranges: an attachment gets one address of each set
	Routes     []Route   `json:"routes"`     // the guest's routes
	ReuseDelay string    `json:"reuseDelay"` // how long a released address rests, as in "30s" (the default); "0s": not at all
	Sticky     string    `json:"sticky"`     // "pod": a pod that comes back with the same namespace and name gets the addresses that it had on this node, while they are free; below. Default: none
	StateDir   string    `json:"stateDir"`   // default /run/tapir
}

// StickyPod is the value of the key "sticky" by which addresses are remembered by pod.
const StickyPod = "pod"

// Range is addresses of one subnet.
type Range struct {
	Subnet     string   `json:"subnet"`     // as in 10.9.0.0/24
	RangeStart string   `json:"rangeStart"` // the first address to give out; default: the first usable one
	RangeEnd   string   `json:"rangeEnd"`   // the last address to give out; default: the last usable one
	Gateway    string   `json:"gateway"`    // default: the first usable address; where the subnet has just one, 169.254.1.1 or fe80::1 by tapir itself, none by the IPAM plugin alone
	Exclude    []string `json:"exclude"`    // addresses and prefixes never to give out
}

// Route is one route of the guest.
type Route struct {
	Dst string `json:"dst"` // as in 0.0.0.0/0
	GW  string `json:"gw"`  // default: the gateway of the address
}

// Fault is one thing wrong with a configuration; its path is relative to the ipam object.
type Fault = jsonkeys.Fault

// DefaultReuseDelay is how long a released address rests if the configuration does not say.
const DefaultReuseDelay = 30 * time.Second

// Settings is a [Config] that was found right.
type Settings struct {
	Sets       []RangeSet
	Routes     []state.Route
	ReuseDelay time.Duration
	Sticky     bool // pods get the addresses that they had
	StateDir   string
}

// Validate checks the whole configuration and gives every fault, with paths relative to the ipam object. Settings are
// complete only where there is none. More sets than the configuration's own, as of runtimeConfig.ipRanges, come first
// in what is given out.
func (c Config) Validate(more ...RangeSet) (Settings, jsonkeys.Faults) {
	var faults jsonkeys.Faults
	s := Settings{ReuseDelay: DefaultReuseDelay, StateDir: c.StateDir}
	if c.ReuseDelay != "" {
		delay, err := time.ParseDuration(c.ReuseDelay)
		if err != nil || delay < 0 || delay > maxReuseDelay {
			faults.Add("reuseDelay", fmt.Sprintf(`want a duration from "0s" to %q, as in "30s", got %q`, maxReuseDelay, c.ReuseDelay))
		}
		s.ReuseDelay = delay
	}
	if s.Sticky = c.Sticky == StickyPod; !s.Sticky && c.Sticky != "" {
		faults.Add("sticky", fmt.Sprintf("want %q or none, got %q", StickyPod, c.Sticky))
	}
	if s.StateDir == "" {
		s.StateDir = state.DefaultDir
	}
	if !filepath.IsAbs(s.StateDir) {
		faults.Add("stateDir", fmt.Sprintf("want an absolute path, got %q", c.StateDir))
	}
	if len(c.Ranges) == 0 && len(more) == 0 {
		faults.Add("ranges", "want at least one set of ranges, got none")
	}
	sets, rangeFaults := ParseRanges(c.Ranges, "ranges")
	faults = append(faults, rangeFaults...)
	s.Sets = append(append(s.Sets, more...), sets...)
	faults = append(faults, overlapFaults(s.Sets)...)
	reserveGateways(s.Sets)
	if len(rangeFaults) == 0 {
		faults = append(faults, emptyFaults(s.Sets)...)
	}
	routes, routeFaults := parseRoutes(c.Routes)
	s.Routes = routes
	return s, append(faults, routeFaults...)
}

// maxReuseDelay bounds what the store keeps; nobody waits for longer.
const maxReuseDelay = 30 * 24 * time.Hour

func parseRoutes(list []Route) (routes []state.Route, faults jsonkeys.Faults) {
	for i, r := range list {
		path := jsonkeys.IndexPath("routes", i)
		dst, err := netip.ParsePrefix(r.Dst)
		switch {
		case err != nil || dst.Addr().Is4In6():
			faults.Add(path+".dst", fmt.Sprintf("want a prefix, as in 0.0.0.0/0, got %q", r.Dst))
			continue
		case dst != dst.Masked():
			faults.Add(path+".dst", fmt.Sprintf("want no bits beyond the prefix length, as in %s, got %q", dst.Masked(), r.Dst))
			continue
		}
		route := state.Route{Dst: dst}
		if r.GW != "" {
			gw, err := parseAddr(r.GW, dst.Addr())
			if err != nil {
				faults.Add(path+".gw", err.Error())
			}
			route.GW = gw
		}
		routes = append(routes, route)
	}
	return routes, faults
}

// parseAddr parses an address of the family that like has.
func parseAddr(s string, like netip.Addr) (netip.Addr, error) {
	family := "IPv4"
	if like.Is6() {
		family = "IPv6"
	}
	addr, err := netip.ParseAddr(s)
	if err != nil || addr.Is4() != like.Is4() || addr.Is4In6() || addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("want an %s address, got %q", family, s)
	}
	return addr, nil
}
