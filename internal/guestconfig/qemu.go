package guestconfig

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tapir-cni/tapir/tap"
)

// Bus is how QEMU attaches the card: virtio-net-pci on machines with PCI, virtio-net-device on those without.
type Bus string

// The buses. The zero value means BusPCI.
const (
	BusPCI  Bus = "pci"  // q35, pc
	BusMMIO Bus = "mmio" // microvm
)

// QEMUOptions are the choices that the attachment leaves open.
type QEMUOptions struct {
	Bus   Bus
	ID    string // of the netdev; "net0" where empty
	VHost bool   // use vhost-net; the node needs /dev/vhost-net
}

// QEMU gives the arguments that open the TAP by name, with exactly the queues it was made for. QEMU sets
// IFF_MULTI_QUEUE if and only if queues is given and above 1 (net/tap.c), so a TAP of one queue gets no queues=. QEMU enters no
// namespace: it is started in the TAP's.
//
// vectors is one receive and one transmit interrupt for each pair, one for the configuration and one for the control
// queue; virtio-mmio has a single interrupt and no such property.
func (g Guest) QEMU(o QEMUOptions) ([]string, error) {
	if err := g.Validate(); err != nil {
		return nil, fmt.Errorf("QEMU arguments: %w", err)
	}
	id := o.ID
	if id == "" {
		id = "net0"
	}
	netdev := []string{"tap", "id=" + id, "ifname=" + qemuValue(g.TAP), "script=no", "downscript=no"}
	p, err := tap.ProfileOf(tap.QEMU)
	if err != nil {
		return nil, err
	}
	if err := p.Check(g.Queues); err != nil {
		return nil, fmt.Errorf("QEMU arguments: %w", err)
	}
	if g.Queues > 1 {
		netdev = append(netdev, p.CountKey+"="+strconv.Itoa(p.Count(g.Queues)))
	}
	return g.qemuArgs(o, id, netdev), nil
}

// qemuArgs gives the netdev with what all of them have, and the card on it.
func (g Guest) qemuArgs(o QEMUOptions, id string, netdev []string) []string {
	device := []string{"virtio-net-pci"}
	if o.Bus == BusMMIO {
		device = []string{"virtio-net-device"}
	}
	device = append(device, "netdev="+id, "mac="+g.MAC)
	if g.Queues > 1 {
		device = append(device, "mq=on")
		if o.Bus != BusMMIO {
			device = append(device, "vectors="+strconv.Itoa(2*g.Queues+2))
		}
	}
	vhost := "vhost=off"
	if o.VHost {
		vhost = "vhost=on"
	}
	netdev = append(netdev, vhost)
	device = append(device, "host_mtu="+strconv.Itoa(g.MTU))
	return []string{"-netdev", strings.Join(netdev, ","), "-device", strings.Join(device, ",")}
}

// qemuValue escapes an option value: QEMU ends one at a comma and reads two as one.
func qemuValue(s string) string { return strings.ReplaceAll(s, ",", ",,") }
