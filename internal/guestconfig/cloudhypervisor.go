package guestconfig

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tapir-cni/tapir/tap"
)

// cloudHypervisorID names the card, so that a restore can give it other queues.
const cloudHypervisorID = "net0"

// CloudHypervisor gives the arguments for Cloud Hypervisor. Its num_queues counts receive and transmit queues apart,
// so it is twice the pairs: with the default of 2 a TAP of several pairs would be refused with EINVAL.
//
// Cloud Hypervisor also refuses more pairs than vCPUs: see [Guest.MinVCPUs].
func (g Guest) CloudHypervisor() ([]string, error) {
	if err := g.Validate(); err != nil {
		return nil, fmt.Errorf("cloud-hypervisor arguments: %w", err)
	}
	p, err := tap.ProfileOf(tap.CloudHypervisor)
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(g.TAP, `,"[]`) {
		return nil, fmt.Errorf("cloud-hypervisor arguments: the TAP's name %q holds a character that --net reads as its "+
			"own; set \"tapName\"", g.TAP)
	}
	return []string{"--net", strings.Join([]string{
		"id=" + cloudHypervisorID,
		"tap=" + g.TAP,
		"mac=" + g.MAC,
		g.cloudHypervisorQueues(p),
		"mtu=" + strconv.Itoa(g.MTU),
	}, ",")}, nil
}

func (g Guest) cloudHypervisorQueues(p tap.Profile) string {
	return p.CountKey + "=" + strconv.Itoa(p.Count(g.Queues))
}

// MinVCPUs is how many vCPUs the VM must boot with to use each queue pair. Cloud Hypervisor refuses to start with
// fewer (num_queues/2 <= --cpus boot); a guest under QEMU leaves the pairs above its vCPUs idle.
func (g Guest) MinVCPUs() int { return g.Queues }
