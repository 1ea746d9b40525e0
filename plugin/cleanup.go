package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/nftables"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/xdp"
)

// Cleaner removes what tapir left on the node. The zero value is no use: name the folders.
type Cleaner struct {
	StateDirs []string // every stateDir that configurations of this node name
	BPFFS     string   // the folder of the pinned programs
	DryRun    bool     // tell what would be done, and do nothing

	// KeepSysctls leaves the sysctls that tapir changed as they are, for a node where other software relies on forwarding
	// by now. What they were before is forgotten.
	KeepSysctls bool
}

// Leftover is one thing that was removed, or would be.
type Leftover struct {
	Kind string `json:"kind"` // attachment, entry, uplink, table, sysctl, pins, state
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
	c.StateDirs = distinct(c.StateDirs)
	// Entries before attachments: an entry stands before its attachment's record does, and under the same lock of the state.
	entries, err := c.entries()
	taps, shortcutErr := c.shortcutEntries()
	errs := []error{err, shortcutErr}
	known, others, adding := map[uint32]bool{}, 0, 0
	for _, dir := range c.StateDirs {
		errs = append(errs, c.attachments(ctx, dir, &r, known))
		n, holdErr := state.Holds(dir)
		adding += n
		errs = append(errs, holdErr)
	}
	tags, err := hostEnds()
	errs = append(errs, err)
	for _, index := range tags {
		if !known[index] {
			others++
		}
		// A record that was rebuilt from the kernel does not know all of its block of ifindexes.
		for offset := range uint32(indexBlock) {
			known[index/indexBlock*indexBlock+offset] = true
		}
	}
	if err := errors.Join(errs...); err != nil {
		return r, err // who cannot tell what is used removes nothing
	}
	errs = append(errs, c.shortcutOrphans(&r, taps, known), c.orphans(&r, entries, known))
	switch {
	case r.Live > 0:
		r.keepShared(fmt.Sprintf("%d attachments use them", r.Live))
	case others > 0:
		r.keepShared(fmt.Sprintf("%d attachments of other state directories use them; name those by --state-dir", others))
	case adding > 0:
		r.keepShared(fmt.Sprintf("%d attachments are being added or removed", adding))
	}
	if len(r.Kept) > 0 {
		return r, errors.Join(errs...)
	}
	if err := errors.Join(errs...); err != nil {
		return r, err // what is shared may still be used
	}
	return r, c.shared(ctx, &r)
}

// distinct are the folders without those that are named twice.
func distinct(dirs []string) []string {
	var out []string
	for _, dir := range dirs {
		if dir = filepath.Clean(dir); !slices.Contains(out, dir) {
			out = append(out, dir)
		}
	}
	return out
}

// shared removes what attachments share; there is none. It does so in transactions on all state directories: an ADD has
// recorded its attachment before them, and all stays, or does so after them, and finds nothing to build on.
func (c Cleaner) shared(ctx context.Context, r *Report) error {
	var errs []error
	made := map[string]bool{} // by the transactions: nothing to report
	for _, dir := range c.StateDirs {
		_, err := os.Lstat(dir)
		made[dir] = errors.Is(err, fs.ErrNotExist)
	}
	err := c.unused(ctx, nil, r, func(txs []*state.Tx) {
		errs = []error{c.table(r)}
		for _, tx := range txs {
			errs = append(errs, c.sysctls(tx, r))
		}
		errs = append(errs, c.uplinks(r), c.pins(r))
	})
	errs = append(errs, err)
	if slices.ContainsFunc(r.Kept, func(l Leftover) bool { return l.Kind == keptShared }) {
		return errors.Join(errs...)
	}
	for _, dir := range c.StateDirs {
		errs = append(errs, c.state(ctx, dir, made[dir], r))
	}
	return errors.Join(errs...)
}

// unused calls fn in a transaction on each of the state directories that are not yet in txs, unless one has an attachment.
func (c Cleaner) unused(ctx context.Context, txs []*state.Tx, r *Report, fn func([]*state.Tx)) error {
	if len(txs) == len(c.StateDirs) {
		fn(txs)
		return nil
	}
	store := state.New(state.Config{Dir: c.StateDirs[len(txs)]})
	// A state is made where there is none: without its lock an ADD would build meanwhile on what is being removed.
	begin, removed := store.Update, len(r.Removed)
	if c.DryRun {
		begin = store.View
	}
	return begin(ctx, func(tx *state.Tx) error {
		r.Removed, r.Kept = r.Removed[:removed], nil // on rebuilt state it runs again
		used := 0
		if err := tx.ForEach("", func(state.Attachment) error { used++; return nil }); err != nil {
			return err
		}
		if used > 0 && !c.DryRun {
			r.keepShared("an attachment was added meanwhile")
			return nil
		}
		return c.unused(ctx, append(txs, tx), r, fn)
	})
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
	tags, err := hostEnds()
	if err != nil {
		return err
	}
	p := &plugin{bpffs: c.BPFFS, danDir: DefaultDANDir}
	var errs []error
	for _, a := range all {
		for _, index := range recordedIndexes(a) {
			known[index] = true
		}
		why := dead(dir, a, tags)
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

// dead says why an attachment is a leftover, or nothing. tags are the host ends that are there.
func dead(dir string, a state.Attachment, tags map[string]uint32) string {
	if state.Held(dir, a.Key) {
		return ""
	}
	if a.Status == state.Pending {
		return "its ADD did not finish"
	}
	if a.Netns == "" { // rebuilt from the kernel, where its host end was
		if _, ok := tags[a.Alias()]; !ok {
			return "its devices are gone"
		}
		return ""
	}
	netns, err := ns.GetNS(a.Netns)
	if err == nil {
		netns.Close()
		return ""
	}
	var gone ns.NSPathNotExistErr
	var notNS ns.NSPathNotNSErr
	if !errors.As(err, &gone) && !errors.As(err, &notNS) {
		return ""
	}
	if a.OnHost() {
		return deadOnHost(a)
	}
	if hostEndStays(a, tags) {
		return ""
	}
	return fmt.Sprintf("its sandbox %q is gone", a.Netns)
}

// endWait is how long the kernel may take to remove the host end of a sandbox that is gone.
const endWait = 2 * time.Second

// hostEndStays tells whether a sandbox that is not at its path lives all the same: then its path cannot be seen from here, as in a
// container without the node's /run/netns, or a process keeps it.
func hostEndStays(a state.Attachment, tags map[string]uint32) bool {
	_, ok := tags[a.Alias()]
	for deadline := time.Now().Add(endWait); ok && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		now, err := hostEnds()
		if err != nil {
			return true
		}
		_, ok = now[a.Alias()]
	}
	return ok
}

// deadOnHost says why an attachment is a leftover whose TAP does not go with its sandbox, and whose sandbox is not at its path. That
// alone proves nothing where the path's folder cannot be seen either, as in a container, nor while a VMM has the TAP.
func deadOnHost(a state.Attachment) string {
	const proc = "/proc/" // there the folder goes with its process
	if _, err := os.Stat(filepath.Dir(a.Netns)); err != nil && !strings.HasPrefix(a.Netns, proc) {
		return ""
	}
	status, err := tap.ReadStatus("", a.TAP.Index)
	if err != nil && !rtnl.Gone(err) || err == nil && status.Queues+status.Disabled > 0 {
		return ""
	}
	return fmt.Sprintf("its sandbox %q is gone, and no VMM has its TAP", a.Netns)
}

// keptShared is the kind of what stays because attachments use it.
const keptShared = "shared"

// keepShared says why what all attachments share stays.
func (r *Report) keepShared(why string) {
	r.Kept = append(r.Kept, Leftover{keptShared, "table, pins, sysctls, state", why})
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

func (c Cleaner) sysctls(tx *state.Tx, r *Report) error {
	if c.KeepSysctls {
		return c.forgetSysctls(tx, r)
	}
	done, err := restoreSysctls(tx, c.DryRun)
	for _, s := range done {
		r.Removed = append(r.Removed, Leftover{"sysctl", s, "tapir had changed it; --keep-sysctls if others rely on it now"})
	}
	return err
}

// forgetSysctls drops the record of what the sysctls were.
func (c Cleaner) forgetSysctls(tx *state.Tx, r *Report) error {
	saved, err := tx.Sysctls()
	errs := []error{err}
	for _, name := range slices.Sorted(maps.Keys(saved)) {
		if !c.DryRun {
			errs = append(errs, tx.DeleteSysctl(name))
		}
		r.Kept = append(r.Kept, Leftover{"sysctl", name, "as asked; it was " + saved[name]})
	}
	return errors.Join(errs...)
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

func (c Cleaner) state(ctx context.Context, dir string, made bool, r *Report) error {
	if _, err := os.Stat(dir); err != nil {
		return nil //nolint:nilerr // without the folder there is no state
	}
	if !c.DryRun {
		removed, err := state.New(state.Config{Dir: dir}).Remove(ctx)
		if err != nil || !removed {
			return err
		}
	}
	if !made {
		r.Removed = append(r.Removed, Leftover{"state", dir, "it describes nothing"})
	}
	return nil
}
