package cni_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// snapshot is all that an attachment can leave: devices, addresses, routes and neighbours of the node and of the given
// netns, and on the node attachments, leases, entries of the pinned maps and nftables sets. A line an object.
func (n *node) snapshot(netns ...string) []string {
	n.t.Helper()
	var lines []string
	for _, path := range append([]string{n.netns}, netns...) {
		testnode.In(n.t, path, func() { lines = append(lines, netnsLines(n.t, filepath.Base(path))...) })
	}
	lines = append(lines, n.stateLines()...)
	lines = append(lines, entryLines(n.t)...)
	lines = append(lines, n.nftables()...)
	slices.Sort(lines)
	return lines
}

// wantSame compares two snapshots.
func wantSame(t testing.TB, what string, before, after []string) {
	t.Helper()
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("%s (-before +after):\n%s", what, diff)
	}
}

// netnsLines describes the netns of the calling thread.
func netnsLines(t testing.TB, name string) (lines []string) {
	t.Helper()
	add := func(format string, args ...any) { lines = append(lines, name+": "+fmt.Sprintf(format, args...)) }
	for _, l := range allLinks(t) {
		a := l.Attrs()
		add("link %d %s %s %s mtu %d group %d alias %q up %t", a.Index, a.Name, l.Type(), a.HardwareAddr, a.MTU, a.Group, a.Alias, a.RawFlags&unix.IFF_UP != 0)
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			add("address %s on %s", a.IPNet, l.Attrs().Name)
		}
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			neighbours, err := netlink.NeighList(a.Index, family)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range neighbours {
				if n.State&unix.NUD_PERMANENT != 0 {
					add("neighbour %s %s on %s", n.IP, n.HardwareAddr, a.Name)
				}
			}
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := netlink.RouteList(nil, family) // the main table: the local one follows addresses and forwarding
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range routes {
			add("route %s", r)
		}
	}
	return lines
}

// stateLines are the attachments and leases that the state has.
func (n *node) stateLines() (lines []string) {
	n.t.Helper()
	n.in(func() {
		err := state.New(state.Config{Dir: stateDir}).View(context.Background(), func(tx *state.Tx) error {
			lines = nil
			return errors.Join(
				tx.ForEach("", func(a state.Attachment) error {
					lines = append(lines, "attachment "+a.String())
					return nil
				}),
				tx.ForEachLease("", func(l state.Lease) error {
					lines = append(lines, fmt.Sprintf("lease %s %v", l.Key, l.Addresses))
					return nil
				}))
		})
		if err != nil {
			n.t.Fatal(err)
		}
	})
	return lines
}

// entryLines are the ifindexes in the pinned maps.
func entryLines(t testing.TB) (lines []string) {
	t.Helper()
	for _, name := range []string{"endpoints", "counters"} {
		for _, index := range mapKeys(t, name) {
			lines = append(lines, fmt.Sprintf("%s of ifindex %d", name, index))
		}
	}
	return append(lines, shortcutLines(t)...)
}

// pinnedMap opens a pinned map; nil where nothing is pinned.
func pinnedMap(t testing.TB, name string) *ebpf.Map {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(pinDir, "*", name))
	if err != nil || len(paths) > 1 {
		t.Fatalf("pins of map %s: want one, got %q (%v)", name, paths, err)
	}
	if len(paths) == 0 {
		return nil
	}
	m, err := ebpf.LoadPinnedMap(paths[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func mapKeys(t testing.TB, name string) (keys []uint32) {
	t.Helper()
	m := pinnedMap(t, name)
	if m == nil {
		return nil
	}
	defer m.Close()
	var key uint32
	for err := m.NextKey(nil, &key); err == nil; err = m.NextKey(key, &key) {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// nftables are the tables, chains and set elements of the node.
func (n *node) nftables() (lines []string) {
	n.t.Helper()
	n.in(func() {
		conn, err := nftables.New()
		if err != nil {
			n.t.Fatal(err)
		}
		tables, err := conn.ListTables()
		if err != nil {
			n.t.Fatal(err)
		}
		for _, table := range tables {
			lines = append(lines, "table "+table.Name)
			sets, err := conn.GetSets(table)
			if err != nil {
				n.t.Fatal(err)
			}
			for _, set := range sets {
				elements, err := conn.GetSetElements(set)
				if err != nil {
					n.t.Fatal(err)
				}
				for _, e := range elements {
					lines = append(lines, fmt.Sprintf("table %s set %s element %x", table.Name, set.Name, e.Key))
				}
			}
		}
	})
	slices.Sort(lines)
	return lines
}

// hostEnd is the name of the veth's host end in a result: the one interface without a sandbox.
func hostEnd(t testing.TB, r *types100.Result) string {
	t.Helper()
	var names []string
	for _, i := range r.Interfaces {
		if i.Sandbox == "" {
			names = append(names, i.Name)
		}
	}
	if len(names) != 1 {
		t.Fatalf("interfaces without a sandbox: want one, got %q", names)
	}
	return names[0]
}

// noTemp wants no half-made pins and no file of a hold.
func noTemp(t testing.TB) {
	t.Helper()
	for _, pattern := range []string{filepath.Join(pinDir, "tmp-*"), filepath.Join(stateDir, "adding", "*")} {
		left, err := filepath.Glob(pattern)
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %q (%v)", left, err)
		}
	}
}

// exists tells whether there is a file.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// flagNames lists what a bit mask has, for messages.
func flagNames(flags uint16) string {
	var names []string
	for _, f := range []struct {
		bit  uint16
		name string
	}{{unix.IFF_TAP, "TAP"}, {unix.IFF_NO_PI, "NO_PI"}, {unix.IFF_VNET_HDR, "VNET_HDR"}, {unix.IFF_MULTI_QUEUE, "MULTI_QUEUE"}, {unix.IFF_NAPI, "NAPI"}, {unix.IFF_PERSIST, "PERSIST"}} {
		if flags&f.bit != 0 {
			names = append(names, f.name)
		}
	}
	return strings.Join(names, "|")
}
