package plugin

import (
	"fmt"
	"net/netip"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/xdp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inspection compares the two sides of an attachment with the kernel.
type inspection struct {
	findings
	rec   state.Attachment
	progs *xdp.Programs // nil where the pins are gone, which is a finding already

	shortcut *xdp.Shortcut // nil where the attachment takes no part in it
	current  bool          // the TAP has this version's program of it
}

func (k *inspection) add(format string, args ...any) {
	k.findings = append(k.findings, fmt.Sprintf(format, args...))
}

// link looks a device up and compares what all devices have; nil where it is not there.
func (k *inspection) link(conn *rtnl.Conn, dev state.Device) netlink.Link {
	link, err := conn.LinkByName(dev.Name)
	if err != nil {
		k.add("%s: %v", dev.Name, err)
		return nil
	}
	a := link.Attrs()
	k.differ(dev.Name+": ifindex", dev.Index, a.Index)
	k.differ(dev.Name+": MAC", dev.MAC, a.HardwareAddr.String())
	k.differ(dev.Name+": mtu", k.rec.MTU, a.MTU)
	if !k.rec.Chained || dev.Name == k.rec.TAP.Name {
		k.differ(dev.Name+": alias", k.rec.Alias(), a.Alias)
	}
	if a.RawFlags&unix.IFF_UP == 0 {
		k.add("%s: is down", dev.Name)
	}
	return link
}

func (k *inspection) attached(dev state.Device, role xdp.Role, method string) {
	if k.progs == nil || method == "" {
		return
	}
	ok, err := k.progs.Attached(dev.Index, role, xdp.Method(method))
	if err != nil {
		k.add("%s: %v", dev.Name, err)
	} else if !ok {
		k.add("%s: its %s program is not attached", dev.Name, method)
	}
}

// hostSide compares the device in the host's netns, its addresses, the neighbour entries and the routes.
func (k *inspection) hostSide(host *rtnl.Conn) {
	end := nodeEnd(&k.rec)
	link := k.link(host, end)
	if link == nil {
		return
	}
	if k.plain() || k.rec.OnHost() {
		k.attached(end, xdp.RoleHost, k.rec.Redirect)
	}
	if k.rec.OnHost() && !k.rec.Rebuilt {
		k.tap(host)
	}
	limit, _ := shapes(&k.rec)
	k.shaped(host, k.rec.Host, limit)
	var want []netip.Prefix
	for _, gw := range gateways(k.rec.Addresses) {
		want = append(want, single(gw))
	}
	k.addresses(host, link, want)
	for _, a := range k.rec.Addresses {
		k.neighbour(host, end, a.Prefix.Addr(), k.rec.GuestMAC)
		k.hostRoute(host, a.Prefix.Addr())
	}
}

// masquerade wants each address in the set of the attachment's chain.
func (k *inspection) masquerade() {
	if k.rec.Masquerade == "" {
		return
	}
	have, err := masqueraded(k.rec.Masquerade)
	if err != nil {
		k.add("masquerade: %s", oneLine(err))
	}
	for _, a := range k.rec.Addresses {
		if ip := a.Prefix.Addr(); !have[ip] {
			k.add("masquerade: %s is missing in nftables chain %s", ip, k.rec.Masquerade)
		}
	}
}

func (k *inspection) plain() bool { return k.rec.TAP.Name == "" }

// addresses wants each of want on the link; what a pod has beside is its own affair.
func (k *inspection) addresses(conn *rtnl.Conn, link netlink.Link, want []netip.Prefix) {
	got, err := conn.Addresses(link, unix.AF_UNSPEC)
	if err != nil {
		k.add("%s: list addresses: %v", link.Attrs().Name, err)
		return
	}
	have := map[string]bool{}
	for _, a := range got {
		have[a.IPNet.String()] = true
	}
	for _, w := range want {
		if !have[w.String()] {
			k.add("%s: address %s is missing", link.Attrs().Name, w)
		}
	}
}

func (k *inspection) neighbour(conn *rtnl.Conn, dev state.Device, ip netip.Addr, mac string) {
	entries, err := conn.Neighbours(dev.Index, family(ip))
	if err != nil {
		k.add("%s: list neighbours: %v", dev.Name, err)
		return
	}
	for _, n := range entries {
		if n.IP.String() != ip.String() {
			continue
		}
		k.differ(fmt.Sprintf("%s: neighbour %s", dev.Name, ip), mac, n.HardwareAddr.String())
		if n.State&unix.NUD_PERMANENT == 0 {
			k.add("%s: neighbour %s is not permanent", dev.Name, ip)
		}
		return
	}
	k.add("%s: neighbour %s is missing", dev.Name, ip)
}

func (k *inspection) hostRoute(host *rtnl.Conn, guest netip.Addr) {
	routes, err := host.RouteGetWithOptions(guest.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil {
		k.add("route to %s: %v", guest, err)
		return
	}
	end := nodeEnd(&k.rec)
	for _, r := range routes {
		if r.LinkIndex == end.Index {
			return
		}
	}
	k.add("route to %s: does not lead to %s", guest, end.Name)
}

// inPod runs on a thread in the sandbox.
func (k *inspection) inPod() error {
	pod, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer pod.Close()
	k.podSide(pod)
	return nil
}

// taggedInPod compares what a record that was rebuilt from the kernel knows of the sandbox: names, and whose they are. It runs on
// a thread there.
func (k *inspection) taggedInPod() error {
	pod, err := rtnl.Open()
	if err != nil {
		return err
	}
	defer pod.Close()
	for _, name := range []string{k.rec.Pod.Name, k.rec.TAP.Name} {
		if name == "" {
			continue
		}
		link, err := pod.LinkByName(name)
		if err != nil {
			k.add("%s: %v", name, err)
			continue
		}
		a := link.Attrs()
		k.differ(name+": alias", k.rec.Alias(), a.Alias)
		k.differ(name+": mtu", k.rec.MTU, a.MTU)
		if a.RawFlags&unix.IFF_UP == 0 {
			k.add("%s: is down", name)
		}
	}
	return nil
}

// podSide compares what is in the sandbox. It runs on a thread in that netns.
func (k *inspection) podSide(pod *rtnl.Conn) {
	link := k.link(pod, k.rec.Pod)
	if _, limit := shapes(&k.rec); link != nil {
		k.shaped(pod, k.rec.Pod, limit)
	}
	if k.plain() {
		if link != nil {
			var want []netip.Prefix
			for _, a := range k.rec.Addresses {
				want = append(want, a.Prefix)
				if a.Gateway.IsValid() {
					k.neighbour(pod, k.rec.Pod, a.Gateway, xdp.GatewayMAC.String())
				}
			}
			k.addresses(pod, link, want)
			k.podRoutes(pod)
		}
		return
	}
	if k.rec.Chained {
		k.foreign(link)
	} else if link != nil {
		k.attached(k.rec.Pod, xdp.RolePod, k.rec.Redirect)
	}
	if k.link(pod, k.rec.TAP) == nil {
		return
	}
	method := k.rec.Redirect
	if k.rec.Chained {
		method = string(xdp.MethodClsact)
	}
	k.attached(k.rec.TAP, xdp.RoleGuest, method)
	k.xdpOnTap(k.rec.TAP)
	k.tap(pod)
}

// foreign compares what leads from the interface of the plugin before to the TAP.
func (k *inspection) foreign(link netlink.Link) {
	if link == nil {
		return
	}
	got, err := xdp.AttachedForeign(link.Attrs().Index)
	switch {
	case err != nil:
		k.add("%s: %v", k.rec.Pod.Name, err)
	case got.Method == "":
		k.add("%s: the program that leads to %s is not attached", k.rec.Pod.Name, k.rec.TAP.Name)
	case got.TAP != uint32(k.rec.TAP.Index):
		k.add("%s: leads to a tap with ifindex %d, want %d", k.rec.Pod.Name, got.TAP, k.rec.TAP.Index)
	}
}

func (k *inspection) podRoutes(pod *rtnl.Conn) {
	for _, want := range k.rec.Routes {
		got, err := pod.Routes(family(want.Dst.Addr()), &netlink.Route{LinkIndex: k.rec.Pod.Index}, netlink.RT_FILTER_OIF)
		if err != nil {
			k.add("list routes: %v", err)
			return
		}
		found := false
		for _, r := range got {
			same := r.Dst != nil && r.Dst.String() == want.Dst.String() || isDefault(r) && want.Dst.Bits() == 0
			found = found || same && (!want.GW.IsValid() || r.Gw.String() == want.GW.String())
		}
		if !found {
			k.add("%s: route %s is missing", k.rec.Pod.Name, want.Dst)
		}
	}
}

// tap compares what the driver says of the TAP.
func (k *inspection) tap(pod *rtnl.Conn) {
	dev := k.rec.TAP
	if link, err := pod.LinkByName(dev.Name); err == nil && link.Attrs().TxQLen < k.rec.TxQueue { // the agent's tuner may have grown it
		k.differ(dev.Name+": txQueueLen", k.rec.TxQueue, link.Attrs().TxQLen)
	}
	got, err := tap.Read(pod, dev.Index)
	if err != nil {
		k.add("%s: %v", dev.Name, err)
		return
	}
	k.tapFlags(got)
	k.noqueue(pod, dev)
}

// tapFlags compares what the TAP was created with.
func (k *inspection) tapFlags(got tap.Info) {
	dev := k.rec.TAP
	k.differ(dev.Name+": flags", tap.FlagNames(tap.Flags(k.rec.Queues)), tap.FlagNames(got.Flags))
	if !got.Persistent {
		k.add("%s: is not persistent", dev.Name)
	}
	if !k.rec.Rebuilt {
		k.differ(dev.Name+": owner", optional(k.rec.Owner), optional(got.Owner))
		k.differ(dev.Name+": group", optional(k.rec.GroupID), optional(got.Group))
	}
}

func (k *inspection) noqueue(conn *rtnl.Conn, dev state.Device) {
	if kind, err := conn.RootQdisc(dev.Index); err != nil {
		k.add("%s: %v", dev.Name, err)
	} else {
		k.differ(dev.Name+": qdisc", "noqueue", kind)
	}
}
