package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
)

// Options are the configuration key "cluster" of tapird.
type Options struct {
	Enabled    bool   `json:"enabled"`
	Node       string `json:"node"`       // name of this Node; empty: of the environment's NODE_NAME
	Kubeconfig string `json:"kubeconfig"` // empty: the pod's service account
	NoRoutes   bool   `json:"noRoutes"`   // others lead to the other nodes' pods
	Masquerade bool   `json:"masquerade"` // what leaves the cluster gets the node's address
	// NonMasqueradeCIDRs are reached with the pod's own address, beside the cluster's pods.
	NonMasqueradeCIDRs []string `json:"nonMasqueradeCIDRs"`
	// NetworkUnavailable has the Node's condition of that name say whether tapir is installed, for clusters whose cloud sets it.
	NetworkUnavailable bool   `json:"networkUnavailable"`
	Taint              string `json:"taint"`    // key of a taint that is taken away when tapir is installed; empty: none
	Policies           string `json:"policies"` // auto (default), on or off: whether pods that a NetworkPolicy selects are kept off the shortcut
}

// NodeNameEnv is the downward API's.
const NodeNameEnv = "NODE_NAME"

// The values of Policies.
const (
	PoliciesAuto = "auto" // while an attachment of the node takes part in the shortcut
	PoliciesOn   = "on"
	PoliciesOff  = "off"
)

// Validate gives every fault, with paths below path.
func (o Options) Validate(path string, add func(path, text string)) {
	if !o.Enabled {
		return
	}
	if cmp.Or(o.Node, os.Getenv(NodeNameEnv)) == "" {
		add(path+".node", "want the name of this Node, here or in the environment's "+NodeNameEnv)
	}
	if _, err := parsePrefixes(o.NonMasqueradeCIDRs); err != nil {
		add(path+".nonMasqueradeCIDRs", err.Error())
	}
	switch o.Policies {
	case "", PoliciesAuto, PoliciesOn, PoliciesOff:
	default:
		add(path+".policies", fmt.Sprintf("want auto, on or off, got %q", o.Policies))
	}
}

func parsePrefixes(list []string) (all []netip.Prefix, err error) {
	for i, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return nil, fmt.Errorf("element %d: want a prefix as in \"10.0.0.0/8\", got %q", i, text)
		}
		all = append(all, p)
	}
	return all, nil
}
