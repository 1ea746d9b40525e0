package main

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/tapir-cni/tapir/test/bench/call"
)

// mtu of every device.
const mtu = 1500

// What every clone has inside.
var (
	insideMAC     = net.HardwareAddr{0x06, 0x00, 0xac, 0x10, 0x00, 0x02}
	inside        = netip.MustParsePrefix("172.16.0.2/30")
	insideGateway = netip.MustParseAddr("172.16.0.1")
)

// gatewayMAC is that of every guest's gateway under tapir, see ARCHITECTURE.md.
var gatewayMAC = net.HardwareAddr{0x02, 0x74, 0x61, 0x70, 0x69, 0x72}

// A network is one configuration of tapir.
type network struct {
	name   string
	subnet string
	xdp    bool
	clones bool
}

func (n network) config() map[string]any {
	config := map[string]any{
		"cniVersion": "1.0.0", "name": n.name, "type": "tapir", "mtu": mtu,
		"ipam": map[string]any{
			"type": "tapir-ipam", "ranges": [][]map[string]any{{{"subnet": n.subnet}}}, "routes": []map[string]any{{"dst": "0.0.0.0/0"}},
		},
	}
	if n.xdp {
		config["xdp"] = map[string]any{"mode": "native"}
	}
	if n.clones {
		config["guest"] = map[string]any{"mac": insideMAC.String(), "ip": inside.String(), "gateway": insideGateway.String()}
	}
	return config
}

func (n network) call(o options, command, id, netns string, prev []byte) (call.Outcome, error) {
	return call.Call{
		Name: n.name, Plugin: filepath.Join(o.bin, "tapir"), Path: o.bin, Command: command, ID: id, Netns: netns, Config: n.config(), Prev: prev,
	}.Do()
}

// A sandbox is what the result of ADD says.
type sandbox struct {
	tap     string
	mac     net.HardwareAddr // the guest's
	address netip.Prefix     // the pod's
	gateway netip.Addr
}

func readResult(stdout []byte, netns string) (s sandbox, err error) {
	parsed, err := types100.NewResult(stdout)
	if err != nil {
		return s, fmt.Errorf("read the result: %w", err)
	}
	result, err := types100.GetResult(parsed)
	if err != nil {
		return s, err
	}
	for _, i := range result.Interfaces {
		switch {
		case i.Sandbox != netns:
		case i.Name == call.IfName:
			if s.mac, err = net.ParseMAC(i.Mac); err != nil {
				return s, fmt.Errorf("interface %q: %w", i.Name, err)
			}
		default:
			s.tap = i.Name
		}
	}
	for _, ip := range result.IPs {
		if ip.Address.IP.To4() == nil {
			continue
		}
		if s.address, err = netip.ParsePrefix(ip.Address.String()); err != nil {
			return s, err
		}
		if s.gateway, err = netip.ParseAddr(ip.Gateway.String()); err != nil {
			return s, err
		}
	}
	if s.tap == "" || s.mac == nil || !s.address.IsValid() {
		return s, fmt.Errorf("the result names no TAP, guest MAC or IPv4 address: %s", stdout)
	}
	return s, nil
}
