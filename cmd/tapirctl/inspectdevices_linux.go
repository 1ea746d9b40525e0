package main

import (
	"fmt"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/tapir-cni/tapir/state"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// deviceView is what is configured on a device.
type deviceView struct {
	Name       string   `json:"name"`
	Index      int      `json:"index"`
	Netns      string   `json:"netns"` // path; empty: the host's
	MAC        string   `json:"mac"`
	Alias      string   `json:"alias,omitempty"`
	Up         bool     `json:"up"`
	MTU        int      `json:"mtu"`
	Group      uint32   `json:"group,omitempty"`
	Qdiscs     []string `json:"qdiscs"`
	Addresses  []string `json:"addresses"`
	Routes     []string `json:"routes"`
	Neighbours []string `json:"neighbours"` // permanent ones
}

// devices looks at the attachment's devices in both network namespaces.
func (v *inspected) devices(a state.Attachment) {
	tapPath, known := a.TAPNetns()
	for _, d := range []struct {
		role  string
		dev   state.Device
		netns string
		known bool
	}{{"tap", a.TAP, tapPath, known}, {"pod", a.Pod, a.Netns, a.Netns != ""}, {"host", a.Host, "", true}} {
		if d.dev.Index == 0 || !d.known {
			continue
		}
		view, err := viewDevice(d.dev, d.netns)
		if err != nil {
			v.problem(fmt.Errorf("look at %s: %w", d.dev.Name, err))
			continue
		}
		v.Devices[d.role] = view
	}
}

func viewDevice(d state.Device, path string) (v deviceView, err error) {
	look := func() error {
		v, err = readDevice(d)
		v.Netns = path
		return err
	}
	if path == "" {
		return v, look()
	}
	netns, err := ns.GetNS(path)
	if err != nil {
		return v, err
	}
	defer netns.Close()
	err = netns.Do(func(ns.NetNS) error { return look() })
	return v, err
}

// readDevice reads one of the calling thread's namespace.
func readDevice(d state.Device) (deviceView, error) {
	l, err := netlink.LinkByIndex(d.Index)
	if err != nil {
		return deviceView{}, err
	}
	a := l.Attrs()
	v := deviceView{
		Name: a.Name, Index: a.Index, MAC: a.HardwareAddr.String(), Alias: a.Alias, Up: a.RawFlags&unix.IFF_UP != 0, MTU: a.MTU, Group: a.Group,
		Qdiscs: []string{}, Addresses: []string{}, Routes: []string{}, Neighbours: []string{},
	}
	qdiscs, err := netlink.QdiscList(l)
	if err != nil {
		return v, err
	}
	for _, q := range qdiscs {
		v.Qdiscs = append(v.Qdiscs, q.Type())
	}
	addresses, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return v, err
	}
	for _, one := range addresses {
		v.Addresses = append(v.Addresses, one.IPNet.String())
	}
	routes, err := netlink.RouteList(l, netlink.FAMILY_ALL)
	if err != nil {
		return v, err
	}
	for _, r := range routes {
		text := "default"
		if r.Dst != nil {
			text = r.Dst.String()
		}
		if r.Gw != nil {
			text += " via " + r.Gw.String()
		}
		v.Routes = append(v.Routes, text)
	}
	neighbours, err := netlink.NeighList(a.Index, netlink.FAMILY_ALL)
	for _, n := range neighbours {
		if n.State&netlink.NUD_PERMANENT != 0 {
			v.Neighbours = append(v.Neighbours, n.IP.String()+" "+n.HardwareAddr.String())
		}
	}
	return v, err
}
