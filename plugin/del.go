package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/tapir-cni/tapir/state"
)

// removal is all that DEL and GC read of a configuration, so that no key that this version does not know can fail them.
type removal struct {
	Name     string `json:"name"`
	StateDir string `json:"stateDir"`
	DANDir   string `json:"danDir"`
}

func parseRemoval(stdin []byte) (removal, error) {
	r := removal{StateDir: DefaultStateDir}
	if err := json.Unmarshal(stdin, &r); err != nil {
		return r, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("read the network configuration: %v", err), "")
	}
	return r, nil
}

// del is the verb DEL. It can be repeated, and needs neither the netns nor prevResult nor a finished ADD.
func (p *plugin) del(args *skel.CmdArgs) error {
	conf, err := parseRemoval(args.StdinData)
	if err != nil {
		return err
	}
	p.trace.Mark("config")
	key := state.Key{Network: conf.Name, ContainerID: args.ContainerID, IfName: args.IfName}
	return p.removeHeld(context.Background(), conf.StateDir, key, args.Netns)
}

// removeHeld removes an attachment under its hold, after an ADD of it that still runs.
func (p *plugin) removeHeld(ctx context.Context, dir string, key state.Key, netns string) (err error) {
	store := state.New(state.Config{Dir: dir})
	hold, err := state.AcquireHold(ctx, dir, key, holdWait)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release()) }()
	if err := p.remove(ctx, store, key, netns); err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return nil
}
