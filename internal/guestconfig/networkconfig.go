package guestconfig

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tapir-cni/tapir/state"
)

// NetworkConfig gives cloud-init's network configuration, version 2, as the file "network-config" of a NoCloud seed
// (no "network:" key above it). The card is found by its MAC and renamed to the pod's name of it. A route whose
// gateway lies in none of the guest's prefixes is marked on-link, so that a /32 or /128 works under netplan; cloud-init 22.4,
// Debian 12's, drops the mark for its other renderers.
//
// IPv6's default route is the older key gateway6: without netplan cloud-init makes ::/64 of the route ::/0 (canonical/cloud-init
// issue 4600; seen with 22.4 for eni and networkd). netplan takes either, and complains of both at once.
func (g Guest) NetworkConfig() (string, error) {
	if err := g.Validate(); err != nil {
		return "", fmt.Errorf("network-config: %w", err)
	}
	var b strings.Builder
	name := strconv.Quote(g.IfName)
	fmt.Fprintf(&b, "version: 2\nethernets:\n  %s:\n", name)
	fmt.Fprintf(&b, "    match:\n      macaddress: %q\n", strings.ToLower(g.MAC))
	fmt.Fprintf(&b, "    set-name: %s\n    mtu: %d\n    dhcp4: false\n    dhcp6: false\n", name, g.MTU)
	if len(g.Addresses) > 0 {
		b.WriteString("    addresses:\n")
		for _, a := range g.Addresses {
			fmt.Fprintf(&b, "      - %q\n", a.Prefix)
		}
	}
	g.writeRoutes(&b)
	writeDNS(&b, g.DNS)
	return b.String(), nil
}

func (g Guest) writeRoutes(b *strings.Builder) {
	routes := g.defaultRoutes()
	if len(routes) == 0 {
		return
	}
	var rest []state.Route
	gateway6 := false
	for _, r := range routes {
		if !r.GW.IsValid() {
			r.GW = g.gatewayOf(r.Dst)
		}
		if gw := r.GW; !gateway6 && gw.IsValid() && gw.Is6() && r.Dst.Bits() == 0 && g.onLink(gw) {
			fmt.Fprintf(b, "    gateway6: %q\n", gw)
			gateway6 = true
			continue
		}
		rest = append(rest, r)
	}
	if len(rest) > 0 {
		b.WriteString("    routes:\n")
	}
	for _, r := range rest {
		gw := r.GW
		fmt.Fprintf(b, "      - to: %q\n", r.Dst)
		if !gw.IsValid() {
			fmt.Fprint(b, "        scope: link\n")
			continue
		}
		fmt.Fprintf(b, "        via: %q\n", gw)
		if !g.onLink(gw) {
			fmt.Fprint(b, "        on-link: true\n")
		}
	}
}

func writeDNS(b *strings.Builder, dns state.DNS) {
	search := dns.Search
	if len(search) == 0 && dns.Domain != "" {
		search = []string{dns.Domain}
	}
	if len(dns.Nameservers)+len(search) == 0 {
		return
	}
	b.WriteString("    nameservers:\n")
	writeList(b, "addresses", dns.Nameservers)
	writeList(b, "search", search)
}

func writeList(b *strings.Builder, key string, values []string) {
	if len(values) == 0 {
		return
	}
	fmt.Fprintf(b, "      %s:\n", key)
	for _, v := range values {
		fmt.Fprintf(b, "        - %q\n", v)
	}
}
