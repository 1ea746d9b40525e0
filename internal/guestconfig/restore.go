package guestconfig

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tapir-cni/tapir/tap"
)

// RestoreOptions are the choices that the attachment leaves open.
type RestoreOptions struct {
	// Snapshot is the path of what was saved: Firecracker's and Cloud Hypervisor's folder, QEMU's file. Default: /srv/snapshot.
	Snapshot string
	QEMU     QEMUOptions // Bus is ignored: both are given
}

// defaultSnapshot stands where the user's path goes.
const defaultSnapshot = "/srv/snapshot"

// Restore is what each VMM must be told to bring a snapshot up on the attachment's TAP. A form that cannot be is empty, and Refused says
// why.
type Restore struct {
	Firecracker *FirecrackerLoad `json:"firecracker,omitempty"`

	// By name the VMM finds a TAP of the name that the snapshot knows; with FDs it is given the queues.
	CloudHypervisor    []string `json:"cloudHypervisor,omitempty"`
	CloudHypervisorFDs []string `json:"cloudHypervisorFDs,omitempty"`

	QEMU           []string `json:"qemu,omitempty"`        // for a machine with PCI, beside what else the saved one had
	QEMUMicroVM    []string `json:"qemuMicroVM,omitempty"` // for -M microvm
	QEMUFDs        []string `json:"qemuFDs,omitempty"`
	QEMUMicroVMFDs []string `json:"qemuMicroVMFDs,omitempty"`

	Warnings []string          `json:"warnings,omitempty"` // what a restored guest will miss
	Refused  map[string]string `json:"refused,omitempty"`  // by the JSON name of the form
}

// FirecrackerLoad is the body of Firecracker's PUT /snapshot/load. The snapshot names the TAP that it was taken with; the override names
// this attachment's. The MAC cannot be overridden: it is in the guest's memory.
type FirecrackerLoad struct {
	SnapshotPath     string                `json:"snapshot_path"`
	MemBackend       FirecrackerMemory     `json:"mem_backend"`
	NetworkOverrides []FirecrackerOverride `json:"network_overrides"`
	ResumeVM         bool                  `json:"resume_vm"`
}

// FirecrackerMemory is where the guest's memory is.
type FirecrackerMemory struct {
	Type string `json:"backend_type"` // "File"
	Path string `json:"backend_path"`
}

// FirecrackerOverride gives a card of the snapshot another TAP.
type FirecrackerOverride struct {
	IfaceID     string `json:"iface_id"` // as at the boot, by [Guest.Firecracker]
	HostDevName string `json:"host_dev_name"`
}

// JSON is the body, indented, with a newline at the end.
func (l FirecrackerLoad) JSON() string {
	b, _ := json.MarshalIndent(l, "", "  ") // strings and a bool: this cannot fail
	return string(b) + "\n"
}

// Restore renders every form. It fails only where the guest itself is invalid.
func (g Guest) Restore(o RestoreOptions) (Restore, error) {
	if err := g.Validate(); err != nil {
		return Restore{}, fmt.Errorf("restore: %w", err)
	}
	if o.Snapshot == "" {
		o.Snapshot = defaultSnapshot
	}
	r := Restore{Refused: map[string]string{}, Warnings: g.restoreWarnings()}
	refuse := func(err error, forms ...string) bool {
		for _, form := range forms {
			if err != nil {
				r.Refused[form] = err.Error()
			}
		}
		return err != nil
	}
	if !refuse(refusal(tap.Firecracker, g.Queues), "firecracker") {
		r.Firecracker = &FirecrackerLoad{
			SnapshotPath: o.Snapshot + "/vmstate", MemBackend: FirecrackerMemory{"File", o.Snapshot + "/memory"}, ResumeVM: true,
			NetworkOverrides: []FirecrackerOverride{{firecrackerID(g.IfName), g.TAP}},
		}
	}
	_, err := g.CloudHypervisor()
	if !refuse(err, "cloudHypervisor") {
		r.CloudHypervisor = g.inNetns([]string{"cloud-hypervisor", "--api-socket", "ch.sock", "--restore", "source_url=file://" + o.Snapshot})
	}
	if err := g.restoreQEMU(&r, o); err != nil {
		refuse(err, "qemu", "qemuMicroVM")
	}
	if why := g.noFDs(); why != nil {
		refuse(why, "cloudHypervisorFDs", "qemuFDs", "qemuMicroVMFDs")
	} else {
		r.CloudHypervisorFDs = g.fds("cloud-hypervisor", "--api-socket", "ch.sock", "--restore", "source_url=file://"+o.Snapshot+",net_fds=["+cloudHypervisorID+"@{fd}]")
		r.QEMUFDs = g.fds(append(g.qemuFDs(tap.Profile{}, withBus(o.QEMU, BusPCI)), incoming(o.Snapshot)...)...)
		r.QEMUMicroVMFDs = g.fds(append(g.qemuFDs(tap.Profile{}, withBus(o.QEMU, BusMMIO)), incoming(o.Snapshot)...)...)
	}
	if len(r.Refused) == 0 {
		r.Refused = nil
	}
	return r, nil
}

func withBus(o QEMUOptions, bus Bus) QEMUOptions {
	o.Bus = bus
	return o
}

// incoming are the arguments by which QEMU reads what "migrate exec:cat>FILE" wrote. The URI "file:" is known from 8.2 on alone.
func incoming(path string) []string {
	return []string{"-incoming", "exec:cat '" + strings.ReplaceAll(path, "'", `'\''`) + "'"}
}

func (g Guest) restoreQEMU(r *Restore, o RestoreOptions) error {
	pci, err := g.QEMU(withBus(o.QEMU, BusPCI))
	if err != nil {
		return err
	}
	mmio, err := g.QEMU(withBus(o.QEMU, BusMMIO))
	if err != nil {
		return err
	}
	r.QEMU, r.QEMUMicroVM = append(pci, incoming(o.Snapshot)...), append(mmio, incoming(o.Snapshot)...)
	return nil
}

// restoreWarnings say what of the snapshot's memory will not fit here.
func (g Guest) restoreWarnings() []string {
	if g.Fixed {
		return nil
	}
	return []string{`the guest wakes up with the MAC and the addresses that it had when it was saved, and this pod has its own: give the network's configuration a "guest" with a mac and an address of each family, ` +
		`or what the guest sends is dropped`}
}
