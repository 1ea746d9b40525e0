package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/internal/sysctl"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/xdp"
	"golang.org/x/sys/unix"
)

// entries compares what the programs know, an entry a device.
func (v *visit) entries() {
	if v.progs == nil {
		return
	}
	all, err := endpoints(&v.rec)
	if err != nil {
		v.add(PropertyEntry, v.rec.Key.String(), err.Error())
		return
	}
	for index, want := range all {
		check := func(k *inspection) {
			if what := entryDiffers(v.progs, index, want); what != "" {
				k.add("%s", what)
			}
		}
		v.compare(PropertyEntry, fmt.Sprintf("ifindex %d", index), check, func() error {
			err := v.progs.Update(index, want)
			if errors.Is(err, fs.ErrNotExist) {
				err = v.progs.Reserve(map[uint32]xdp.Endpoint{index: want})
			}
			return err
		})
	}
}

// there tells whether the device of the record is in the netns of conn. Another one of its name is not.
func (v *visit) there(conn *rtnl.Conn, dev state.Device) bool {
	link, err := conn.LinkByName(dev.Name)
	switch {
	case err != nil:
		v.add(PropertyDevice, dev.Name, err.Error())
	case link.Attrs().Index != dev.Index:
		v.add(PropertyDevice, dev.Name, fmt.Sprintf("ifindex: want %d, got %d: another device has its name", dev.Index, link.Attrs().Index))
	default:
		return true
	}
	return false
}

// link compares what all of tapir's own devices have.
func (v *visit) link(conn *rtnl.Conn, dev state.Device) {
	v.compare(PropertyLink, dev.Name, func(k *inspection) { k.link(conn, dev) }, func() error {
		mac, err := net.ParseMAC(dev.MAC)
		if err != nil {
			return err
		}
		return conn.Configure(dev.Index, rtnl.Settings{Name: dev.Name, MAC: mac, MTU: v.rec.MTU, Alias: v.rec.Alias(), NoIPv6Addr: dev != v.rec.Pod, Up: true})
	})
}

func (v *visit) program(dev state.Device, role xdp.Role, method string) {
	if v.progs == nil || method == "" {
		return
	}
	v.compare(PropertyProgram, dev.Name, func(k *inspection) { k.attached(dev, role, method) },
		func() error { return v.progs.Attach(dev.Index, role, xdp.Method(method)) })
}

// inPod runs on a thread in the sandbox.
func (v *visit) inPod() {
	plain := v.rec.TAP.Name == ""
	if !plain && v.there(v.pod, v.rec.TAP) {
		v.link(v.pod, v.rec.TAP)
		v.tap(v.pod)
		method := v.rec.Redirect
		if v.rec.Chained {
			method = string(xdp.MethodClsact) // the TAP is tapir's own
		}
		v.program(v.rec.TAP, xdp.RoleGuest, method)
	}
	if !v.there(v.pod, v.rec.Pod) {
		return
	}
	if v.rec.Chained {
		v.foreign()
		return
	}
	if !plain {
		v.link(v.pod, v.rec.Pod)
		v.program(v.rec.Pod, xdp.RolePod, v.rec.Redirect)
	}
	_, limit := shapes(&v.rec)
	v.shape(v.pod, v.rec.Pod, limit)
	if plain {
		v.compare(PropertyPod, v.rec.Pod.Name, func(k *inspection) { k.podSide(v.pod) }, nil)
	}
}

// foreign compares tapir's program on another plugin's interface, the one thing there that is tapir's.
func (v *visit) foreign() {
	dev := v.rec.Pod
	check := func(k *inspection) {
		if link, err := v.pod.LinkByName(dev.Name); err == nil {
			k.foreign(link)
		}
	}
	var repair func() error
	if v.progs != nil {
		repair = func() error {
			return v.progs.AttachForeign(dev.Index, uint32(v.rec.TAP.Index), xdp.Method(v.rec.Redirect))
		}
	}
	v.compare(PropertyProgram, dev.Name, check, repair)
}

// tap compares what a TAP alone has, in the netns of conn.
func (v *visit) tap(conn *rtnl.Conn) {
	dev := v.rec.TAP
	v.compare(PropertyTAP, dev.Name, func(k *inspection) {
		got, err := tap.Read(conn, dev.Index)
		if err != nil {
			k.add("%v", err)
			return
		}
		k.tapFlags(got)
	}, nil)
	if rings := append(slices.Clone(v.Rings), v.rec.TxQueue); v.rec.TxQueue != 0 {
		v.compare(PropertyRing, dev.Name, func(k *inspection) {
			if link, err := conn.LinkByName(dev.Name); err == nil && !slices.Contains(rings, link.Attrs().TxQLen) {
				k.differ("txQueueLen", rings[0], link.Attrs().TxQLen)
			}
		}, func() error { return conn.Configure(dev.Index, rtnl.Settings{Name: dev.Name, TxQueueLen: rings[0]}) })
	}
	v.compare(PropertyQdisc, dev.Name, func(k *inspection) { k.noqueue(conn, dev) }, func() error { return conn.SetNoqueue(dev.Index) })
}

func (v *visit) shape(conn *rtnl.Conn, dev state.Device, limit *rtnl.Shape) {
	if limit == nil {
		return
	}
	v.compare(PropertyQdisc, dev.Name, func(k *inspection) { k.shaped(conn, dev, limit) }, func() error { return shapeEnd(conn, dev, limit) })
}

// onHost compares what is in the host's netns.
func (v *visit) onHost() {
	if v.rec.Chained {
		return
	}
	end := nodeEnd(&v.rec)
	if !v.there(v.host, end) {
		return
	}
	v.link(v.host, end)
	if v.rec.OnHost() {
		v.tap(v.host)
	}
	if v.rec.OnHost() || v.rec.TAP.Name == "" {
		v.program(end, xdp.RoleHost, v.rec.Redirect)
	}
	limit, _ := shapes(&v.rec)
	v.shape(v.host, v.rec.Host, limit)
	v.gateway(end)
	for _, a := range v.rec.Addresses {
		v.lead(end, a.Prefix.Addr())
	}
	v.sysctls(end)
}

// gateway compares the gateways' addresses. With its last IPv4 address a link loses its IPv4 routes and neighbours, so these are
// compared after it.
func (v *visit) gateway(end state.Device) {
	check := func(k *inspection) {
		link, err := v.host.LinkByName(end.Name)
		if err != nil {
			k.add("%v", err)
			return
		}
		var want []netip.Prefix
		for _, gw := range gateways(v.rec.Addresses) {
			want = append(want, single(gw))
		}
		k.addresses(v.host, link, want)
	}
	v.compare(PropertyGateway, end.Name, check, func() error {
		for _, gw := range gateways(v.rec.Addresses) {
			if err := addGateway(v.host, end, gw, unix.RT_SCOPE_HOST); err != nil {
				return err
			}
		}
		a, err := v.apply()
		if err != nil {
			return err
		}
		for _, addr := range v.rec.Addresses {
			if err := a.leadAgain(addr.Prefix.Addr()); err != nil {
				return err
			}
		}
		return a.ensureSource()
	})
}

// apply is what ADD makes the host's side by.
func (v *visit) apply() (*apply, error) {
	mac, err := net.ParseMAC(v.rec.GuestMAC)
	if err != nil {
		return nil, fmt.Errorf("guest MAC: %w", err)
	}
	return &apply{plan: &Plan{MAC: mac}, rec: &v.rec, host: v.host}, nil
}

// leadAgain is leadToGuest where some of it may be there.
func (a *apply) leadAgain(guest netip.Addr) error {
	if err := setNeighbour(a.host, nodeEnd(a.rec), guest, a.plan.MAC); err != nil {
		return err
	}
	k := &inspection{rec: *a.rec}
	if k.hostRoute(a.host, guest); len(k.findings) == 0 {
		return nil
	}
	return addHostRoute(a.host, nodeEnd(a.rec), guest)
}

// lead compares what leads the node to one of the guest's addresses.
func (v *visit) lead(end state.Device, guest netip.Addr) {
	v.compare(PropertyNeighbour, guest.String(), func(k *inspection) { k.neighbour(v.host, end, guest, v.rec.GuestMAC) }, func() error {
		a, err := v.apply()
		if err != nil {
			return err
		}
		return setNeighbour(v.host, end, guest, a.plan.MAC)
	})
	v.compare(PropertyRoute, guest.String(), func(k *inspection) { k.hostRoute(v.host, guest) }, func() error { return addHostRoute(v.host, end, guest) })
}

// sysctls compares those of the device. What of the node's matters is in [Node.Look].
func (v *visit) sysctls(end state.Device) {
	folder := "net/ipv4/conf/" + end.Name + "/"
	for _, a := range v.rec.Addresses {
		guest := a.Prefix.Addr()
		if !guest.Is4() {
			continue
		}
		v.compare(PropertyForwarding, end.Name, func(k *inspection) {
			all, err := sysctl.Get(forward4)
			if on, devErr := sysctl.Get(folder + "forwarding"); err == nil && devErr == nil && all == "1" && on == "0" { // else it is the node's
				k.add("sysctl %sforwarding: want 1, got 0", folder)
			}
		}, func() error { return sysctl.Set(folder+"forwarding", "1") })
		v.compare(PropertyRPFilter, end.Name, func(k *inspection) { k.reversePath(v.host, end, guest) }, func() error { return sysctl.Set(folder+"rp_filter", "2") })
		return
	}
}

// reversePath wants that the kernel does not drop what the guest sends for its source: under strict filtering it does where the way
// back is by another device (Documentation/networking/ip-sysctl.rst: the higher of both values counts).
func (k *inspection) reversePath(host *rtnl.Conn, end state.Device, guest netip.Addr) {
	all, err := sysctl.Get("net/ipv4/conf/all/rp_filter")
	own, ownErr := sysctl.Get("net/ipv4/conf/" + end.Name + "/rp_filter")
	if err != nil || ownErr != nil || max(all, own) != "1" {
		return
	}
	routes, err := host.RouteGet(guest.AsSlice())
	if err != nil {
		return // no way at all: that is a finding of the route
	}
	for _, r := range routes {
		if r.LinkIndex == end.Index {
			return
		}
	}
	k.add("sysctl rp_filter is 1 for %s, and the way back to %s is by another device: what the guest sends is dropped", end.Name, guest)
}

// inShortcut compares the part in the shortcut, and gives it anew as ADD does.
func (v *visit) inShortcut(netns ns.NetNS) error {
	if v.rec.XDP.Mode == "" || v.rec.XDP.Layout != xdp.ShortcutLayout() {
		return nil
	}
	s, err := xdp.OpenShortcut(v.BPFFS)
	if errors.Is(err, fs.ErrNotExist) {
		v.add(PropertyPins, "shortcut", fmt.Sprintf("%v; the next ADD pins them anew", err))
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }() // what it did is done
	check := func(k *inspection) {
		k.shortcut = s
		k.shortcutEntries()
		err := netns.Do(func(ns.NetNS) error { k.xdpOnTap(v.rec.TAP); return nil })
		if err != nil {
			k.add("%v", err)
		}
		k.hostShortcut()
	}
	v.compare(PropertyShortcut, v.rec.TAP.Name, check, func() error {
		return netns.Do(func(host ns.NetNS) error {
			pod, err := rtnl.Open()
			if err != nil {
				return err
			}
			defer pod.Close()
			rec := v.rec // its NSID may be another by now, and is read when it is needed
			return takePart(s, &rec, pod, host, xdp.Mode(rec.XDP.Mode))
		})
	})
	return nil
}

func (v *visit) dan() {
	if v.rec.DAN == "" {
		return
	}
	v.compare(PropertyDAN, v.rec.DAN, func(k *inspection) { k.findings = append(k.findings, danFindings(&v.rec)...) },
		func() error { return putDANDevice(v.host, &v.rec) })
}
