// Package guestconfig says what a guest and its VMM must be told to use an attachment: one [Guest], derived from
// tapir's own record or from a CNI result, and rendered for each consumer in that consumer's own units.
//
// A Guest counts queue pairs. Cloud Hypervisor counts queues (twice the pairs), QEMU counts pairs and wants
// interrupt vectors beside them, Firecracker has one pair and no word for it: the conversions happen in the
// profiles of package tap and nowhere else. What a consumer cannot do is an error that gives the reason, never a
// setting left out in silence.
package guestconfig

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
)

// Guest is all that a microVM's network card and the system inside it must be configured with.
type Guest struct {
	IfName    string          `json:"ifName"` // what the pod calls the interface, CNI_IFNAME
	MAC       string          `json:"mac"`    // the guest's, as the VMM must present it
	MTU       int             `json:"mtu"`    // bytes
	Addresses []state.Address `json:"addresses,omitempty"`
	Routes    []state.Route   `json:"routes,omitempty"`
	DNS       state.DNS       `json:"dns,omitzero"`

	TAP    string `json:"tap"`              // device name inside Netns
	Queues int    `json:"queues"`           // queue pairs, 1 or more
	VMM    string `json:"vmm,omitempty"`    // what the network configuration names, "generic" or one VMM
	Netns  string `json:"netns,omitempty"`  // path of the namespace in which the VMM opens the TAP; empty with OnHost
	OnHost bool   `json:"onHost,omitempty"` // the TAP stands in the host's namespace

	Fixed bool `json:"fixed,omitempty"` // MAC and addresses are the same in each clone of a snapshot

	ContainerID string `json:"containerID,omitempty"` // with IfName what tapirctl calls the attachment
	NoNAPI      bool   `json:"noNAPI,omitempty"`      // the network configuration says "napi": false
	DAN         string `json:"dan,omitempty"`         // file by which Kata finds the TAP
}

// FromAttachment derives the guest of a recorded attachment. An attachment without a TAP, or one whose ADD has not
// ended, has no guest: both are errors.
func FromAttachment(a state.Attachment) (Guest, error) {
	if a.TAP.Name == "" && a.VMM == tap.Kata {
		return Guest{}, fmt.Errorf("guest of %s: the attachment has no TAP: Kata makes its own beside %q, and configures its guest by what it finds there",
			a.Key, a.IfName)
	}
	if a.TAP.Name == "" {
		return Guest{}, fmt.Errorf("guest of %s: the attachment has no TAP; it is a plain pod's", a.Key)
	}
	if a.Status != state.Ready {
		return Guest{}, fmt.Errorf("guest of %s: the attachment is %q, want %q; its ADD has not ended or has crashed",
			a.Key, a.Status, state.Ready)
	}
	netns, _ := a.TAPNetns()
	g := Guest{
		IfName: a.IfName, MAC: a.GuestMAC, MTU: a.MTU,
		Addresses: a.GuestAddresses(), Routes: a.GuestRoutes(), DNS: a.DNS,
		TAP: a.TAP.Name, Queues: a.Queues, VMM: a.VMM, Netns: netns, OnHost: a.OnHost(),
		ContainerID: a.ContainerID, NoNAPI: a.NoNAPI, DAN: a.DAN, Fixed: a.FixedMAC && len(a.Outside()) == len(a.Addresses),
	}
	if err := g.Validate(); err != nil {
		return Guest{}, fmt.Errorf("guest of %s: %w", a.Key, err)
	}
	return g, nil
}

// Validate reports every field that no guest could be started with. The errors are joined.
func (g Guest) Validate() error {
	var errs []error
	if g.TAP == "" {
		errs = append(errs, errors.New("tap: want a device name, got none"))
	}
	if mac, err := net.ParseMAC(g.MAC); err != nil || len(mac) != 6 {
		errs = append(errs, fmt.Errorf("mac: want six octets, got %q", g.MAC))
	} else if mac[0]&1 != 0 {
		errs = append(errs, fmt.Errorf("mac: want a unicast address, got %q", g.MAC))
	}
	if err := refusal(tap.Generic, g.Queues); err != nil {
		errs = append(errs, err)
	}
	if g.MTU < tap.MinMTU || g.MTU > tap.MaxMTU {
		errs = append(errs, fmt.Errorf("mtu: want %d to %d, got %d", tap.MinMTU, tap.MaxMTU, g.MTU))
	}
	return errors.Join(errs...)
}

// refusal is why the VMM cannot open a TAP of that many queues, or nil.
func refusal(vmm string, queues int) error {
	p, err := tap.ProfileOf(vmm)
	if err != nil {
		return err
	}
	return p.Check(queues)
}

// address4 is the guest's first IPv4 address.
func (g Guest) address4() (state.Address, bool) {
	for _, a := range g.Addresses {
		if a.Prefix.Addr().Is4() {
			return a, true
		}
	}
	return state.Address{}, false
}

// defaultRoutes gives the guest's routes, with a default route through the first gateway of each family that has a
// gateway and no route at all. CNI leaves it to the IPAM plugin to name routes; a guest without any would be mute.
func (g Guest) defaultRoutes() []state.Route {
	routes := slices.Clone(g.Routes)
	for _, is4 := range []bool{true, false} {
		if slices.ContainsFunc(g.Routes, func(r state.Route) bool { return r.Dst.Addr().Is4() == is4 }) {
			continue
		}
		for _, a := range g.Addresses {
			if a.Prefix.Addr().Is4() != is4 || !a.Gateway.IsValid() {
				continue
			}
			dst := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			if is4 {
				dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			}
			routes = append(routes, state.Route{Dst: dst, GW: a.Gateway})
			break
		}
	}
	return routes
}

// gatewayOf is the gateway that the guest's addresses name for the family of dst; a route may leave it out.
func (g Guest) gatewayOf(dst netip.Prefix) netip.Addr {
	for _, a := range g.Addresses {
		if a.Prefix.Addr().Is4() == dst.Addr().Is4() && a.Gateway.IsValid() {
			return a.Gateway
		}
	}
	return netip.Addr{}
}

// onLink says whether gw lies inside one of the guest's own prefixes; an IPv6 link-local one always is.
func (g Guest) onLink(gw netip.Addr) bool {
	return gw.Is6() && gw.IsLinkLocalUnicast() || slices.ContainsFunc(g.Addresses, func(a state.Address) bool {
		return a.Prefix.Masked().Contains(gw)
	})
}
