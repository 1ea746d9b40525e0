package plugin

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/tapir-cni/tapir/internal/jsonkeys"
	"github.com/tapir-cni/tapir/ipam"
	"github.com/tapir-cni/tapir/state"
)

// ipamType is the IPAM plugin that runs in process. Any other is executed, as the specification says.
const ipamType = "tapir-ipam"

// ipamTypeOf reads the type from an "ipam" object; empty where there is none.
func ipamTypeOf(raw json.RawMessage) string {
	var t struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(raw, &t); err != nil {
		return ""
	}
	return t.Type
}

// ownIPAM reads the "ipam" object as tapir-ipam's; every fault is below "ipam".
func ownIPAM(raw json.RawMessage) (ipam.Config, faults) {
	var conf ipam.Config
	fs, err := jsonkeys.Check(raw, &conf)
	if err != nil {
		fs.Add("", err.Error())
	}
	if err := json.Unmarshal(raw, &conf); err != nil && len(fs) == 0 {
		fs.Add("", err.Error())
	}
	return conf, fs.Under("ipam")
}

// delegated is what another IPAM plugin gave out.
type delegated struct {
	addresses []state.Address
	routes    []state.Route
	dns       state.DNS
}

// delegateAdd runs ADD of another IPAM plugin. Its release belongs on the undo stack before the call: one that failed may
// have leased all the same.
func delegateAdd(ctx context.Context, plugin string, stdin []byte) (*delegated, error) {
	raw, err := execPlugin(ctx, "ADD", plugin, stdin)
	if err != nil {
		return nil, fmt.Errorf("IPAM plugin %q: %w", plugin, err)
	}
	result, err := parsePrev(raw, confVersion(stdin))
	if err != nil {
		return nil, fmt.Errorf("IPAM plugin %q: its result: %w", plugin, err)
	}
	d := &delegated{dns: state.DNS(result.DNS)}
	var v6 []state.Address
	for _, ip := range result.IPs {
		a, ok := stateAddress(ip)
		switch {
		case !ok:
			return nil, fmt.Errorf("IPAM plugin %q: its result: %s is no address", plugin, &ip.Address)
		case a.Prefix.Addr().Is4():
			d.addresses = append(d.addresses, a)
		default:
			v6 = append(v6, a)
		}
	}
	d.addresses = append(d.addresses, v6...)
	if len(d.addresses) == 0 {
		return nil, fmt.Errorf("IPAM plugin %q: its result has no address", plugin)
	}
	for _, r := range result.Routes {
		if route, ok := stateRoute(r); ok {
			d.routes = append(d.routes, route)
		}
	}
	return d, nil
}

// delegate runs a verb without a result of another IPAM plugin: DEL, CHECK, STATUS or GC.
func delegate(ctx context.Context, verb, plugin string, stdin []byte) error {
	if _, err := execPlugin(ctx, verb, plugin, stdin); err != nil {
		return fmt.Errorf("IPAM plugin %q: %w", plugin, err)
	}
	return nil
}

// confVersion is the version that a configuration asks for.
func confVersion(stdin []byte) string {
	var v struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(stdin, &v); err != nil {
		return ""
	}
	return v.CNIVersion
}
