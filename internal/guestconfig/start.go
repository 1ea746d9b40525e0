package guestconfig

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tapir-cni/tapir/tap"
)

// Starts gives the commands that start a VMM so that its queues run NAPI, by the VMM's name: "tapirctl fds" for those that take open
// queues, whatever namespace they run in, "tapirctl exec" for those that do not. What else the VMM is to be told goes behind each.
func (g Guest) Starts(o QEMUOptions) (fds, exec map[string][]string, err error) {
	if err := g.Validate(); err != nil {
		return nil, nil, fmt.Errorf("commands: %w", err)
	}
	if err := g.noFDs(); err != nil {
		return nil, nil, err
	}
	fds, exec = map[string][]string{}, map[string][]string{}
	for vmm, command := range map[string]func(tap.Profile) []string{
		tap.QEMU:            func(p tap.Profile) []string { return g.qemuFDs(p, o) },
		tap.CloudHypervisor: g.cloudHypervisorFDs,
		tap.Firecracker:     func(tap.Profile) []string { return []string{"firecracker", "--config-file", "vm.json"} },
	} {
		p, err := tap.ProfileOf(vmm)
		if err != nil {
			return nil, nil, err
		}
		switch {
		case p.Check(g.Queues) != nil:
		case p.FDs:
			fds[vmm] = g.fds(command(p)...)
		default:
			exec[vmm] = g.inNetns(append([]string{"tapirctl", "exec", "--attachment", g.attachment(), "--"}, command(p)...))
		}
	}
	if len(exec) == 0 {
		exec = nil
	}
	return fds, exec, nil
}

// attachment is what tapirctl calls the guest's.
func (g Guest) attachment() string { return g.ContainerID + "/" + g.IfName }

// noFDs is why tapirctl can hand no queues over, or nil.
func (g Guest) noFDs() error {
	switch {
	case g.ContainerID == "":
		return errors.New("commands: want the container id, by which tapirctl finds the attachment")
	case g.NoNAPI:
		return errors.New(`the network configuration says "napi": false; start the VMM as it is`)
	}
	return nil
}

// fds puts a command behind that which hands it the open queues.
func (g Guest) fds(argv ...string) []string {
	return append([]string{"tapirctl", "fds", "--attachment", g.attachment(), "--"}, argv...)
}

// inNetns puts a command into the namespace in which a VMM finds the TAP by name.
func (g Guest) inNetns(argv []string) []string {
	if g.OnHost || g.Netns == "" {
		return argv
	}
	return append([]string{"nsenter", "--net=" + g.Netns, "--"}, argv...)
}

// qemuFDs lets "tapirctl fds" fill in the descriptors. With fds= QEMU refuses ifname=, script= and queues= (net/tap.c).
func (g Guest) qemuFDs(_ tap.Profile, o QEMUOptions) []string {
	id := o.ID
	if id == "" {
		id = "net0"
	}
	return append([]string{"qemu-system-x86_64"}, g.qemuArgs(o, id, []string{"tap", "id=" + id, "fds={fds}"})...)
}

// cloudHypervisorFDs: with fd= Cloud Hypervisor reads the MTU from the TAP.
func (g Guest) cloudHypervisorFDs(p tap.Profile) []string {
	return []string{"cloud-hypervisor", "--net", strings.Join([]string{"id=" + cloudHypervisorID, "fd={fd}", "mac=" + g.MAC, g.cloudHypervisorQueues(p)}, ",")}
}
