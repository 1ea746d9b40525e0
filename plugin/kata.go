package plugin

import (
	"fmt"
	"path/filepath"

	"github.com/tapir-cni/tapir/tap"
)

// scannedByKata is a pod whose interfaces Kata finds by looking into the sandbox: it wants one veth with addresses, and makes its own
// TAP. A TAP of tapir there would be an endpoint that it does not know (runtime-rs: network_with_netns.rs).
func (c *Config) scannedByKata() bool { return c.VMM == tap.Kata && c.Placement == PlacementPod }

// validateKata refuses what would have no effect on a pod that Kata scans. Keys that say what is so anyway are let through.
func (c *Config) validateKata(fs *faults) {
	if !c.scannedByKata() {
		return
	}
	const why = `"vmm": "kata" with placement "pod" gives no TAP: Kata makes its own`
	for _, k := range []struct {
		path, want string
		given      bool
	}{
		{"queues", "1; Kata's own network_queues says how many its TAP has", c.Queues != 1},
		{"tapName", "none", c.TapName != ""},
		{"owner", "none", c.Owner != nil},
		{"group", "none", c.Group != nil},
		{"txQueueLen", "it left out", c.TxQueueLen != defaults().TxQueueLen},
		{"result", fmt.Sprintf("%q or %q", LayoutCRI, LayoutPlain), c.Result == LayoutFirecracker},
		{"when", fmt.Sprintf("%q: with or without an annotation the pod gets the same", whenAlways), c.When == whenAnnotated},
	} {
		if k.given {
			fs.Add(k.path, fmt.Sprintf("want %s; %s", k.want, why))
		}
	}
}

// planKata refuses CNI_ARGS that a pod without a TAP could not follow, and says where the DAN file goes.
func (p *Plan) planKata(cfg *Config, a Args, argFaults *faults) {
	if cfg.scannedByKata() {
		for name, given := range map[string]bool{
			"TAP_QUEUES": a.Queues != nil && *a.Queues != 1, "TAP_NAME": a.TapName != "", "TAP_OWNER": a.Owner != nil, "TAP_GROUP": a.Group != nil,
		} {
			if given {
				argFaults.Add(argPath(name), `want none: "vmm": "kata" with placement "pod" gives no TAP`)
			}
		}
	}
	if cfg.VMM != tap.Kata || !p.OnHost {
		return
	}
	name, err := danName(p.Key.ContainerID)
	if err != nil {
		argFaults.Add("CNI_CONTAINERID", err.Error())
		return
	}
	p.DAN = filepath.Join(cfg.DANDir, name)
}
