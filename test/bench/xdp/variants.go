package main

import "path/filepath"

// The variants, in the order of the tables.
const (
	bridged  = "bridge"    // bridge, veth, tc mirred: what the tc-redirect-tap plugin sets up
	routed   = "default"   // tapir, xdp off
	shortcut = "xdp"       // tapir, xdp on
	dropped  = "limit"     // XDP_DROP at the writer's TAP: what no forwarding can be faster than
	guarded  = "bridge-tc" // a pod of the bridge whose forged frames the node drops by a tc filter: for spoof floods alone
)

// What a table calls them.
var titles = map[string]string{
	bridged:  "bridge + veth + tc mirred",
	routed:   "tapir, xdp off",
	shortcut: "tapir, xdp native",
	dropped:  "XDP_DROP, the limit",
	guarded:  "tc at the bridge's port",
}

// A network is what two pods of a variant are attached to: one plugin with one configuration.
type network struct {
	plugin string // path of the binary
	path   string // CNI_PATH
	config map[string]any
}

// mtu of every device. All plugins would take it from the default route's device otherwise.
const mtu = 1500

func bridgeNetwork(o options) network {
	return network{
		plugin: filepath.Join(o.refplugins, "bridge"), path: o.refplugins,
		config: map[string]any{
			"cniVersion": "1.0.0", "name": "bench-bridge", "type": "bridge", "bridge": "bench0", "isGateway": true, "mtu": mtu,
			"ipam": map[string]any{"type": "host-local", "dataDir": "/run/cni/networks", "ranges": ranges("10.205.0.0/24"), "routes": defaultRoute},
		},
	}
}

// tapirNetwork has the key "xdp" where mode is not empty. Each mode gets a network of its own.
func tapirNetwork(o options, mode, subnet string) network {
	config := map[string]any{
		"cniVersion": "1.0.0", "name": "bench-tapir-" + mode, "type": "tapir", "mtu": mtu,
		"ipam": map[string]any{"type": "tapir-ipam", "ranges": ranges(subnet), "routes": defaultRoute},
	}
	if mode != "off" {
		config["xdp"] = map[string]any{"mode": mode}
	}
	return network{plugin: filepath.Join(o.bin, "tapir"), path: o.bin, config: config}
}

func ranges(subnet string) [][]map[string]any { return [][]map[string]any{{{"subnet": subnet}}} }

var defaultRoute = []map[string]any{{"dst": "0.0.0.0/0"}}

// networkOf gives the network of a variant that has one.
func networkOf(o options, variant string) network {
	switch variant {
	case routed:
		return tapirNetwork(o, "off", "10.206.0.0/24")
	case shortcut:
		return tapirNetwork(o, "native", "10.207.0.0/24")
	}
	return bridgeNetwork(o)
}
