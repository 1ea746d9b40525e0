package main

import (
	"path/filepath"
	"slices"

	"github.com/tapir-cni/tapir/test/bench/call"
)

// A variant is one plugin with one configuration.
type variant struct {
	name   string
	plugin string // path of the binary
	path   string // CNI_PATH
	config map[string]any
	ours   bool
	queues int
}

type variants []variant

func (vs variants) names() []string {
	var names []string
	for _, v := range vs {
		names = append(names, v.name)
	}
	return names
}

func (vs variants) find(name string) (variant, bool) {
	i := slices.IndexFunc(vs, func(v variant) bool { return v.name == name })
	if i < 0 {
		return variant{}, false
	}
	return vs[i], true
}

func (vs variants) has(name string) bool {
	_, ok := vs.find(name)
	return ok
}

// masq ends the name of a variant with ipMasq.
const masq = "-ipMasq"

// The ranges that the variants allocate from, each in a network of its own name. tapir uses no range that is a network
// of the node, as the bridges' is.
const (
	referenceSubnet = "10.201.0.0/16"
	tapirSubnet     = "10.202.0.0/16"
)

// hostLocal is the reference IPAM plugin, its files on tmpfs like tapir's.
func hostLocal(subnet string) map[string]any {
	return map[string]any{
		"type":    "host-local",
		"dataDir": "/run/cni/networks",
		"ranges":  [][]map[string]any{{{"subnet": subnet}}},
		"routes":  []map[string]any{{"dst": "0.0.0.0/0"}},
	}
}

func tapirIPAM() map[string]any {
	ipam := hostLocal(tapirSubnet)
	ipam["type"] = "tapir-ipam"
	delete(ipam, "dataDir")
	return ipam
}

// allVariants is what the benchmark compares. The tap plugin can masquerade nothing, so the goals are judged on the
// variants without; bridge and ptp masquerade by nft, which tapir's own masquerade is compared with.
func allVariants(o options) variants {
	reference := func(name, plugin string, extra map[string]any) variant {
		config := map[string]any{"cniVersion": "1.0.0", "name": "bench-" + name, "type": plugin, "ipam": hostLocal(referenceSubnet)}
		for key, value := range extra {
			config[key] = value
		}
		return variant{name: name, plugin: filepath.Join(o.refplugins, plugin), path: o.refplugins, config: config, queues: 1}
	}
	return variants{
		tapir(o, "tapir", nil),
		reference("bridge", "bridge", map[string]any{"bridge": "bench0", "isGateway": true}),
		reference("ptp", "ptp", nil),
		// With owner and group given it uses netlink; without it would run ip(8), which takes longer.
		reference("tap", "tap", map[string]any{"owner": 0, "group": 0}),
		tapir(o, "tapir"+masq, map[string]any{"ipMasq": true}),
		reference("bridge"+masq, "bridge", map[string]any{"bridge": "bench1", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables"}),
		reference("ptp"+masq, "ptp", map[string]any{"ipMasq": true, "ipMasqBackend": "nftables"}),
	}
}

func tapir(o options, name string, extra map[string]any) variant {
	config := map[string]any{"cniVersion": "1.0.0", "name": "bench-" + name, "type": "tapir", "redirect": o.redirect, "ipam": tapirIPAM()}
	for key, value := range extra {
		config[key] = value
	}
	return variant{name: name, plugin: filepath.Join(o.bin, "tapir"), path: o.bin, config: config, ours: true, queues: 1}
}

// withQueues is the variant with a multi-queue TAP, in a network of its own.
func (v variant) withQueues(queues int) variant {
	config := make(map[string]any, len(v.config)+1)
	for key, value := range v.config {
		config[key] = value
	}
	config["name"] = config["name"].(string) + "-queues"
	if v.ours {
		config["queues"] = queues
	} else {
		config["multiQueue"] = true // it knows no number: each open of the device is a queue
	}
	v.config, v.queues = config, queues
	return v
}

// call is one run of the plugin.
func (v variant) call(command, id, netns string) call.Call {
	return call.Call{Name: v.name, Plugin: v.plugin, Path: v.path, Command: command, ID: id, Netns: netns, Config: v.config}
}
