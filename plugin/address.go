package plugin

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// foreverValid is an address lifetime that never ends, in seconds (INFINITY_LIFE_TIME).
const foreverValid = 1<<32 - 1

// hostSide brings the device in the host's netns up with the gateway's addresses and leads the pod's addresses to it.
func (a *apply) hostSide() error {
	dev := nodeEnd(a.rec)
	if a.plan.Plain {
		if err := a.progs.Attach(dev.Index, xdp.RoleHost, xdp.Method(a.rec.Redirect)); err != nil {
			return err
		}
	}
	if err := a.attachHostShortcut(); err != nil {
		return err
	}
	// Two requests: in one, the kernel brings the link up before it hears that IPv6 is to make no address.
	for _, s := range []rtnl.Settings{{Name: dev.Name, Alias: a.rec.Alias(), NoIPv6Addr: true}, {Name: dev.Name, Up: true}} {
		if err := a.host.Configure(dev.Index, s); err != nil {
			return err
		}
	}
	for _, gw := range gateways(a.rec.Addresses) {
		if err := addGateway(a.host, dev, gw, unix.RT_SCOPE_HOST); err != nil {
			return err
		}
	}
	for _, addr := range a.rec.Addresses {
		if err := a.leadToGuest(addr.Prefix.Addr()); err != nil {
			return err
		}
	}
	return a.ensureSource()
}

// leadToGuest makes the device in the host's netns the way to one of the guest's addresses.
func (a *apply) leadToGuest(guest netip.Addr) error {
	dev := nodeEnd(a.rec)
	if err := setNeighbour(a.host, dev, guest, a.plan.MAC); err != nil {
		return err
	}
	return addHostRoute(a.host, dev, guest)
}

// gateways are the distinct gateways of the addresses, in order.
func gateways(addrs []state.Address) []netip.Addr {
	var out []netip.Addr
	seen := map[netip.Addr]bool{}
	for _, a := range addrs {
		if a.Gateway.IsValid() && !seen[a.Gateway] {
			seen[a.Gateway] = true
			out = append(out, a.Gateway)
		}
	}
	return out
}

// addGateway puts the gateway's address on the host end. It is no source for what the node sends: scope host keeps
// IPv4 from choosing it, a preferred lifetime of 0 keeps IPv6 from it while there is another.
func addGateway(host *rtnl.Conn, dev state.Device, gw netip.Addr, scope4 int) error {
	addr := &netlink.Addr{IPNet: ipNet(single(gw)), LinkIndex: dev.Index, Flags: unix.IFA_F_NOPREFIXROUTE}
	if gw.Is4() {
		addr.Scope = scope4
	} else {
		addr.Flags |= unix.IFA_F_NODAD
		addr.PreferedLft, addr.ValidLft = 0, foreverValid
	}
	err := host.AddrAdd(linkRef(dev), addr)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("put the gateway address %s on %q: %w%s", gw, dev.Name, err, ipv6Hint(gw, err))
	}
	return nil
}

// ensureSource gives the node a source address towards the guest where it has no IPv4 address of its own: then the
// gateway's.
func (a *apply) ensureSource() error {
	var mine []state.Address
	for _, addr := range a.rec.Addresses {
		if addr.Prefix.Addr().Is4() {
			mine = append(mine, addr)
		}
	}
	if len(mine) == 0 {
		return nil
	}
	ok, err := hasSource(a.host, mine[0].Prefix.Addr())
	if err != nil || ok {
		return err
	}
	// A scope cannot be changed, and with its last address a link loses its IPv4 routes and neighbours.
	for _, gw := range gateways(mine) {
		if err := a.host.AddrDel(linkRef(nodeEnd(a.rec)), &netlink.Addr{IPNet: ipNet(single(gw))}); err != nil {
			return fmt.Errorf("make %s the source towards the guest: %w", gw, err)
		}
	}
	for _, gw := range gateways(mine) {
		if err := addGateway(a.host, nodeEnd(a.rec), gw, unix.RT_SCOPE_LINK); err != nil {
			return err
		}
	}
	for _, addr := range mine {
		if err := a.leadToGuest(addr.Prefix.Addr()); err != nil {
			return err
		}
	}
	return nil
}

func setNeighbour(conn *rtnl.Conn, dev state.Device, ip netip.Addr, mac []byte) error {
	err := conn.NeighSet(&netlink.Neigh{LinkIndex: dev.Index, Family: family(ip), State: unix.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: mac})
	if err != nil {
		return fmt.Errorf("set the neighbour %s on %q: %w%s", ip, dev.Name, err, ipv6Hint(ip, err))
	}
	return nil
}

// addHostRoute leads the guest's address to the host end; a route to it by another device is not replaced.
func addHostRoute(host *rtnl.Conn, dev state.Device, guest netip.Addr) error {
	err := host.RouteAdd(&netlink.Route{LinkIndex: dev.Index, Dst: ipNet(single(guest)), Scope: unix.RT_SCOPE_LINK, Protocol: unix.RTPROT_STATIC})
	if errors.Is(err, unix.EEXIST) {
		return withCode(CodeBusy, fmt.Errorf("route %s to %q: the node routes that address already; see \"ip route get %s\"", guest, dev.Name, guest))
	}
	if err != nil {
		return fmt.Errorf("route %s to %q: %w%s", guest, dev.Name, err, ipv6Hint(guest, err))
	}
	return nil
}

// addressPod gives a plain pod its addresses, its gateway's neighbour entry and its routes.
func (a *apply) addressPod() error {
	dev := a.rec.Pod
	if err := a.pod.Configure(dev.Index, rtnl.Settings{Name: dev.Name, Up: true}); err != nil {
		return err
	}
	for _, addr := range a.rec.Addresses {
		n := &netlink.Addr{IPNet: ipNet(addr.Prefix), LinkIndex: dev.Index}
		if addr.Prefix.Addr().Is6() {
			n.Flags |= unix.IFA_F_NODAD
		}
		if err := a.pod.AddrAdd(linkRef(dev), n); err != nil {
			return fmt.Errorf("put %s on %q in netns %q: %w%s", addr.Prefix, dev.Name, a.plan.Netns, err, ipv6Hint(addr.Prefix.Addr(), err))
		}
		if !addr.Gateway.IsValid() {
			continue
		}
		if err := setNeighbour(a.pod, dev, addr.Gateway, xdp.GatewayMAC); err != nil {
			return err
		}
		if !addr.Prefix.Contains(addr.Gateway) {
			if err := addPodRoute(a.pod, dev, state.Route{Dst: single(addr.Gateway)}); err != nil {
				return err
			}
		}
	}
	for _, r := range a.rec.Routes {
		if err := addPodRoute(a.pod, dev, r); err != nil {
			return err
		}
	}
	return nil
}

func addPodRoute(pod *rtnl.Conn, dev state.Device, r state.Route) error {
	route := &netlink.Route{LinkIndex: dev.Index, Dst: ipNet(r.Dst)}
	if r.GW.IsValid() {
		route.Gw = r.GW.AsSlice()
	} else {
		route.Scope = unix.RT_SCOPE_LINK
	}
	if err := pod.RouteAdd(route); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("route %s by %q in the pod: %w", r.Dst, dev.Name, err)
	}
	return nil
}

// linkRef is the library's handle of a device of which the ifindex is known.
func linkRef(dev state.Device) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: dev.Index, Name: dev.Name}}
}

func family(ip netip.Addr) int {
	if ip.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// ipv6Hint says what an errno of an IPv6 request usually means.
func ipv6Hint(ip netip.Addr, err error) string {
	if ip.Is6() && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP)) {
		return `; IPv6 is off here (sysctls net.ipv6.conf.all.disable_ipv6 and net.ipv6.conf.default.disable_ipv6)`
	}
	return ""
}

// existsAs gives an error the code where it says that something exists already.
func existsAs(code uint, err error) error {
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY) {
		return withCode(code, err)
	}
	return err
}
