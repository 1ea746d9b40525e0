package guestconfig

import "strings"

// All is a guest in every form, for machines. A form that this guest cannot take is empty, and Refused says why.
type All struct {
	Guest           Guest               `json:"guest"`
	MinVCPUs        int                 `json:"minVCPUs"`
	QEMU            []string            `json:"qemu,omitempty"`        // for a machine with PCI
	QEMUMicroVM     []string            `json:"qemuMicroVM,omitempty"` // for -M microvm
	Firecracker     *FirecrackerConfig  `json:"firecracker,omitempty"`
	CloudHypervisor []string            `json:"cloudHypervisor,omitempty"`
	FDs             map[string][]string `json:"fds,omitempty"`           // by VMM: the command that starts it with open queues
	Exec            map[string][]string `json:"exec,omitempty"`          // by VMM: that which starts it under the supervisor
	DAN             string              `json:"dan,omitempty"`           // Kata's file
	IPLine          string              `json:"ipLine,omitempty"`        // boot argument
	NetworkConfig   string              `json:"networkConfig,omitempty"` // YAML
	Refused         map[string]string   `json:"refused,omitempty"`       // by the JSON name of the form
}

// AllOptions gather the options of the single forms.
type AllOptions struct {
	QEMU        QEMUOptions // Bus is ignored: both are given
	Firecracker FirecrackerOptions
	IPLine      IPLineOptions
}

// All renders every form. It fails only where the guest itself is invalid.
func (g Guest) All(o AllOptions) (All, error) {
	if err := g.Validate(); err != nil {
		return All{}, err
	}
	all := All{Guest: g, MinVCPUs: g.MinVCPUs(), Refused: map[string]string{}}
	refuse := func(form string, err error) bool {
		if err != nil {
			all.Refused[form] = err.Error()
		}
		return err != nil
	}
	var err error
	o.QEMU.Bus = BusPCI
	all.QEMU, err = g.QEMU(o.QEMU)
	refuse("qemu", err)
	o.QEMU.Bus = BusMMIO
	all.QEMUMicroVM, err = g.QEMU(o.QEMU)
	refuse("qemuMicroVM", err)
	if fc, err := g.Firecracker(o.Firecracker); !refuse("firecracker", err) {
		all.Firecracker = &fc
	}
	all.CloudHypervisor, err = g.CloudHypervisor()
	refuse("cloudHypervisor", err)
	all.DAN = g.DAN
	if all.FDs, all.Exec, err = g.Starts(o.QEMU); err != nil {
		all.Refused["fds"] = err.Error()
	}
	all.IPLine, err = g.IPLine(o.IPLine)
	refuse("ipLine", err)
	all.NetworkConfig, err = g.NetworkConfig()
	refuse("networkConfig", err)
	if len(all.Refused) == 0 {
		all.Refused = nil
	}
	return all, nil
}

// ShellJoin writes args as one line for a POSIX shell, quoting only what needs it.
func ShellJoin(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		if a != "" && !strings.ContainsFunc(a, shellSpecial) {
			quoted[i] = a
			continue
		}
		quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

func shellSpecial(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_=,.:/+@%", r))
}
