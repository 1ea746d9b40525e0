package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// networkConfig is the part of cloud-init's network configuration, version 2, that a guest with static addresses needs.
// Keys that are not here are an error: a guest that ignores them would look configured.
type networkConfig struct {
	Version   int                 `yaml:"version"`
	Ethernets map[string]ethernet `yaml:"ethernets"`
}

type ethernet struct {
	Match struct {
		MACAddress string `yaml:"macaddress"`
	} `yaml:"match"`
	SetName     string         `yaml:"set-name"`
	MTU         int            `yaml:"mtu"`
	DHCP4       bool           `yaml:"dhcp4"`
	DHCP6       bool           `yaml:"dhcp6"`
	Addresses   []netip.Prefix `yaml:"addresses"`
	Gateway6    netip.Addr     `yaml:"gateway6"`
	Routes      []route        `yaml:"routes"`
	Nameservers struct {
		Addresses []netip.Addr `yaml:"addresses"`
		Search    []string     `yaml:"search"`
	} `yaml:"nameservers"`
}

type route struct {
	To     netip.Prefix `yaml:"to"`
	Via    netip.Addr   `yaml:"via"`
	OnLink bool         `yaml:"on-link"`
	Scope  string       `yaml:"scope"`
}

// parseNetworkConfig reads the file of a NoCloud seed, with or without the key "network" around it.
func parseNetworkConfig(text []byte) (ethernet, error) {
	var outer struct {
		Network yaml.Node `yaml:"network"`
	}
	if err := yaml.Unmarshal(text, &outer); err != nil {
		return ethernet{}, err
	}
	if !outer.Network.IsZero() {
		inner, err := yaml.Marshal(&outer.Network)
		if err != nil {
			return ethernet{}, err
		}
		text = inner
	}
	var c networkConfig
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil {
		return ethernet{}, err
	}
	if c.Version != 2 {
		return ethernet{}, fmt.Errorf("version: want 2, got %d", c.Version)
	}
	if len(c.Ethernets) != 1 {
		return ethernet{}, fmt.Errorf("ethernets: want one, got %d", len(c.Ethernets))
	}
	for name, e := range c.Ethernets {
		if e.DHCP4 || e.DHCP6 {
			return ethernet{}, fmt.Errorf("ethernets.%s: DHCP is on and this guest has no client", name)
		}
		if e.Match.MACAddress == "" {
			return ethernet{}, fmt.Errorf("ethernets.%s: want match.macaddress", name)
		}
		return e, nil
	}
	panic("unreachable")
}

// apply configures the card with the MAC and gives its name.
func (e ethernet) apply() (string, error) {
	mac, err := net.ParseMAC(e.Match.MACAddress)
	if err != nil {
		return "", err
	}
	link, err := waitForLink("with MAC "+mac.String(), func(a *netlink.LinkAttrs) bool {
		return bytes.Equal(a.HardwareAddr, mac)
	})
	if err != nil {
		return "", err
	}
	name := link.Attrs().Name
	if e.SetName != "" && e.SetName != name {
		if err := netlink.LinkSetName(link, e.SetName); err != nil {
			return "", fmt.Errorf("rename %s to %s: %w", name, e.SetName, err)
		}
		name = e.SetName
	}
	if e.MTU != 0 {
		if err := netlink.LinkSetMTU(link, e.MTU); err != nil {
			return "", fmt.Errorf("set MTU %d on %s: %w", e.MTU, name, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return "", fmt.Errorf("set %s up: %w", name, err)
	}
	for _, p := range e.Addresses {
		if err := addAddress(link, p); err != nil {
			return "", err
		}
	}
	routes := e.Routes
	if e.Gateway6.IsValid() {
		routes = append(routes, route{To: netip.PrefixFrom(netip.IPv6Unspecified(), 0), Via: e.Gateway6})
	}
	for _, r := range routes {
		if err := r.add(link); err != nil && !errors.Is(err, unix.EEXIST) { // a default route may stand twice
			return "", err
		}
	}
	var servers []string
	for _, a := range e.Nameservers.Addresses {
		servers = append(servers, a.String())
	}
	return name, writeResolv(servers, e.Nameservers.Search)
}

func addAddress(link netlink.Link, p netip.Prefix) error {
	n := net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &n}); err != nil {
		return fmt.Errorf("add address %s: %w", p, err)
	}
	return nil
}

func (r route) add(link netlink.Link) error {
	n := net.IPNet{IP: r.To.Addr().AsSlice(), Mask: net.CIDRMask(r.To.Bits(), r.To.Addr().BitLen())}
	nl := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: &n, Protocol: unix.RTPROT_STATIC}
	if r.Via.IsValid() {
		nl.Gw = r.Via.AsSlice()
	}
	if r.OnLink {
		nl.SetFlag(netlink.FLAG_ONLINK)
	}
	if r.Scope == "link" {
		nl.Scope = netlink.SCOPE_LINK
	}
	if err := netlink.RouteAdd(nl); err != nil {
		return fmt.Errorf("add route to %s via %s: %w", r.To, r.Via, err)
	}
	return nil
}

func writeResolv(servers, search []string) error {
	var b strings.Builder
	if len(search) > 0 {
		b.WriteString("search " + strings.Join(search, " ") + "\n")
	}
	for _, s := range servers {
		b.WriteString("nameserver " + s + "\n")
	}
	if err := os.MkdirAll("/etc", 0o755); err != nil {
		return err
	}
	return os.WriteFile("/etc/resolv.conf", []byte(b.String()), 0o644)
}

func setUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// waitForLink gives the first link that match takes, which the kernel may still be probing.
func waitForLink(which string, match func(*netlink.LinkAttrs) bool) (netlink.Link, error) {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		links, err := dump(netlink.LinkList)
		if err != nil {
			return nil, fmt.Errorf("list links: %w", err)
		}
		var seen []string
		for _, l := range links {
			if match(l.Attrs()) {
				return l, nil
			}
			seen = append(seen, fmt.Sprintf("%s %s", l.Attrs().Name, l.Attrs().HardwareAddr))
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("no network card %s; the guest has %s", which, strings.Join(seen, ", "))
		}
	}
}

// waitForDAD waits until no IPv6 address of the card is tentative. A duplicate is an error.
func waitForDAD(card string) error {
	link, err := netlink.LinkByName(card)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V6) })
		if err != nil {
			return fmt.Errorf("list addresses of %s: %w", card, err)
		}
		tentative := ""
		for _, a := range addrs {
			if a.Flags&unix.IFA_F_DADFAILED != 0 {
				return fmt.Errorf("duplicate address detection: someone else answers for %s", a.IPNet)
			}
			if a.Flags&unix.IFA_F_TENTATIVE != 0 {
				tentative = a.IPNet.String()
			}
		}
		if tentative == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("duplicate address detection of " + tentative + " has not ended in 10s")
		}
	}
}

// dump lists things of the kernel's, again where they changed meanwhile.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	for {
		out, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
}
