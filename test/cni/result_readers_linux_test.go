package cni_test

import (
	"fmt"
	"net"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
)

// readAsGoCNI reads a result as containerd's go-cni does: interfaces by name, of which the last one wins, addresses
// by the name of their interface. CRI wants eth0 with at least one address and at most one of each family.
func readAsGoCNI(r *types100.Result) error {
	sandbox, ips := map[string]string{}, map[string][]net.IP{}
	for _, i := range r.Interfaces {
		sandbox[i.Name] = i.Sandbox
	}
	for _, ip := range r.IPs {
		name := "eth0"
		if ip.Interface != nil {
			if *ip.Interface >= len(r.Interfaces) {
				return fmt.Errorf("%s is of interface %d, which is not there", &ip.Address, *ip.Interface)
			}
			name = r.Interfaces[*ip.Interface].Name
		}
		ips[name] = append(ips[name], ip.Address.IP)
	}
	if sandbox["eth0"] == "" || len(ips["eth0"]) == 0 {
		return fmt.Errorf("eth0 is in sandbox %q with %d addresses", sandbox["eth0"], len(ips["eth0"]))
	}
	families := map[bool]int{}
	for _, ip := range ips["eth0"] {
		families[ip.To4() != nil]++
	}
	if families[true] > 1 || families[false] > 1 {
		return fmt.Errorf("eth0 has the addresses %v: more than one of a family", ips["eth0"])
	}
	return nil
}

// sdkConf is what the Firecracker SDK learns from a result.
type sdkConf struct {
	tap, mac, bootArg string
	mtu               int
}

// readAsFirecrackerSDK reads a result by the rules of vmconf.StaticNetworkConfFrom in the Firecracker Go SDK, numbered as
// in RESULT-CONTRACT.md, B.1: 1 the caller has converted the result.
func readAsFirecrackerSDK(t *testing.T, r *types100.Result, id string) (sdkConf, error) {
	t.Helper()
	var vm, tap *types100.Interface
	for _, i := range r.Interfaces { // 2: one interface has the container id for a sandbox
		if i.Sandbox == id {
			if vm != nil {
				return sdkConf{}, fmt.Errorf("two interfaces in sandbox %q", id)
			}
			vm = i
		}
	}
	if vm == nil {
		return sdkConf{}, fmt.Errorf("no pseudo-device for %q", id)
	}
	for _, i := range r.Interfaces { // 3: one other has its name
		if i.Name == vm.Name && i != vm {
			if tap != nil {
				return sdkConf{}, fmt.Errorf("two TAPs %q", vm.Name)
			}
			tap = i
		}
	}
	if tap == nil {
		return sdkConf{}, fmt.Errorf("no TAP %q", vm.Name)
	}
	var ips []*types100.IPConfig
	for _, ip := range r.IPs { // 4: one address is of the pseudo interface
		if ip.Interface == nil {
			continue
		}
		if of := r.Interfaces[*ip.Interface]; of.Name == vm.Name && of.Sandbox == id {
			ips = append(ips, ip)
		}
	}
	if len(ips) != 1 {
		return sdkConf{}, fmt.Errorf("expected to find 1 IP for vm interface %q, got %d", vm.Name, len(ips))
	}
	c := sdkConf{tap: vm.Name, mac: vm.Mac} // 7
	testnode.In(t, tap.Sandbox, func() {    // 5: the TAP's sandbox is a netns; 6: the TAP is there now
		l, err := netlink.LinkByName(tap.Name)
		if err != nil {
			t.Fatal(err)
		}
		c.mtu = l.Attrs().MTU
	})
	if ips[0].Gateway.To4() == nil || ips[0].Address.IP.To4() == nil || !ips[0].Address.Contains(ips[0].Gateway) {
		return c, fmt.Errorf("unusable address %s with gateway %s", &ips[0].Address, ips[0].Gateway) // 8
	}
	c.bootArg = fmt.Sprintf("ip=%s::%s:%s:::off:", ips[0].Address.IP, ips[0].Gateway, net.IP(ips[0].Address.Mask))
	return c, nil
}
