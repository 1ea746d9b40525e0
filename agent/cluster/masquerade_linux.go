package cluster

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Table is the nftables table, family inet, that masquerades what leaves the cluster.
const Table = "tapir-cluster"

// masqueradeChain is its only chain.
const masqueradeChain = "postrouting"

// family is what differs between the two in rules.
type family struct {
	is4       bool
	proto     byte
	src, dst  uint32 // offsets in the header
	size      uint32
	kind      nftables.SetDatatype
	multicast netip.Prefix
	linkLocal netip.Prefix
}

var families = []family{
	{true, unix.NFPROTO_IPV4, 12, 16, 4, nftables.TypeIPAddr, netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("169.254.0.0/16")},
	{false, unix.NFPROTO_IPV6, 8, 24, 16, nftables.TypeIP6Addr, netip.MustParsePrefix("ff00::/8"), netip.MustParsePrefix("fe80::/10")},
}

// syncMasquerade replaces the table by one that masquerades from own to everything but except, in one transaction. Without own it removes it.
func syncMasquerade(own, except []netip.Prefix) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("masquerade: open nftables: %w", err)
	}
	table := &nftables.Table{Name: Table, Family: nftables.TableFamilyINet}
	// To delete a table that is not there is an error: it is added first.
	c.AddTable(table)
	c.DelTable(table)
	if len(own) > 0 {
		if err := queueTable(c, table, own, except); err != nil {
			return err
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("masquerade: write nftables table inet %s: %w", Table, err)
	}
	return nil
}

func queueTable(c *nftables.Conn, table *nftables.Table, own, except []netip.Prefix) error {
	table = c.AddTable(table)
	chain := c.AddChain(&nftables.Chain{
		Name: masqueradeChain, Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	for _, f := range families {
		sets := [2]*nftables.Set{}
		for i, part := range []struct {
			name   string
			ranges []netip.Prefix
		}{{"own", of(f, own)}, {"except", of(f, append(append([]netip.Prefix{f.multicast, f.linkLocal}, except...), own...))}} {
			name := part.name + "4"
			if !f.is4 {
				name = part.name + "6"
			}
			sets[i] = &nftables.Set{Table: table, Name: name, KeyType: f.kind, Interval: true}
			if err := c.AddSet(sets[i], intervals(part.ranges)); err != nil {
				return fmt.Errorf("masquerade: set %s: %w", name, err)
			}
		}
		if len(of(f, own)) == 0 {
			continue
		}
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.proto}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.src, Len: f.size},
			&expr.Lookup{SourceRegister: 1, SetName: sets[0].Name, SetID: sets[0].ID},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.dst, Len: f.size},
			&expr.Lookup{SourceRegister: 1, SetName: sets[1].Name, SetID: sets[1].ID, Invert: true},
			&expr.Counter{},
			&expr.Masq{},
		}})
	}
	return nil
}

func of(f family, all []netip.Prefix) (some []netip.Prefix) {
	for _, p := range all {
		if p.Addr().Is4() == f.is4 {
			some = append(some, p.Masked())
		}
	}
	return some
}

// intervals are a set's elements, without ranges that lie within others: the kernel takes no overlaps.
func intervals(ranges []netip.Prefix) (elements []nftables.SetElement) {
	var outer []netip.Prefix
next:
	for i, r := range ranges {
		for j, o := range ranges {
			if o.Contains(r.Addr()) && (o.Bits() < r.Bits() || o == r && j < i) {
				continue next
			}
		}
		outer = append(outer, r)
	}
	for _, r := range outer {
		elements = append(elements, nftables.SetElement{Key: r.Addr().AsSlice()})
		if end := after(r); end.IsValid() {
			elements = append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}

// after is the first address behind the range; invalid where there is none.
func after(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last.Next()
}

// Remove takes away what a tapird of a cluster left in the node's network: its routes and its table.
func Remove() error {
	_, _, err := syncRoutes(nil)
	return errors.Join(err, syncMasquerade(nil, nil))
}
