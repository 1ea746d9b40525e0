package plugin

import (
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/tapir-cni/tapir/internal/jsonkeys"
)

// parse reads a configuration. Unknown keys and values of the wrong type are faults; what could be read is in the Config
// all the same, so that its own faults can be told in the same breath. The error is for what is not JSON (code 6).
func parse(stdin []byte) (*Config, faults, error) {
	if isList(stdin) {
		return nil, nil, types.NewError(types.ErrInvalidNetworkConfig, `plugins: this is a whole conflist; a plugin gets one entry of its list, with name and cniVersion added: let a runtime or cnitool call it`, "")
	}
	cfg := defaults()
	fs, err := jsonkeys.Check(stdin, &cfg)
	if err != nil {
		return nil, nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("read the network configuration: %v", err), "")
	}
	if err := json.Unmarshal(stdin, &cfg); err != nil && len(fs) == 0 {
		return nil, nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("read the network configuration: %v", err), "")
	}
	return &cfg, fs, nil
}

// isList reports whether a configuration is a conflist as it stands in /etc/cni/net.d.
func isList(stdin []byte) bool {
	var conf struct {
		Type    string            `json:"type"`
		Plugins []json.RawMessage `json:"plugins"`
	}
	return json.Unmarshal(stdin, &conf) == nil && conf.Type == "" && len(conf.Plugins) > 0
}
