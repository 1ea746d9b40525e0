package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/ipam"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// holdWait bounds how long a call waits for another one on the same attachment.
const holdWait = 10 * time.Second

// add is the verb ADD. What fails takes back everything it did; the first error is the one reported.
func (p *plugin) add(args *skel.CmdArgs) (err error) {
	cfg, fs, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	plan, err := newPlan(cfg, fs, args, present(cfg.PrevResult))
	if err != nil {
		return err
	}
	if plan.Chained && plan.Plain {
		return printResult(plan.prev, cfg.CNIVersion) // no opt-in: as if tapir were not in the list
	}
	p.trace.Mark("config")
	netns, err := openSandbox(args.Netns)
	if err != nil {
		return err
	}
	defer netns.Close()

	store := state.New(state.Config{Dir: plan.StateDir})
	ctx := context.Background()
	hold, err := state.AcquireHold(ctx, plan.StateDir, plan.Key, holdWait)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release()) }()

	rec, err := p.addHeld(ctx, store, plan, netns)
	if errors.Is(err, errUnfinished) {
		if err = p.removeUnfinished(ctx, store, plan); err == nil {
			rec, err = p.addHeld(ctx, store, plan, netns)
		}
	}
	for tries := 0; errors.Is(err, errUnpinned) && tries < maxUnpinned; tries++ {
		rec, err = p.addHeld(ctx, store, plan, netns)
	}
	if err != nil {
		return fmt.Errorf("add %s: %w", plan.Key, err)
	}
	return printResult(buildResult(rec, plan), cfg.CNIVersion)
}

// printResult writes a result to stdout in the configuration's version.
func printResult(r *current.Result, version string) error {
	out, err := r.GetAsVersion(version)
	if err != nil {
		return fmt.Errorf("convert the result to version %q: %w", version, err)
	}
	return types.PrintResult(out, version)
}

// addHeld does the work of ADD while the attachment's hold is kept.
func (p *plugin) addHeld(ctx context.Context, store *state.Store, plan *Plan, netns ns.NetNS) (*state.Attachment, error) {
	host, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	var pod *rtnl.Conn
	if err := netns.Do(func(ns.NetNS) (err error) { pod, err = rtnl.Open(); return err }); err != nil {
		return nil, withCode(types.ErrInvalidNetNS, fmt.Errorf("enter netns %q: %w", plan.Netns, err))
	}
	defer pod.Close()

	progs, err := xdp.Ensure(p.bpffs)
	if err != nil {
		return nil, err
	}
	defer progs.Close()
	p.trace.Mark("open")

	if plan.Delegate != "" {
		// Asked for a second lease, an IPAM plugin refuses or not; the release after it would take the first one's.
		if err := store.View(ctx, func(tx *state.Tx) error { return refuseExisting(tx, plan.Key) }); err != nil {
			return nil, err
		}
	}
	a := &apply{plan: plan, netns: netns, host: host, pod: pod, progs: progs, undo: &undo{}, trace: p.trace, bpffs: p.bpffs}
	if err := a.openShortcut(p.bpffs); err != nil {
		return nil, err
	}
	defer a.closeShortcut()
	rec, err := p.carryOut(ctx, store, a)
	if err == nil {
		return rec, nil
	}
	// Here, where what the steps need is still open.
	if left := a.undo.run(); left != nil {
		// The first error is what the runtime must see; what could not be taken back is for the operator.
		fmt.Fprintf(os.Stderr, "tapir: %s: %v\n", plan.Key, left)
	}
	return nil, err
}

// carryOut records and makes the attachment. What it did before an error is on the undo stack.
func (p *plugin) carryOut(ctx context.Context, store *state.Store, a *apply) (*state.Attachment, error) {
	rec, err := a.record(ctx)
	if err != nil {
		return nil, err
	}
	a.rec = rec
	if err := p.reserve(ctx, store, a.plan, rec, a.progs, a.undo); err != nil {
		return nil, err
	}
	p.trace.Mark("IPAM and state")
	if !a.plan.Chained {
		if err := refuseOverlap(a.host, rec.Addresses); err != nil {
			return nil, err
		}
		if err := ensureForwarding(ctx, store, rec.Addresses); err != nil {
			return nil, err
		}
	}
	if err := a.run(); err != nil {
		return nil, err
	}
	rec.Status = state.Ready
	if err := store.Update(ctx, func(tx *state.Tx) error { return tx.Put(*rec) }); err != nil {
		return nil, err
	}
	p.trace.Mark("record")
	return rec, nil
}

// Offsets of an attachment's devices in its block of four ifindexes.
const (
	offsetTAP = iota
	offsetPod
	offsetHost
)

// indexBlock is the size of a block of ifindexes; each begins at a multiple of it ([state.Tx.NextIndexBlock]).
const indexBlock = 4

// reserve takes addresses and ifindexes and records the attachment as pending, in one transaction.
func (p *plugin) reserve(ctx context.Context, store *state.Store, plan *Plan, rec *state.Attachment, progs *xdp.Programs, u *undo) error {
	var taken []uint32
	release := func() error {
		err := progs.Delete(taken...)
		taken = nil
		return err
	}
	u.push("BPF map entries", release)
	// Where the end of the transaction fails, it may have been committed.
	put := false
	u.push("lease and state", func() error {
		if !put {
			return nil
		}
		return store.Update(ctx, func(tx *state.Tx) error {
			return errors.Join(ipam.Cancel(tx, rec.Key), tx.Delete(rec.Key))
		})
	})
	return store.Update(ctx, func(tx *state.Tx) error {
		put = false
		// On rebuilt state the transaction runs again.
		if err := release(); err != nil {
			return err
		}
		if !progs.Pinned() {
			return withCode(types.ErrTryAgainLater, errUnpinned)
		}
		if err := refuseDuplicate(tx, rec); err != nil {
			return err
		}
		if !plan.Chained && plan.Delegate == "" {
			leases, err := ipam.Acquire(tx, plan.IPAM)
			if err != nil {
				return err
			}
			giveGateways(leases)
			rec.Addresses, rec.Routes = leases, routesFor(plan.Routes, leases)
		}
		if plan.Masquerade {
			except := exceptions(rec, plan)
			rec.Masquerade = masqChain(rec.Network, except)
			if err := keepExceptions(tx, rec, except); err != nil {
				return err
			}
		}
		var err error
		if taken, err = reserveIndexes(tx, rec, progs); err != nil {
			return err
		}
		err = tx.Put(*rec)
		put = err == nil
		return err
	})
}

// refuseDuplicate keeps a second ADD of the same attachment, or of another one with the same guest MAC, from touching the
// first.
func refuseDuplicate(tx *state.Tx, rec *state.Attachment) error {
	if err := refuseExisting(tx, rec.Key); err != nil {
		return err
	}
	if rec.FixedMAC {
		return nil
	}
	holder, ok, err := tx.ByGuestMAC(rec.Network, rec.GuestMAC)
	if err == nil && ok {
		err = withCode(CodeBusy, &state.MACInUseError{MAC: rec.GuestMAC, Holder: holder})
	}
	return err
}

func refuseExisting(tx *state.Tx, key state.Key) error {
	old, ok, err := tx.Attachment(key)
	switch {
	case err != nil || !ok:
		return err
	case old.Status == state.Pending:
		return errUnfinished
	}
	return withCode(CodeBusy, fmt.Errorf("the attachment exists since %s (%s); DEL it first", old.Created.Format(time.RFC3339), old.Status))
}

// errUnpinned is of programs that a clean-up took away after they were opened. It does so in a transaction of the state, so that what
// is there in one stays for the attachment that it records.
var errUnpinned = errors.New("a clean-up has unpinned the programs meanwhile; ADD again")

// maxUnpinned bounds how often an ADD begins anew for clean-ups.
const maxUnpinned = 3

// errUnfinished is of a record whose ADD did not finish. Who has the attachment's hold knows that nobody makes it any more.
var errUnfinished = errors.New("an earlier ADD of the attachment did not finish")

// removeUnfinished removes what a killed ADD of the same attachment left.
func (p *plugin) removeUnfinished(ctx context.Context, store *state.Store, plan *Plan) error {
	if err := p.remove(ctx, store, plan.Key, plan.Netns, nil); err != nil || plan.Delegate == "" {
		return err
	}
	return delegate(ctx, "DEL", plan.Delegate, plan.stdin)
}

// maxBlocks bounds the search for ifindexes that no other state directory of the node uses.
const maxBlocks = 1000

// reserveIndexes chooses the devices' ifindexes. The insertion into the pinned map is what reserves them on the node.
func reserveIndexes(tx *state.Tx, rec *state.Attachment, progs *xdp.Programs) ([]uint32, error) {
	for range maxBlocks {
		block, err := tx.NextIndexBlock()
		if err != nil {
			return nil, err
		}
		if !rec.Chained && !rec.OnHost() { // else it is there already, or there is none
			rec.Pod.Index, rec.Host.Index = int(block+offsetPod), int(block+offsetHost)
		}
		if rec.TAP.Name != "" {
			rec.TAP.Index = int(block + offsetTAP)
		}
		if !rec.OnHost() { // in the host's netns others may have groups of their own
			rec.Group = block
		}
		entries, err := endpoints(rec)
		if err != nil {
			return nil, err
		}
		err = progs.Reserve(entries)
		if errors.Is(err, xdp.ErrInUse) {
			continue
		}
		if err != nil {
			return nil, err
		}
		taken := make([]uint32, 0, len(entries))
		for index := range entries {
			taken = append(taken, index)
		}
		return taken, nil
	}
	return nil, withCode(types.ErrTryAgainLater, fmt.Errorf("choose ifindexes: %d blocks in a row are in use; \"tapirctl cleanup\" removes those of dead attachments", maxBlocks))
}
