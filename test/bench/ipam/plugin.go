package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/tapir-cni/tapir/ipam"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/test/bench/call"
)

// subnet is what both plugins give out of. Of its addresses neither gives out the network's, the broadcast's and the gateway's.
const (
	subnet = "10.7.0.0/16"
	usable = 1<<16 - 3
)

// network is the name of the configuration.
const network = "bench"

// A plugin is an IPAM plugin with a store of its own.
type plugin struct {
	name string
	call.Call
	seed func(first, n int) error // makes n attachments with an address each, numbered from first
}

// ours is tapir-ipam with its state in dir.
func ours(o options, dir string) plugin {
	config := map[string]any{"type": "tapir-ipam", "ranges": [][]ipam.Range{{{Subnet: subnet}}}, "stateDir": dir, "reuseDelay": "0s"}
	return plugin{name: "tapir-ipam", Call: newCall(o.bin, "tapir-ipam", config), seed: func(first, n int) error { return seedOurs(dir, first, n) }}
}

// theirs is host-local with its files in dir.
func theirs(o options, dir string) plugin {
	config := map[string]any{"type": "host-local", "ranges": [][]map[string]any{{{"subnet": subnet}}}, "dataDir": dir}
	return plugin{name: "host-local", Call: newCall(o.refplugins, "host-local", config), seed: func(first, n int) error { return seedTheirs(dir, first, n) }}
}

func newCall(folder, name string, ipamConfig map[string]any) call.Call {
	return call.Call{
		Name: name, Plugin: filepath.Join(folder, name), Path: folder, Netns: "/run/netns/none",
		Config: map[string]any{"cniVersion": "1.0.0", "name": network, "type": "bench", "ipam": ipamConfig},
	}
}

// add allocates for the attachment and gives the address.
func (p plugin) add(id string) (call.Outcome, netip.Addr, error) {
	c := p.Call
	c.Command, c.ID = "ADD", id
	out, err := c.Do()
	if err != nil {
		return out, netip.Addr{}, err
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(out.Stdout, &result); err != nil || len(result.IPs) != 1 {
		return out, netip.Addr{}, fmt.Errorf("ADD of %s: want a result with one address, got %q", p.name, out.Stdout)
	}
	return out, result.IPs[0].Address.Addr(), nil
}

func (p plugin) del(id string) error {
	c := p.Call
	c.Command, c.ID = "DEL", id
	_, err := c.Do()
	return err
}

// seedOurs allocates as tapir-ipam does, all in one transaction.
func seedOurs(dir string, first, n int) error {
	settings, faults := ipam.Config{Type: "tapir-ipam", Ranges: [][]ipam.Range{{{Subnet: subnet}}}, StateDir: dir, ReuseDelay: "0s"}.Validate()
	if err := faults.Err(); err != nil {
		return err
	}
	store := state.New(state.Config{Dir: dir})
	return store.Update(context.Background(), func(tx *state.Tx) error {
		for i := range n {
			key := state.Key{Network: network, ContainerID: seedID(first + i), IfName: call.IfName}
			if _, err := ipam.Acquire(tx, ipam.Request{Key: key, Sets: settings.Sets}); err != nil {
				return err
			}
		}
		return nil
	})
}

// seedTheirs writes the files that host-local (plugins v1.10.0, plugins/ipam/host-local/backend/disk) keeps: one an address, named by it, with the
// attachment, and one with the address that was given last.
func seedTheirs(dir string, first, n int) error {
	folder := filepath.Join(dir, network)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	a := netip.MustParsePrefix(subnet).Addr().As4()
	var last string
	for i := range n {
		number := first + i + 2 // after the network's and the gateway's
		a[2], a[3] = byte(number>>8), byte(number)
		last = netip.AddrFrom4(a).String()
		if err := os.WriteFile(filepath.Join(folder, last), []byte(seedID(first+i)+"\r\n"+call.IfName), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(folder, "last_reserved_ip.0"), []byte(last), 0o600)
}

func seedID(i int) string { return fmt.Sprintf("seed-%d", i) }
