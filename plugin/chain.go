package plugin

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Gateways for addresses that have none, such as that of a /32. After another plugin they only make a boot "ip=" line and a
// network-config well-formed; on interfaces of tapir's own the host end has them, so that the guest's routes lead somewhere.
var (
	syntheticGateway4 = netip.MustParseAddr("169.254.1.1")
	syntheticGateway6 = netip.MustParseAddr("fe80::1")
)

// parsePrev reads the result of another plugin; the version is the result's own, else the configuration's.
func parsePrev(raw []byte, confVersion string) (*current.Result, error) {
	version, err := resultVersion(raw, confVersion)
	if err != nil {
		return nil, err
	}
	r, err := create.Create(version, raw)
	if err != nil {
		return nil, err
	}
	return current.NewResultFromResult(r)
}

// validateChained refuses what belongs to the plugin before.
func (c *Config) validateChained(fs *faults) {
	const whose = "after another plugin: it is that plugin's"
	if present(c.IPAM) {
		fs.Add("ipam", "want none "+whose)
	}
	if c.IPMasq {
		fs.Add("ipMasq", "want false "+whose)
	}
	if c.XDP.Mode != "off" {
		fs.Add("xdp.mode", `want "off" after another plugin: the shortcut would go round its policies`)
	}
	if c.RuntimeConfig.Bandwidth != nil {
		fs.Add("runtimeConfig.bandwidth", "want none "+whose+" interface; put the bandwidth plugin after tapir and give it the capability")
	}
	if c.Placement == PlacementHost {
		fs.Add("placement", `want "pod" after another plugin: the TAP goes onto its interface`)
	}
	if c.VMM == tap.Kata && c.Placement != PlacementHost {
		fs.Add("vmm", `"kata" leaves nothing to add after another plugin: Kata uses its interface as it is; take tapir out of the list`)
	}
	if len(c.RuntimeConfig.IPRanges) > 0 {
		fs.Add("runtimeConfig.ipRanges", "want none "+whose+" addresses already; give the capability to the plugin before")
	}
}

// planForeign takes the addresses that were asked for: after another plugin they can only be the interface's.
func (p *Plan) planForeign(cfg *Config, a Args, ch choices, conv conventions, fs, argFaults *faults) {
	cfg.validateChained(fs)
	wanted := func(list []string, path string, to *faults) {
		for _, s := range list {
			addr, err := parseAddress(s)
			if err != nil {
				to.Add(path, fmt.Sprintf("want an IP address, got %q", s))
				continue
			}
			p.wanted = append(p.wanted, addr)
		}
	}
	if a.IP != "" {
		wanted(strings.Split(a.IP, ","), argPath("IP"), argFaults)
	}
	wanted(conv.IPs, "args.cni.ips", fs)
	wanted(cfg.RuntimeConfig.IPs, "runtimeConfig.ips", fs)
	if len(p.wanted) == 0 {
		wanted(ch.ips, annotationPath(choiceIP), fs)
	}
}

// parseAddress reads an address with or without a prefix length.
func parseAddress(s string) (netip.Addr, error) {
	s = strings.TrimSpace(s)
	if prefix, err := netip.ParsePrefix(s); err == nil {
		return prefix.Addr().Unmap(), nil
	}
	addr, err := netip.ParseAddr(s)
	return addr.Unmap(), err
}

// foreign is the interface of the plugin before, as the kernel has it, and what the guest is told.
type foreign struct {
	link      netlink.Link
	addresses []state.Address
	routes    []state.Route
	// gatewayMAC answers for gateways that have a permanent neighbour entry in the sandbox; nil: real neighbours answer.
	gatewayMAC net.HardwareAddr
	answered   []netip.Addr
}

// readForeign finds the interface in the sandbox and completes what the result lacks from the kernel.
func readForeign(pod *rtnl.Conn, plan *Plan) (*foreign, error) {
	link, err := pod.LinkByName(plan.Key.IfName)
	if rtnl.Gone(err) {
		return nil, withCode(types.ErrInvalidNetworkConfig, fmt.Errorf("no interface %q in netns %q: the plugin before made none of that name", plan.Key.IfName, plan.Netns))
	}
	if err != nil {
		return nil, fmt.Errorf("look up %q in netns %q: %w", plan.Key.IfName, plan.Netns, err)
	}
	f := &foreign{link: link}
	if f.addresses = prevAddresses(plan.prev, plan.Key.IfName); len(f.addresses) == 0 {
		if f.addresses, err = kernelAddresses(pod, link); err != nil {
			return nil, err
		}
	}
	if err := f.refuseOther(plan); err != nil {
		return nil, err
	}
	if err := f.completeGateways(pod); err != nil {
		return nil, err
	}
	for _, r := range plan.prev.Routes {
		if route, ok := stateRoute(r); ok {
			f.routes = append(f.routes, route)
		}
	}
	return f, f.findPermanent(pod)
}

// refuseOther keeps a MAC, an MTU or an address that was asked for from being ignored.
func (f *foreign) refuseOther(plan *Plan) error {
	var fs faults
	if mac := f.link.Attrs().HardwareAddr; plan.MAC != nil && plan.MAC.String() != mac.String() {
		fs.Add("mac", fmt.Sprintf("want that of %q, %s, since it exists already, got %s; give the MAC to the plugin before as well", plan.Key.IfName, mac, plan.MAC))
	}
	if mtu := f.link.Attrs().MTU; plan.MTU != 0 && plan.MTU != mtu {
		fs.Add("mtu", fmt.Sprintf("want 0 or that of %q, %d, got %d; give the MTU to the plugin before", plan.Key.IfName, mtu, plan.MTU))
	}
	var have []netip.Addr
	for _, a := range f.addresses {
		have = append(have, a.Prefix.Addr())
	}
	for _, ip := range plan.wanted {
		if !slices.Contains(have, ip) {
			fs.Add("ips", fmt.Sprintf("want an address of %q, which has %s, got %s; give the address to the plugin before as well", plan.Key.IfName, have, ip))
		}
	}
	return refuse(types.ErrInvalidNetworkConfig, fs)
}

// prevAddresses are the result's addresses of the interface: those that point to it or nowhere, IPv4 first.
func prevAddresses(prev *current.Result, ifName string) []state.Address {
	var v4, v6 []state.Address
	for _, ip := range prev.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(prev.Interfaces) && prev.Interfaces[*i].Name != ifName {
			continue
		}
		a, ok := stateAddress(ip)
		switch {
		case !ok:
		case a.Prefix.Addr().Is4():
			v4 = append(v4, a)
		default:
			v6 = append(v6, a)
		}
	}
	return append(v4, v6...)
}

// stateAddress is an address of a result.
func stateAddress(ip *current.IPConfig) (state.Address, bool) {
	addr, ok := netip.AddrFromSlice(ip.Address.IP)
	if !ok {
		return state.Address{}, false
	}
	addr = addr.Unmap()
	ones, bits := ip.Address.Mask.Size()
	if bits != addr.BitLen() {
		return state.Address{}, false
	}
	gw, _ := netip.AddrFromSlice(ip.Gateway)
	return state.Address{Prefix: netip.PrefixFrom(addr, ones), Gateway: gw.Unmap()}, true
}

func stateRoute(r *types.Route) (state.Route, bool) {
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	if !ok {
		return state.Route{}, false
	}
	ones, _ := r.Dst.Mask.Size()
	gw, _ := netip.AddrFromSlice(r.GW)
	return state.Route{Dst: netip.PrefixFrom(addr.Unmap(), ones), GW: gw.Unmap()}, true
}

// kernelAddresses are the interface's addresses of global scope.
func kernelAddresses(pod *rtnl.Conn, link netlink.Link) ([]state.Address, error) {
	var out []state.Address
	for _, fam := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := pod.Addresses(link, fam)
		if err != nil {
			return nil, fmt.Errorf("list the addresses of %q: %w", link.Attrs().Name, err)
		}
		for _, a := range list {
			if a.Scope != unix.RT_SCOPE_UNIVERSE {
				continue
			}
			if sa, ok := stateAddress(&current.IPConfig{Address: *a.IPNet}); ok {
				out = append(out, sa)
			}
		}
	}
	return out, nil
}

// completeGateways fills in missing gateways from the sandbox's default routes, else with synthetic ones.
func (f *foreign) completeGateways(pod *rtnl.Conn) error {
	for i := range f.addresses {
		a := &f.addresses[i]
		if a.Gateway.IsValid() {
			continue
		}
		gw, err := defaultGateway(pod, family(a.Prefix.Addr()))
		if err != nil {
			return err
		}
		a.Gateway = gw
	}
	giveGateways(f.addresses)
	return nil
}

// giveGateways gives the addresses that have no gateway the synthetic one.
func giveGateways(addrs []state.Address) {
	for i := range addrs {
		switch a := &addrs[i]; {
		case a.Gateway.IsValid():
		case a.Prefix.Addr().Is4():
			a.Gateway = syntheticGateway4
		default:
			a.Gateway = syntheticGateway6
		}
	}
}

// defaultGateway is the gateway of the netns's default route; invalid where there is none.
func defaultGateway(pod *rtnl.Conn, fam int) (netip.Addr, error) {
	routes, err := pod.Routes(fam, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if gw, ok := netip.AddrFromSlice(r.Gw); ok && isDefault(r) {
			return gw.Unmap(), nil
		}
	}
	return netip.Addr{}, nil
}

// findPermanent finds gateways with a permanent neighbour entry: nobody may answer ARP or ND for those on the wire.
func (f *foreign) findPermanent(pod *rtnl.Conn) error {
	entries, err := pod.Neighbours(f.link.Attrs().Index, unix.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("list the neighbours of %q: %w", f.link.Attrs().Name, err)
	}
	for _, gw := range gateways(f.addresses) {
		for _, n := range entries {
			ip, _ := netip.AddrFromSlice(n.IP)
			if ip.Unmap() != gw || n.State&unix.NUD_PERMANENT == 0 || len(n.HardwareAddr) != 6 {
				continue
			}
			if f.gatewayMAC == nil || f.gatewayMAC.String() == n.HardwareAddr.String() {
				f.gatewayMAC, f.answered = n.HardwareAddr, append(f.answered, gw)
			}
		}
	}
	return nil
}
