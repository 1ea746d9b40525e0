package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/tapir-cni/tapir/ipam"
	"github.com/tapir-cni/tapir/state"
)

// removal is all that DEL and GC read of a configuration, so that no key that this version does not know can fail them.
type removal struct {
	Name     string `json:"name"`
	StateDir string `json:"stateDir"`
	DANDir   string `json:"danDir"`

	IPAM json.RawMessage `json:"ipam"`
}

func parseRemoval(stdin []byte) (removal, error) {
	r := removal{StateDir: DefaultStateDir, DANDir: DefaultDANDir}
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
	ctx := context.Background()
	p.danDir = conf.DANDir
	if ipam.Sticky(conf.IPAM) {
		a, _ := parseArgs(args.Args) // what is wrong in them does not keep DEL from its work
		p.pod = state.Pod{Namespace: a.PodNamespace, Name: a.PodName}
	}
	if err := p.removeHeld(ctx, conf.StateDir, key, args.Netns, nil); err != nil {
		return err
	}
	return conf.delegate(ctx, "DEL", args.StdinData)
}

// delegate runs the verb of the IPAM plugin where that is not in process.
func (r removal) delegate(ctx context.Context, verb string, stdin []byte) error {
	if t := ipamTypeOf(r.IPAM); t != "" && t != ipamType {
		return delegate(ctx, verb, t, stdin)
	}
	return nil
}

// removeHeld removes an attachment under its hold, after an ADD of it that still runs. Where meant is given it is asked,
// under the hold, whether the attachment is still the one that was meant.
func (p *plugin) removeHeld(ctx context.Context, dir string, key state.Key, netns string, meant func(state.Attachment, bool) bool) (err error) {
	store := state.New(state.Config{Dir: dir})
	if _, statErr := os.Stat(dir); errors.Is(statErr, fs.ErrNotExist) {
		// Nothing can be in the making: ADD makes the folder first. And a DEL must not make it.
		return p.remove(ctx, store, key, netns, meant)
	}
	hold, err := state.AcquireHold(ctx, dir, key, holdWait)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release()) }()
	return p.remove(ctx, store, key, netns, meant)
}

// sameAs is for removers that decided by an earlier look: an attachment that was added anew since then stays, and one
// whose ADD has finished.
func sameAs(old state.Attachment) func(state.Attachment, bool) bool {
	return func(now state.Attachment, ok bool) bool {
		return ok && now.Created.Equal(old.Created) && now.Status == old.Status
	}
}
