package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/xdp"
)

// status is the verb STATUS: an error where this node could serve no ADD at all. It never speaks of exhausted ranges: a
// STATUS error makes the node NotReady, and that evicts what runs.
func (p *plugin) status(args *skel.CmdArgs) error {
	cfg, fs, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	fs = append(fs, cfg.validate()...)
	if err := refuse(types.ErrInvalidNetworkConfig, fs); err != nil {
		return err
	}
	ctx := context.Background()
	var errs []error
	errs = append(errs, tap.Usable(), xdp.Usable(p.bpffs))
	if _, err := redirectMethod(cfg.Redirect); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, cfg.shortcutUsable(p.bpffs))
	if err := state.New(state.Config{Dir: cfg.StateDir}).Check(ctx); err != nil && !errors.Is(err, state.ErrLocked) {
		errs = append(errs, err)
	}
	if cfg.VMM == tap.Kata && cfg.Placement == PlacementHost {
		if st, err := os.Stat(cfg.DANDir); err == nil && !st.IsDir() {
			errs = append(errs, fmt.Errorf("danDir: want a folder, got the file %s", cfg.DANDir))
		}
	}
	if t := ipamTypeOf(cfg.IPAM); t != "" && t != ipamType {
		errs = append(errs, delegate(ctx, "STATUS", t, args.StdinData))
	}
	if err := errors.Join(errs...); err != nil {
		return types.NewError(codeUnavailable, fmt.Sprintf("this node can serve no ADD: %v", oneLine(err)), "")
	}
	return nil
}
