package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/tapir-cni/tapir/internal/jsonkeys"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/xdp"
)

// identity is a [GuestConfig] that was found right.
type identity struct {
	mac       net.HardwareAddr // nil: none
	addresses []state.Address  // at most one of each family, IPv4 first
}

// guestPath gives the place that a fault of a key of the guest's names.
type guestPath func(key string) string

func guestConfigPath(key string) string { return jsonkeys.JoinPath("guest", key) }

// planGuest takes the guest's identity from the first place that gives one, whole: CNI_ARGS, the pod's annotation, the configuration.
func (p *Plan) planGuest(cfg *Config, a Args, ch choices, fs, argFaults *faults) {
	given, path, to := cfg.Guest, guestPath(guestConfigPath), fs
	switch {
	case a.Guest != nil:
		given, path, to = a.Guest, guestArgPath, argFaults
	case ch.guest != nil:
		given, path = ch.guest, guestAnnotationPath
	}
	if given == nil || p.Plain && given == cfg.Guest && !cfg.scannedByKata() {
		return // the configuration's is for the pods that have a TAP
	}
	if why := p.refusesGuest(cfg); why != "" {
		to.Add(path(""), "want none "+why)
		return
	}
	id := given.parse(path, to)
	p.Inside = id.addresses
	if id.mac == nil {
		return
	}
	for where, other := range map[string]string{"mac": cfg.MAC, "runtimeConfig.mac": cfg.RuntimeConfig.MAC, argPath("MAC"): a.MAC, annotationPath(choiceMAC): ch.mac} {
		if hw, err := net.ParseMAC(other); err == nil && !bytes.Equal(hw, id.mac) {
			to.Add(path("mac"), fmt.Sprintf("want that of %s too, or none, got %s there and %s here", where, hw, id.mac))
		}
	}
	p.MAC, p.FixedMAC = id.mac, true
}

// refusesGuest says what keeps a guest with an identity of its own from working; empty where nothing does.
func (p *Plan) refusesGuest(cfg *Config) string {
	switch {
	case cfg.scannedByKata() || cfg.VMM == tap.Kata:
		return `with "vmm": "kata", which configures its guests itself`
	case p.Plain:
		return "without a TAP, at which its addresses would be translated"
	case p.OnHost:
		return `with placement "host": what goes to the guest leaves the node by the TAP, where nothing could translate it`
	case p.Chained:
		return "after another plugin, whose interface is asked for the pod's address by ARP, and the guest would not know it"
	}
	return ""
}

// parse finds every fault.
func (g *GuestConfig) parse(path guestPath, fs *faults) (id identity) {
	if *g == (GuestConfig{}) {
		fs.Add(path(""), "want a mac, an ip or an ip6")
	}
	if g.MAC != "" {
		mac, err := parseMAC(g.MAC)
		if err != nil {
			fs.Add(path("mac"), err.Error())
		} else if bytes.Equal(mac, xdp.GatewayMAC) {
			fs.Add(path("mac"), fmt.Sprintf("want a MAC that is not the gateway's, got %q", g.MAC))
		}
		id.mac = mac
	}
	for _, f := range []struct {
		ip, gateway, ipKey, gatewayKey, example string
		is4                                     bool
	}{{g.IP, g.Gateway, "ip", "gateway", "172.16.0.2/30", true}, {g.IP6, g.Gateway6, "ip6", "gateway6", "fd00:172::2/126", false}} {
		if f.ip == "" {
			if f.gateway != "" {
				fs.Add(path(f.gatewayKey), fmt.Sprintf("want none without %q, got %q", f.ipKey, shown(f.gateway)))
			}
			continue
		}
		prefix, problem := insideAddress(f.ip, f.is4, f.example)
		if problem != "" {
			fs.Add(path(f.ipKey), problem)
			continue
		}
		gateway, problem := insideGateway(f.gateway, prefix)
		if problem != "" {
			fs.Add(path(f.gatewayKey), problem)
			continue
		}
		id.addresses = append(id.addresses, state.Address{Prefix: prefix, Gateway: gateway})
	}
	return id
}

func insideAddress(s string, is4 bool, example string) (netip.Prefix, string) {
	p, err := netip.ParsePrefix(s)
	if err != nil || p.Addr().Is4() != is4 || p.Addr().Is4In6() {
		return p, fmt.Sprintf("want %s with its prefix length, as in %s, got %q", familyName(is4), example, shown(s))
	}
	if a := p.Addr(); !a.IsGlobalUnicast() && !(is4 && a.IsLinkLocalUnicast()) || p.Bits() == 0 || endOfSubnet(p) {
		return p, fmt.Sprintf("want an address that a guest can have, got %q", s)
	}
	return p, ""
}

func familyName(is4 bool) string {
	if is4 {
		return "an IPv4 address"
	}
	return "an IPv6 address"
}

// endOfSubnet tells whether an IPv4 address is the first or last of a subnet that has such, or an IPv6 address the subnet's anycast one
// (RFC 4291, section 2.6.1).
func endOfSubnet(p netip.Prefix) bool {
	if p.Bits() > p.Addr().BitLen()-2 {
		return false
	}
	if p.Masked().Addr() == p.Addr() {
		return true
	}
	return p.Addr().Is4() && !p.Contains(p.Addr().Next())
}

// insideGateway is in the subnet of the guest's address or, as that of a single address is, link-local.
func insideGateway(s string, ip netip.Prefix) (netip.Addr, string) {
	gw, err := netip.ParseAddr(s)
	switch {
	case err != nil || gw.Is4() != ip.Addr().Is4() || gw.Is4In6() || gw.Zone() != "":
		return gw, fmt.Sprintf("want %s, the guest's way out, got %q", familyName(ip.Addr().Is4()), shown(s))
	case gw == ip.Addr():
		return gw, fmt.Sprintf("want another address than the guest's own, got %q", s)
	case gw.IsLinkLocalUnicast():
	case !ip.Contains(gw):
		return gw, fmt.Sprintf("want an address in %s or a link-local one, got %q", ip.Masked(), s)
	case endOfSubnet(netip.PrefixFrom(gw, ip.Bits())):
		return gw, fmt.Sprintf("want an address in %s that a gateway can have, got %q", ip.Masked(), s)
	}
	return gw, ""
}

// insideFaults wants one address of the pod for each of the guest's: count gives how many of each family it will have.
func (p *Plan) insideFaults(count func(is4 bool) int) (fs faults) {
	for _, g := range p.Inside {
		is4 := g.Prefix.Addr().Is4()
		if n := count(is4); n != 1 {
			fs.Add("guest", fmt.Sprintf("%s takes the place of one address of the pod, and IPAM gives %d of its family", g.Prefix, n))
		}
	}
	return fs
}

// countSets counts the range sets of a family: the pod gets an address of each.
func (p *Plan) countSets(is4 bool) int {
	n := 0
	for _, s := range p.IPAM.Sets {
		if subnets := s.Subnets(); len(subnets) > 0 && subnets[0].Addr().Is4() == is4 {
			n++
		}
	}
	return n
}

// refuseInside holds the guest's addresses against those that another IPAM plugin gave.
func (p *Plan) refuseInside(addrs []state.Address) error {
	return refuse(types.ErrInvalidNetworkConfig, p.insideFaults(func(is4 bool) int {
		n := 0
		for _, a := range addrs {
			if a.Prefix.Addr().Is4() == is4 {
				n++
			}
		}
		return n
	}))
}

// recallGuest completes a record that was rebuilt from the kernel by what the programs know of the guest. Where no program of this version is,
// nobody knows it, and the record says what the plan does.
func (p *plugin) recallGuest(rec *state.Attachment, plan *Plan) {
	rec.Guest = plan.Inside
	progs, err := xdp.OpenVersion(p.bpffs, xdp.Digest())
	if err != nil {
		return
	}
	defer func() { _ = progs.Close() }() // it was read from
	entry, err := progs.Lookup(tapIndex(*rec))
	if err != nil {
		return
	}
	rec.Guest = nil
	for _, outside := range entry.Outside {
		var inside state.Address
		for _, a := range entry.Addresses {
			if a.Addr().Is4() == outside.Is4() {
				inside.Prefix = a
			}
		}
		for _, gw := range entry.Gateways {
			if gw.Is4() == outside.Is4() {
				inside.Gateway = gw
			}
		}
		rec.Guest = append(rec.Guest, inside)
	}
}

// guestArgs are the names of CNI_ARGS that give the guest's identity, with its keys.
var guestArgs = map[string]string{
	"TAP_GUEST_MAC": "mac", "TAP_GUEST_IP": "ip", "TAP_GUEST_GATEWAY": "gateway", "TAP_GUEST_IP6": "ip6", "TAP_GUEST_GATEWAY6": "gateway6",
}

func guestArgPath(key string) string {
	for name, k := range guestArgs {
		if k == key {
			return argPath(name)
		}
	}
	return argPath("TAP_GUEST_MAC")
}

func guestAnnotationPath(key string) string {
	return jsonkeys.JoinPath(annotationPath(choiceGuest), key)
}

// field is the value of a key.
func (g *GuestConfig) field(key string) *string {
	return map[string]*string{"mac": &g.MAC, "ip": &g.IP, "gateway": &g.Gateway, "ip6": &g.IP6, "gateway6": &g.Gateway6}[key]
}

// parseGuestAnnotation reads the identity as JSON.
func parseGuestAnnotation(value string, fs *faults) *GuestConfig {
	g := new(GuestConfig)
	found, err := jsonkeys.Check([]byte(value), g)
	if err != nil {
		fs.Add(annotationPath(choiceGuest), fmt.Sprintf(`want JSON as {"mac": …, "ip": …, "gateway": …}, got %q: %v`, shown(value), err))
		return nil
	}
	*fs = append(*fs, found.Under(annotationPath(choiceGuest))...)
	if err := json.Unmarshal([]byte(value), &g); err != nil || len(found) > 0 || g == nil {
		return nil
	}
	return g
}
