package main

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// names gives a link's name by its ifindex, for the descriptions; an ifindex changes when a link is made anew.
func names() (map[int]string, []netlink.Link, error) {
	list, err := netlink.LinkList()
	if err != nil {
		return nil, nil, fmt.Errorf("list links: %w", err)
	}
	byIndex := make(map[int]string, len(list))
	for _, link := range list {
		byIndex[link.Attrs().Index] = link.Attrs().Name
	}
	return byIndex, list, nil
}

func links(s state) error {
	byIndex, list, err := names()
	if err != nil {
		return err
	}
	for _, link := range list {
		a := link.Attrs()
		s.add(kindLink, a.Name, fmt.Sprintf("%s mtu %d up %t promisc %d group %d master %q alias %q",
			link.Type(), a.MTU, a.Flags&net.FlagUp != 0, a.Promisc, a.Group, byIndex[a.MasterIndex], a.Alias))
	}
	return nil
}

func addresses(s state) error {
	byIndex, _, err := names()
	if err != nil {
		return err
	}
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range list {
		s.add(kindAddress, fmt.Sprintf("%s on %s", a.IPNet, byIndex[a.LinkIndex]), fmt.Sprintf("scope %d", a.Scope))
	}
	return nil
}

// routes records the routes of all tables.
func routes(s state) error {
	byIndex, _, err := names()
	if err != nil {
		return err
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		// Table 0 with a filter on the table asks for all of them.
		list, err := netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return fmt.Errorf("list routes of family %d: %w", family, err)
		}
		for _, r := range list {
			s.add(kindRoute, fmt.Sprintf("%v table %d dev %q", r.Dst, r.Table, byIndex[r.LinkIndex]),
				fmt.Sprintf("via %v src %v type %d proto %d metric %d", r.Gw, r.Src, r.Type, r.Protocol, r.Priority))
		}
	}
	return nil
}

func rules(s state) error {
	list, err := netlink.RuleList(netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	for _, r := range list {
		s.add(kindRule, r.String(), fmt.Sprintf("family %d", r.Family))
	}
	return nil
}

// neighbours records the permanent entries: the others come and go with the traffic.
func neighbours(s state) error {
	byIndex, _, err := names()
	if err != nil {
		return err
	}
	for _, flags := range []uint8{0, netlink.NTF_PROXY} {
		list, err := netlink.NeighListExecute(netlink.Ndmsg{Flags: flags})
		if err != nil {
			return fmt.Errorf("list neighbours: %w", err)
		}
		for _, n := range list {
			if flags == 0 && n.State&netlink.NUD_PERMANENT == 0 {
				continue
			}
			s.add(kindNeighbour, fmt.Sprintf("%s on %s", n.IP, byIndex[n.LinkIndex]), fmt.Sprintf("%s proxy %t", n.HardwareAddr, flags != 0))
		}
	}
	return nil
}
