package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/nftables"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// Cleaner removes what tapir left on the node. The zero value is no use: name the folders.
type Cleaner struct {
	StateDirs []string // every stateDir that configurations of this node name
	BPFFS     string   // the folder of the pinned programs
	DryRun    bool     // tell what would be done, and do nothing
}

// Leftover is one thing that was removed, or would be.
type Leftover struct {
	Kind string `json:"kind"` // attachment, entry, table, sysctl, pins, state
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Report is what a clean-up did, or would do.
type Report struct {
	DryRun  bool       `json:"dryRun"`
	Live    int        `json:"live"` // attachments that stay
	Removed []Leftover `json:"removed"`
	Kept    []Leftover `json:"kept,omitempty"` // what stays because something still uses it
}

// Run removes dead attachments: those whose sandbox is gone, or whose ADD did not finish and is not running. Where no
// attachment is left it also removes what all of them share: nftables table, pinned programs, changed sysctls, the state.
func (c Cleaner) Run(ctx context.Context) (Report, error) {
	r := Report{DryRun: c.DryRun, Removed: []Leftover{}}
	var errs []error
	known := map[uint32]bool{}
	for _, dir := range c.StateDirs {
		errs = append(errs, c.attachments(ctx, dir, &r, known))
	}
	errs = append(errs, c.entries(&r, known))
	if r.Live > 0 {
		r.Kept = append(r.Kept, Leftover{"shared", "table, pins, sysctls, state", fmt.Sprintf("%d attachments use them", r.Live)})
		return r, errors.Join(errs...)
	}
	if err := errors.Join(errs...); err != nil {
		return r, err // what is shared may still be used
	}
	errs = append(errs, c.table(&r))
	for _, dir := range c.StateDirs {
		errs = append(errs, c.sysctls(ctx, dir, &r))
	}
	errs = append(errs, c.pins(&r))
	for _, dir := range c.StateDirs {
		errs = append(errs, c.state(ctx, dir, &r))
	}
	return r, errors.Join(errs...)
}

// attachments removes the dead ones of one state directory.
func (c Cleaner) attachments(ctx context.Context, dir string, r *Report, known map[uint32]bool) error {
	var all []state.Attachment
	store := state.New(state.Config{Dir: dir})
	err := store.View(ctx, func(tx *state.Tx) error {
		all = nil
		return tx.ForEach("", func(a state.Attachment) error { all = append(all, a); return nil })
	})
	if err != nil {
		return err
	}
	p := &plugin{bpffs: c.BPFFS}
	var errs []error
	for _, a := range all {
		for _, index := range recordedIndexes(a) {
			known[index] = true
		}
		why := dead(dir, a)
		if why == "" {
			r.Live++
			continue
		}
		if !c.DryRun {
			if err := p.removeHeld(ctx, dir, a.Key, a.Netns, sameAs(a)); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		r.Removed = append(r.Removed, Leftover{"attachment", a.Key.String(), why})
	}
	return errors.Join(errs...)
}

// dead says why an attachment is a leftover, or nothing.
func dead(dir string, a state.Attachment) string {
	if state.Held(dir, a.Key) {
		return ""
	}
	if a.Status == state.Pending {
		return "its ADD did not finish"
	}
	if a.Netns == "" {
		return "" // rebuilt from the kernel: its devices are there
	}
	netns, err := ns.GetNS(a.Netns)
	if err == nil {
		netns.Close()
		return ""
	}
	var gone ns.NSPathNotExistErr
	var notNS ns.NSPathNotNSErr
	if errors.As(err, &gone) || errors.As(err, &notNS) {
		return fmt.Sprintf("its sandbox %q is gone", a.Netns)
	}
	return ""
}

// entries removes entries of the pinned map that no attachment has: a killed ADD can leave them.
func (c Cleaner) entries(r *Report, known map[uint32]bool) error {
	digests, err := xdp.Versions(c.BPFFS)
	if err != nil {
		return err
	}
	for _, digest := range digests {
		orphans, err := c.orphans(digest, known)
		if err != nil {
			return err
		}
		for _, index := range orphans {
			r.Removed = append(r.Removed, Leftover{"entry", fmt.Sprintf("ifindex %d", index), "no attachment has it"})
		}
	}
	return nil
}

// orphans deletes the entries of one version of the programs that are not known, and returns their ifindexes.
func (c Cleaner) orphans(digest string, known map[uint32]bool) ([]uint32, error) {
	progs, err := xdp.OpenVersion(c.BPFFS, digest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = progs.Close() }()
	entries, err := progs.Endpoints()
	if err != nil {
		return nil, err
	}
	var out []uint32
	for index := range entries {
		if !known[index] {
			out = append(out, index)
		}
	}
	slices.Sort(out)
	if c.DryRun {
		return out, nil
	}
	return out, progs.Delete(out...)
}

func (c Cleaner) table(r *Report) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("list nftables tables: %w", err)
	}
	for _, t := range tables {
		if t.Name != masqTable {
			continue
		}
		if !c.DryRun {
			conn.DelTable(t)
			if err := conn.Flush(); err != nil {
				return fmt.Errorf("delete nftables table inet %s: %w", masqTable, err)
			}
		}
		r.Removed = append(r.Removed, Leftover{"table", "inet " + masqTable, "no attachment is left"})
	}
	return nil
}

func (c Cleaner) sysctls(ctx context.Context, dir string, r *Report) error {
	done, err := RestoreSysctls(ctx, state.New(state.Config{Dir: dir}), c.DryRun)
	for _, s := range done {
		r.Removed = append(r.Removed, Leftover{"sysctl", s, "tapir had changed it"})
	}
	return err
}

func (c Cleaner) pins(r *Report) error {
	if _, err := os.Stat(c.BPFFS); err != nil {
		return nil //nolint:nilerr // without the folder there are no pins
	}
	if !c.DryRun {
		if err := xdp.Remove(c.BPFFS); err != nil {
			return err
		}
	}
	r.Removed = append(r.Removed, Leftover{"pins", c.BPFFS, "no attachment is left"})
	return nil
}

func (c Cleaner) state(ctx context.Context, dir string, r *Report) error {
	if _, err := os.Stat(dir); err != nil {
		return nil //nolint:nilerr // without the folder there is no state
	}
	if !c.DryRun {
		removed, err := state.New(state.Config{Dir: dir}).Remove(ctx)
		if err != nil || !removed {
			return err
		}
	}
	r.Removed = append(r.Removed, Leftover{"state", dir, "it describes nothing"})
	return nil
}
