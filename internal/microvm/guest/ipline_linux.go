package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ipLine is the kernel's ip= argument. Debian's kernels are built without IP_PNP, so that this init applies it, by the
// rules of net/ipv4/ipconfig.c: what a kernel with IP_PNP would not do, it does not do either.
type ipLine struct {
	addr, gateway, mask netip.Addr
	host, device        string
	dns                 []netip.Addr
}

// findIPLine gives the last ip= of a kernel command line, without "ip=", as the kernel would take it.
func findIPLine(cmdline string) (string, bool) {
	line, found := "", false
	for _, word := range strings.Fields(cmdline) {
		if rest, ok := strings.CutPrefix(word, "ip="); ok {
			line, found = rest, true
		}
	}
	return line, found
}

// parseIPLine reads client:server:gateway:mask:host:device:autoconf:dns0:dns1. Only autoconf "off" and "none" are taken.
func parseIPLine(line string) (ipLine, error) {
	f := strings.Split(line, ":")
	if len(f) > 10 {
		return ipLine{}, fmt.Errorf("ip=%s: want at most 10 fields, got %d", line, len(f))
	}
	f = append(f, make([]string, 10-len(f))...)
	var c ipLine
	var errs []error
	read := func(s string) netip.Addr {
		if s == "" {
			return netip.Addr{}
		}
		a, err := netip.ParseAddr(s)
		if err == nil && !a.Is4() {
			err = fmt.Errorf("%q is not IPv4", s)
		}
		if err != nil {
			errs = append(errs, err)
		}
		return a
	}
	c.addr, c.gateway, c.mask = read(f[0]), read(f[2]), read(f[3])
	c.host, c.device = f[4], f[5]
	for _, s := range f[7:9] {
		if a := read(s); a.IsValid() {
			c.dns = append(c.dns, a)
		}
	}
	if !c.addr.IsValid() {
		errs = append(errs, errors.New("no client address"))
	}
	if f[6] != "off" && f[6] != "none" {
		errs = append(errs, fmt.Errorf("autoconf %q needs a server; want off", f[6]))
	}
	if err := errors.Join(errs...); err != nil {
		return ipLine{}, fmt.Errorf("ip=%s: %w", line, err)
	}
	return c, nil
}

// prefix is the address with its prefix length; a mask that was left out is that of the address's class (ic_defaults).
func (c ipLine) prefix() (netip.Prefix, error) {
	if c.mask.IsValid() {
		ones, bits := net.IPMask(c.mask.AsSlice()).Size()
		if bits == 0 {
			return netip.Prefix{}, fmt.Errorf("ip=: %s is no netmask", c.mask)
		}
		return netip.PrefixFrom(c.addr, ones), nil
	}
	switch first := c.addr.As4()[0]; {
	case first < 128:
		return netip.PrefixFrom(c.addr, 8), nil
	case first < 192:
		return netip.PrefixFrom(c.addr, 16), nil
	default:
		return netip.PrefixFrom(c.addr, 24), nil
	}
}

// reachable says whether the kernel would add the default route: only to a gateway on the connected network
// (ic_setup_routes).
func (c ipLine) reachable(p netip.Prefix) bool {
	return c.gateway.IsValid() && !c.gateway.IsUnspecified() && p.Masked().Contains(c.gateway)
}

func (c ipLine) apply() (string, error) {
	prefix, err := c.prefix()
	if err != nil {
		return "", err
	}
	link, err := waitForLink("for ip= named "+c.device, func(a *netlink.LinkAttrs) bool {
		return a.Name == c.device || c.device == "" && a.Flags&net.FlagLoopback == 0
	})
	if err != nil {
		return "", err
	}
	name := link.Attrs().Name
	if c.host != "" {
		if err := unix.Sethostname([]byte(c.host)); err != nil {
			return "", fmt.Errorf("set host name %q: %w", c.host, err)
		}
	}
	if err := setUp(name); err != nil {
		return "", err
	}
	if err := addAddress(link, prefix); err != nil {
		return "", err
	}
	if c.reachable(prefix) {
		r := route{To: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Via: c.gateway}
		if err := r.add(link); err != nil {
			return "", err
		}
	}
	var servers []string
	for _, a := range c.dns {
		servers = append(servers, a.String())
	}
	return name, writeResolv(servers, nil)
}
