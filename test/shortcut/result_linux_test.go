package shortcut_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// attachment is what a result says.
type attachment struct {
	tap      string
	host     string // host end of the veth
	mac      net.HardwareAddr
	address  [2]netip.Prefix // IPv4, IPv6
	gateway  [2]netip.Addr
	families int
}

func readResult(stdout []byte) (a attachment, err error) {
	parsed, err := types100.NewResult(stdout)
	if err != nil {
		return a, fmt.Errorf("read the result: %w: %s", err, stdout)
	}
	result, err := types100.GetResult(parsed)
	if err != nil {
		return a, err
	}
	for _, i := range result.Interfaces {
		switch {
		case i.Sandbox == "":
			a.host = i.Name
		case i.Name == "eth0":
			if a.mac, err = net.ParseMAC(i.Mac); err != nil {
				return a, fmt.Errorf("interface %q: %w", i.Name, err)
			}
		default:
			a.tap = i.Name
		}
	}
	for _, ip := range result.IPs {
		family := 0
		if ip.Address.IP.To4() == nil {
			family = 1
		}
		var prefixErr, addrErr error
		a.address[family], prefixErr = netip.ParsePrefix(ip.Address.String())
		a.gateway[family], addrErr = netip.ParseAddr(ip.Gateway.String())
		if err := errors.Join(prefixErr, addrErr); err != nil {
			return a, err
		}
		a.families++
	}
	if a.tap == "" || a.host == "" || a.mac == nil || a.families != 2 {
		return a, fmt.Errorf("want a TAP, a host end, a MAC and two addresses, got %s", stdout)
	}
	return a, nil
}
