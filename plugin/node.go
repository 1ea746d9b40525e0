package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/tapir-cni/tapir/internal/sysctl"
	"github.com/tapir-cni/tapir/state"
)

// Node compares what attachments share: the sysctls that make the node a router, and masquerading.
type Node struct{ StateDir string }

// Look compares. rec are attachments of the state folder.
func (n Node) Look(ctx context.Context, recs []state.Attachment) ([]Difference, error) {
	var out []Difference
	sysctls, err := n.forwarding(ctx, recs)
	for name, want := range sysctls {
		out = append(out, Difference{Property: PropertyForwarding, Object: "sysctl " + name, What: fmt.Sprintf("want %s", want), Repairable: true})
	}
	chains, chainErr := n.masqueradeDrift(ctx, recs)
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		out = append(out, Difference{Property: PropertyMasquerade, Object: name, What: strings.Join(chains[name].what, "; "), Repairable: true})
	}
	slices.SortFunc(out, func(a, b Difference) int { return strings.Compare(a.Object, b.Object) })
	return out, errors.Join(err, chainErr)
}

// Mend compares and repairs what want asks for. Of addresses it adds those alone whose attachment is still there, under its hold.
func (n Node) Mend(ctx context.Context, recs []state.Attachment, want func(Difference) bool) ([]Difference, error) {
	out, err := n.Look(ctx, recs)
	if err != nil {
		return out, err
	}
	for i := range out {
		d := &out[i]
		if !want(*d) {
			continue
		}
		if d.Property == PropertyForwarding {
			d.Err = n.mendForwarding(ctx, recs)
		} else {
			d.Err = n.mendMasquerade(ctx, d.Object, recs)
		}
		d.Repaired = d.Err == nil
	}
	return out, nil
}

// forwarding are the sysctls that should have another value, with it.
func (n Node) forwarding(ctx context.Context, recs []state.Attachment) (map[string]string, error) {
	out := map[string]string{}
	for _, a := range recs {
		if a.Chained {
			continue // its addresses are another plugin's affair
		}
		for _, addr := range a.Addresses {
			name := forward6
			if addr.Prefix.Addr().Is4() {
				name = forward4
			}
			if v, err := sysctl.Get(name); err == nil && v == "0" {
				out[name] = "1"
			}
		}
	}
	saved := map[string]string{}
	err := state.New(state.Config{Dir: n.StateDir}).View(ctx, func(tx *state.Tx) (err error) {
		saved, err = tx.Sysctls()
		return err
	})
	for name := range saved {
		if v, getErr := sysctl.Get(name); strings.HasSuffix(name, "/accept_ra") && getErr == nil && v == "1" && len(recs) > 0 {
			out[name] = "2"
		}
	}
	return out, err
}

func (n Node) mendForwarding(ctx context.Context, recs []state.Attachment) error {
	var addrs []state.Address
	for _, a := range recs {
		if !a.Chained {
			addrs = append(addrs, a.Addresses...)
		}
	}
	if err := ensureForwarding(ctx, state.New(state.Config{Dir: n.StateDir}), addrs); err != nil {
		return err
	}
	left, err := n.forwarding(ctx, recs)
	for name, want := range left {
		err = errors.Join(err, sysctl.Set(name, want))
	}
	return err
}

// masqDrift is what is wrong with a chain and whom it concerns.
type masqDrift struct {
	what []string
	recs []state.Attachment
}

// masqueradeDrift compares each chain once. What is missing of an attachment is confirmed under its hold: a DEL takes it out before the record.
func (n Node) masqueradeDrift(ctx context.Context, recs []state.Attachment) (map[string]masqDrift, error) {
	by := map[string][]state.Attachment{}
	for _, a := range recs {
		if a.Masquerade != "" && !a.Rebuilt && a.Status == state.Ready {
			by[a.Masquerade] = append(by[a.Masquerade], a)
		}
	}
	out := map[string]masqDrift{}
	for chain, list := range by {
		rules, err := masqRules(chain)
		if err != nil {
			return nil, fmt.Errorf("masquerade: %w", err)
		}
		if rules != wantRules {
			out[chain] = masqDrift{[]string{fmt.Sprintf("nftables chain inet %s %s: want %d rules, got %d", masqTable, chain, wantRules, rules)}, list}
			continue
		}
		have, err := masqueraded(chain) // the rules say that the sets are there
		if err != nil {
			return nil, fmt.Errorf("masquerade: %w", err)
		}
		var d masqDrift
		for _, a := range list {
			if missing(a, have) == "" {
				continue
			}
			err := heldStill(ctx, n.StateDir, a, func() error {
				now, err := masqueraded(chain)
				if what := missing(a, now); err == nil && what != "" {
					d.what, d.recs = append(d.what, what), append(d.recs, a)
				}
				return err
			})
			if err != nil && !errors.Is(err, ErrHeld) {
				return nil, err
			}
		}
		if len(d.what) > 0 {
			out[chain] = d
		}
	}
	return out, nil
}

// missing says which addresses of an attachment are not masqueraded.
func missing(a state.Attachment, have map[netip.Addr]bool) string {
	var list []string
	for _, addr := range a.Addresses {
		if ip := addr.Prefix.Addr(); !have[ip] {
			list = append(list, ip.String())
		}
	}
	if len(list) == 0 {
		return ""
	}
	return fmt.Sprintf("%s of %s is missing", strings.Join(list, " and "), a.Key)
}

// wantRules are the rules of a chain, one for each family.
const wantRules = 2

// masqRules counts the rules of a chain; no chain has none.
func masqRules(chain string) (int, error) {
	c, err := nftables.New()
	if err != nil {
		return 0, fmt.Errorf("open nftables: %w", err)
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return 0, fmt.Errorf("list nftables chains: %w", err)
	}
	is := func(c *nftables.Chain) bool { return c.Table.Name == masqTable && c.Name == chain }
	if !slices.ContainsFunc(chains, is) {
		return 0, nil
	}
	rules, err := c.GetRules(inetTable(), &nftables.Chain{Name: chain, Table: inetTable()})
	if err != nil {
		return 0, fmt.Errorf("list nftables chain inet %s %s: %w", masqTable, chain, err)
	}
	return len(rules), nil
}

// mendMasquerade makes the chain anew where it is not whole, and adds the addresses of attachments that are still there.
func (n Node) mendMasquerade(ctx context.Context, chain string, recs []state.Attachment) error {
	all, err := n.masqueradeDrift(ctx, recs)
	if err != nil {
		return err
	}
	d, ok := all[chain]
	if !ok {
		return nil
	}
	if rules, err := masqRules(chain); err != nil {
		return err
	} else if rules != wantRules {
		if err := n.remakeChain(ctx, chain, d.recs[0].Network); err != nil {
			return err
		}
	}
	var errs []error
	for _, a := range d.recs {
		err := heldStill(ctx, n.StateDir, a, func() error { return addToChain(chain, a.Addresses) })
		if !errors.Is(err, ErrHeld) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// remakeChain queues what is already there too: that is no error, and the rules are replaced by the same ones.
func (n Node) remakeChain(ctx context.Context, chain, network string) error {
	var except []netip.Prefix
	err := state.New(state.Config{Dir: n.StateDir}).View(ctx, func(tx *state.Tx) error {
		raw, err := tx.Misc(network, exceptionsName(chain))
		if err == nil && raw == nil {
			err = fmt.Errorf("masquerade: what %s leaves out was not recorded by the version that added it; ADD a pod of network %q anew", chain, network)
		}
		if err == nil {
			err = json.Unmarshal(raw, &except)
		}
		return err
	})
	if err != nil {
		return err
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("masquerade: open nftables: %w", err)
	}
	if err = queueChain(c, chain, except); err == nil {
		err = c.Flush()
	}
	if err != nil {
		return fmt.Errorf("masquerade: make nftables chain inet %s %s: %w%s", masqTable, chain, err, nftHint(err))
	}
	return nil
}

// addToChain is addMasquerade for a chain that is there.
func addToChain(chain string, addrs []state.Address) error {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return fmt.Errorf("masquerade: open nftables: %w", err)
	}
	defer func() { _ = c.CloseLasting() }()
	if err := addElements(c, chain, addrs); err != nil {
		return fmt.Errorf("masquerade: add to nftables chain inet %s %s: %w", masqTable, chain, err)
	}
	return nil
}

// exceptionsName is where the exceptions of a chain are kept: its name has their digest alone.
func exceptionsName(chain string) string { return "except/" + chain }

// keepExceptions records them with the first attachment of the chain.
func keepExceptions(tx *state.Tx, rec *state.Attachment, except []netip.Prefix) error {
	old, err := tx.Misc(rec.Network, exceptionsName(rec.Masquerade))
	if err != nil || old != nil {
		return err
	}
	raw, err := json.Marshal(except)
	if err != nil {
		return fmt.Errorf("record the exceptions of masquerading: %w", err)
	}
	return tx.PutMisc(rec.Network, exceptionsName(rec.Masquerade), raw)
}
