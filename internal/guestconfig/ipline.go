package guestconfig

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
)

// IPLineOptions are the choices that the attachment leaves open.
type IPLineOptions struct {
	Hostname string // the guest's; left out where empty
	// Device is the kernel's own name of the card. Default: the pod's name of it where that has the kernel's form
	// (eth0, eth1, …); ip= is read before user space can rename anything.
	Device string
}

var kernelEthName = regexp.MustCompile(`^eth[0-9]+$`)

// IPLine gives the kernel's "ip=" boot argument,
//
//	ip=<address>::<gateway>:<netmask>:<hostname>:<device>:off[:<dns1>[:<dns2>]]
//
// as Documentation/admin-guide/nfs/nfsroot.rst of the kernel defines it. It carries one IPv4 address, one default
// gateway and two nameservers, and no more: IPv6, further routes, MTU and search domains need cloud-init
// ([Guest.NetworkConfig]). The kernel adds the default route only where the gateway lies inside the prefix
// (net/ipv4/ipconfig.c), so a gateway beside it (a /32, say) is an error here and not a guest without a route there.
func (g Guest) IPLine(o IPLineOptions) (string, error) {
	a, ok := g.address4()
	if !ok {
		return "", fmt.Errorf("kernel ip= argument: the guest has no IPv4 address, and ip= knows no other; use network-config")
	}
	device := o.Device
	if device == "" {
		device = g.IfName
		if !kernelEthName.MatchString(device) {
			return "", fmt.Errorf("kernel ip= argument: %q is not a name that the guest's kernel gives to a card; "+
				"name the device (eth0, eth1, … in the order of the VM's cards)", device)
		}
	}
	if strings.ContainsAny(o.Hostname+device, ": \t\n\"") {
		return "", fmt.Errorf("kernel ip= argument: want a host and device name without colons, quotes and blanks, got %q and %q",
			o.Hostname, device)
	}
	gateway := ""
	if a.Gateway.IsValid() {
		if !a.Prefix.Masked().Contains(a.Gateway) {
			return "", fmt.Errorf("kernel ip= argument: gateway %s is not inside %s, so the guest's kernel would add no route "+
				"to it; use network-config", a.Gateway, a.Prefix.Masked())
		}
		gateway = a.Gateway.String()
	}
	fields := []string{
		a.Prefix.Addr().String(), "", gateway, netmask(a.Prefix), o.Hostname, device, "off",
	}
	for _, ns := range g.DNS.Nameservers {
		if addr, err := netip.ParseAddr(ns); err == nil && addr.Is4() && len(fields) < 9 {
			fields = append(fields, addr.String())
		}
	}
	return "ip=" + strings.Join(fields, ":"), nil
}

func netmask(p netip.Prefix) string { return net.IP(net.CIDRMask(p.Bits(), 32)).String() }
