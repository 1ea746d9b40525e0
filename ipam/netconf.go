package ipam

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/tapir-cni/tapir/internal/jsonkeys"
	"github.com/tapir-cni/tapir/state"
)

// netConf is what tapir-ipam reads of the configuration of the plugin that runs it; that plugin's keys are its own.
type netConf struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	IPAM       json.RawMessage `json:"ipam"`
	Runtime    struct {
		IPs      []string  `json:"ips"`
		IPRanges [][]Range `json:"ipRanges"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
	PrevResult json.RawMessage `json:"prevResult"`
	// nil where the key is missing, "null" where it is null
	ValidAttachments json.RawMessage `json:"cni.dev/valid-attachments"`
}

// decode decodes JSON of the runtime's.
func decode(data []byte, into any) error {
	if err := json.Unmarshal(data, into); err != nil {
		return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode network configuration: %v", err), "")
	}
	return nil
}

// parseADD reads and checks everything that an ADD needs, and reports every fault at once.
func parseADD(data []byte) (netConf, Settings, error) {
	var conf netConf
	if err := decode(data, &conf); err != nil {
		return netConf{}, Settings{}, err
	}
	var config Config
	faults, err := jsonkeys.Check(conf.IPAM, config)
	if err != nil || string(conf.IPAM) == "null" {
		return netConf{}, Settings{}, jsonkeys.Faults{{Path: "ipam", Problem: "want an object, got none"}}
	}
	_ = json.Unmarshal(conf.IPAM, &config) // what does not fit is among the faults, the rest is decoded
	more, moreFaults := ParseRanges(conf.Runtime.IPRanges, "ipRanges")
	settings, configFaults := config.Validate(more...)
	faults = append(faults, without(configFaults, faults)...)
	all := append(faults.Under("ipam"), moreFaults.Under("runtimeConfig")...)
	return conf, settings, all.Err()
}

// without is the faults whose paths others do not have: a value of the wrong type is not also reported as missing.
func without(faults, others jsonkeys.Faults) jsonkeys.Faults {
	var rest jsonkeys.Faults
	for _, f := range faults {
		covered := false
		for _, other := range others {
			covered = covered || f.Path == other.Path && other.Path != ""
		}
		if !covered {
			rest = append(rest, f)
		}
	}
	return rest
}

// parseDEL reads what DEL, CHECK, GC and STATUS need, and passes over everything else: what a newer version
// configured must not keep addresses from being released.
func parseDEL(data []byte) (netConf, *state.Store, error) {
	var raw struct {
		CNIVersion string          `json:"cniVersion"`
		Name       string          `json:"name"`
		IPAM       json.RawMessage `json:"ipam"`
		PrevResult json.RawMessage `json:"prevResult"`

		ValidAttachments json.RawMessage `json:"cni.dev/valid-attachments"`
	}
	if err := decode(data, &raw); err != nil {
		return netConf{}, nil, err
	}
	var ipam struct {
		StateDir string `json:"stateDir"`
	}
	_ = json.Unmarshal(raw.IPAM, &ipam) // not an object: the default directory
	conf := netConf{
		CNIVersion: raw.CNIVersion, Name: raw.Name, IPAM: raw.IPAM,
		PrevResult: raw.PrevResult, ValidAttachments: raw.ValidAttachments,
	}
	return conf, state.New(state.Config{Dir: ipam.StateDir}), nil
}

// Sticky tells of an "ipam" object, whatever else is in it, whether pods get the addresses that they had.
func Sticky(ipam json.RawMessage) bool {
	var c struct {
		Sticky string `json:"sticky"`
	}
	return json.Unmarshal(ipam, &c) == nil && c.Sticky == StickyPod
}

// podOf is the pod that CNI_ARGS name; zero where addresses are not sticky.
func podOf(sticky bool, cniArgs string) (pod state.Pod) {
	if !sticky {
		return pod
	}
	for pair := range strings.SplitSeq(cniArgs, ";") {
		switch name, value, _ := strings.Cut(pair, "="); name {
		case "K8S_POD_NAMESPACE":
			pod.Namespace = value
		case "K8S_POD_NAME":
			pod.Name = value
		}
	}
	return pod
}

func attachmentKey(conf netConf, args *skel.CmdArgs) state.Key {
	return state.Key{Network: conf.Name, ContainerID: args.ContainerID, IfName: args.IfName}
}

// requestedAddresses are the addresses of CNI_ARGS (IP=a,b), runtimeConfig.ips and args.cni.ips.
func requestedAddresses(conf netConf, cniArgs string) []string {
	list := append(append([]string{}, conf.Runtime.IPs...), conf.Args.CNI.IPs...)
	for _, pair := range strings.Split(cniArgs, ";") {
		if value, ok := strings.CutPrefix(pair, "IP="); ok && value != "" {
			list = append(list, strings.Split(value, ",")...)
		}
	}
	return list
}
