package guestconfig

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tapir-cni/tapir/tap"
)

// FirecrackerOptions are the choices that the attachment leaves open.
type FirecrackerOptions struct {
	// MTU tells the guest its MTU by the API's field "mtu". Only recent releases know it; older ones refuse the whole
	// request for an unknown field, so it is off unless asked for. Without it the guest must set its MTU itself.
	MTU bool
}

// FirecrackerInterface is one element of "network-interfaces" in Firecracker's configuration file, and the body of
// PUT /network-interfaces/{iface_id}.
type FirecrackerInterface struct {
	IfaceID     string `json:"iface_id"`
	HostDevName string `json:"host_dev_name"`
	GuestMAC    string `json:"guest_mac"`
	MTU         int    `json:"mtu,omitempty"` // bytes, 68 to 65535
}

// FirecrackerConfig is the part of Firecracker's configuration file that speaks of the network.
type FirecrackerConfig struct {
	NetworkInterfaces []FirecrackerInterface `json:"network-interfaces"`
}

// Firecracker gives Firecracker's network interface. Firecracker opens the TAP by name as
// IFF_TAP|IFF_NO_PI|IFF_VNET_HDR and never with IFF_MULTI_QUEUE, so a TAP of more than one queue is refused.
func (g Guest) Firecracker(o FirecrackerOptions) (FirecrackerConfig, error) {
	if err := g.Validate(); err != nil {
		return FirecrackerConfig{}, fmt.Errorf("firecracker configuration: %w", err)
	}
	if err := refusal(tap.Firecracker, g.Queues); err != nil {
		return FirecrackerConfig{}, fmt.Errorf("firecracker configuration: %w", err)
	}
	iface := FirecrackerInterface{IfaceID: firecrackerID(g.IfName), HostDevName: g.TAP, GuestMAC: g.MAC}
	if o.MTU {
		iface.MTU = g.MTU
	}
	return FirecrackerConfig{NetworkInterfaces: []FirecrackerInterface{iface}}, nil
}

// JSON is the configuration as Firecracker's --config-file takes it, indented, with a newline at the end.
func (c FirecrackerConfig) JSON() string {
	// Strings and one int: this cannot fail.
	b, _ := json.MarshalIndent(c, "", "  ")
	return string(b) + "\n"
}

// firecrackerID makes an id of what Firecracker takes as one: letters, digits and underscores.
func firecrackerID(name string) string {
	id := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, name)
	if id == "" {
		return "net0"
	}
	return id
}
