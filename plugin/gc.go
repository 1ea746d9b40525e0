package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/tapir-cni/tapir/state"
)

// gc is the verb GC: every attachment of this network that the runtime does not name is removed, unless it is being
// added.
func (p *plugin) gc(args *skel.CmdArgs) error {
	conf, err := parseRemoval(args.StdinData)
	if err != nil {
		return err
	}
	valid, err := conf.valid(args.StdinData)
	if err != nil {
		return err
	}
	ctx := context.Background()
	dead, err := unless(ctx, conf.StateDir, conf.Name, func(a state.Attachment) bool {
		return valid[types.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName}]
	})
	errs := []error{err}
	p.danDir = conf.DANDir
	for _, a := range dead {
		errs = append(errs, p.removeHeld(ctx, conf.StateDir, a.Key, a.Netns, sameAs(a)))
	}
	errs = append(errs, conf.delegate(ctx, "GC", args.StdinData))
	return errors.Join(errs...)
}

// unless are the attachments of a network, or of all where that is empty, that keep does not want and that nobody is adding
// or removing just now.
func unless(ctx context.Context, dir, network string, keep func(state.Attachment) bool) ([]state.Attachment, error) {
	var dead []state.Attachment
	err := state.New(state.Config{Dir: dir}).View(ctx, func(tx *state.Tx) error {
		dead = nil
		return tx.ForEach(network, func(a state.Attachment) error {
			if !keep(a) && !state.Held(dir, a.Key) {
				dead = append(dead, a)
			}
			return nil
		})
	})
	return dead, err
}

// valid are the attachments that GC keeps. An empty or null list keeps none; an absent one is an error, since nothing
// could be told from it.
func (r removal) valid(stdin []byte) (map[types.GCAttachment]bool, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(stdin, &keys); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	const key, older = "cni.dev/valid-attachments", "cni.dev/attachments"
	raw, ok := keys[key]
	if !ok {
		raw, ok = keys[older]
	}
	if !ok {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("%s: is missing; GC wants the list of attachments to keep, which may be empty", key), "")
	}
	var list []types.GCAttachment
	if !bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("%s: want a list of {\"containerID\", \"ifname\"}: %v", key, err), "")
		}
	}
	out := make(map[types.GCAttachment]bool, len(list))
	for _, a := range list {
		out[a] = true
	}
	return out, nil
}
