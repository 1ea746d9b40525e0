package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/tapir-cni/tapir/state"
	"golang.org/x/sys/unix"
)

// masqTable is the one nftables table of tapir, in the family inet.
const masqTable = "tapir"

// masqChain is the name of the base chain for one network and one list of exceptions. Its four sets have the name in
// theirs, so that DEL needs no more than this. A changed list is another chain, beside that of the pods that run.
func masqChain(network string, except []netip.Prefix) string {
	h := sha256.New()
	for _, p := range except {
		fmt.Fprintln(h, p)
	}
	const longest = 128 // of NFT_NAME_MAXLEN 256, with room for a set's prefix
	name := network
	if len(name) > longest {
		sum := sha256.Sum256([]byte(name))
		name = hex.EncodeToString(sum[:])
	}
	return "masq-" + name + "-" + hex.EncodeToString(h.Sum(nil)[:4])
}

// addMasquerade masquerades what the addresses send. Mostly that is one element a family; where the chain is not there it is made
// in the same transaction, which is safe against others that do the same.
func addMasquerade(chain string, except []netip.Prefix, addrs []state.Address) error {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return fmt.Errorf("masquerade: open nftables: %w", err)
	}
	defer func() { _ = c.CloseLasting() }()

	err = addElements(c, chain, addrs)
	if errors.Is(err, unix.ENOENT) {
		if err = queueChain(c, chain, except); err == nil {
			err = addElements(c, chain, addrs)
		}
	}
	if err != nil {
		return fmt.Errorf("masquerade: add to nftables table inet %s: %w%s", masqTable, err, nftHint(err))
	}
	return nil
}

func nftHint(err error) string {
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) {
		return "; the kernel needs nf_tables with nft_chain_nat, nft_masq and family inet (5.2 or newer)"
	}
	return ""
}

// removeMasqueradeOf takes the attachment's addresses out of its chain's sets. A record that was rebuilt from the kernel
// does not know its chain: then out of all.
func removeMasqueradeOf(rec state.Attachment) error {
	if !rec.Rebuilt {
		return removeMasquerade(rec.Masquerade, rec.Addresses)
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("masquerade: open nftables: %w", err)
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil && nftHint(err) == "" {
		return fmt.Errorf("masquerade: list nftables chains: %w", err)
	}
	var errs []error
	for _, chain := range chains { // none on a kernel without nftables
		if chain.Table.Name == masqTable {
			errs = append(errs, removeMasquerade(chain.Name, rec.Addresses))
		}
	}
	return errors.Join(errs...)
}

// removeMasquerade takes the addresses out of the chain's sets. No chain, and what is not there, is success.
func removeMasquerade(chain string, addrs []state.Address) error {
	if chain == "" {
		return nil
	}
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return fmt.Errorf("masquerade: open nftables: %w", err)
	}
	defer func() { _ = c.CloseLasting() }()
	var errs []error
	for _, a := range addrs {
		// A transaction each: one that is gone must not keep the other.
		err := c.SetDeleteElements(podSet(chain, a.Prefix.Addr()), element(a.Prefix.Addr()))
		if err == nil {
			err = c.Flush()
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("masquerade: remove %s: %w", a.Prefix.Addr(), err))
		}
	}
	return errors.Join(errs...)
}

// masqueraded are the addresses in a chain's sets, those that could be listed.
func masqueraded(chain string) (map[netip.Addr]bool, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	out := map[netip.Addr]bool{}
	var errs []error
	for _, zero := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		set := podSet(chain, zero)
		elements, err := c.GetSetElements(set)
		if err != nil {
			errs = append(errs, fmt.Errorf("list nftables set inet %s %s: %w", masqTable, set.Name, err))
		}
		for _, e := range elements {
			if ip, ok := netip.AddrFromSlice(e.Key); ok {
				out[ip] = true
			}
		}
	}
	return out, errors.Join(errs...)
}

func addElements(c *nftables.Conn, chain string, addrs []state.Address) error {
	for _, a := range addrs {
		if err := c.SetAddElements(podSet(chain, a.Prefix.Addr()), element(a.Prefix.Addr())); err != nil {
			return err
		}
	}
	return c.Flush()
}

func element(a netip.Addr) []nftables.SetElement { return []nftables.SetElement{{Key: a.AsSlice()}} }

func inetTable() *nftables.Table {
	return &nftables.Table{Name: masqTable, Family: nftables.TableFamilyINet}
}

// podSet holds the pods' addresses, skipSet the destinations that are not masqueraded.
func podSet(chain string, of netip.Addr) *nftables.Set {
	return &nftables.Set{Table: inetTable(), Name: "pods" + ipVersion(of) + "-" + chain, KeyType: addrType(of)}
}

func skipSet(chain string, of netip.Addr) *nftables.Set {
	return &nftables.Set{Table: inetTable(), Name: "skip" + ipVersion(of) + "-" + chain, KeyType: addrType(of), Interval: true}
}

func ipVersion(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}

func addrType(a netip.Addr) nftables.SetDatatype {
	if a.Is4() {
		return nftables.TypeIPAddr
	}
	return nftables.TypeIP6Addr
}

// queueChain queues the table, the chain, its sets and its two rules. The chain is flushed first: whoever comes second
// replaces the rules by the same ones.
func queueChain(c *nftables.Conn, name string, except []netip.Prefix) error {
	table := c.AddTable(inetTable())
	chain := c.AddChain(&nftables.Chain{
		Name: name, Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	c.FlushChain(chain)
	for _, zero := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		pods, skip := podSet(name, zero), skipSet(name, zero)
		if err := c.AddSet(pods, nil); err != nil {
			return err
		}
		if err := c.AddSet(skip, intervals(except, zero.Is4())); err != nil {
			return err
		}
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: masqRule(zero.Is4(), pods, skip)})
	}
	return nil
}

// masqRule is "ip saddr @pods ip daddr != @skip masquerade".
func masqRule(ipv4 bool, pods, skip *nftables.Set) []expr.Any {
	proto, src, size := uint32(unix.NFPROTO_IPV6), uint32(8), uint32(16)
	if ipv4 {
		proto, src, size = unix.NFPROTO_IPV4, 12, 4
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(proto)}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: src, Len: size},
		&expr.Lookup{SourceRegister: 1, SetName: pods.Name, SetID: pods.ID},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: src + size, Len: size},
		&expr.Lookup{SourceRegister: 1, SetName: skip.Name, SetID: skip.ID, Invert: true},
		&expr.Counter{},
		&expr.Masq{},
	}
}

// intervals are the prefixes of one family as elements of an interval set: half-open and none inside another, as the
// kernel wants them.
func intervals(prefixes []netip.Prefix, ipv4 bool) []nftables.SetElement {
	var mine []netip.Prefix
	for _, p := range prefixes {
		if p.Addr().Is4() == ipv4 {
			mine = append(mine, p.Masked())
		}
	}
	// Wider prefixes stand before those inside them.
	slices.SortFunc(mine, netip.Prefix.Compare)
	var out []nftables.SetElement
	var wide netip.Prefix
	for _, p := range mine {
		if wide.IsValid() && wide.Contains(p.Addr()) {
			continue
		}
		wide = p
		out = append(out, nftables.SetElement{Key: p.Addr().AsSlice()})
		if end := lastAddr(p).Next(); end.IsValid() {
			out = append(out, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

// lastAddr is the highest address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
