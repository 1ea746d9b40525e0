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
