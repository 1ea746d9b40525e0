package tap

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The VMMs that a network configuration may name.
const (
	Generic         = "generic"
	Firecracker     = "firecracker"
	CloudHypervisor = "cloud-hypervisor"
	QEMU            = "qemu"
	Kata            = "kata"
)

// Profile is how a VMM opens a TAP, in its own terms. All that are known ask for IFF_TAP, IFF_NO_PI and IFF_VNET_HDR, for
// IFF_MULTI_QUEUE if and only if they open more than one queue, and never for IFF_NAPI.
type Profile struct {
	VMM        string
	Title      string // as its makers write it
	MaxQueues  int    // queues of a TAP that it can open, each a pair of the guest's
	CountKey   string // its option for the number of queues; empty where it has no word for it
	CountsBoth bool   // that option counts receive and transmit queues apart: twice the queues of the TAP
	FDs        bool   // takes open queues instead of a name
	OwnTAP     bool   // makes a TAP of its own in a pod's namespace and opens one of tapir only in the host's

	maxReason string
	fdKey     func(fds []string) string
	noFDs     string // why it takes none
}

// profiles are from the VMMs' sources: firecracker src/vmm/src/devices/virtio/net/tap.rs; cloud-hypervisor net_util/src/open_tap.rs
// and vmm/src/config.rs; qemu net/tap.c and net/tap-linux.c; kata runtime-rs crates/resource/src/network/dan.rs.
var profiles = []Profile{
	{VMM: Generic, Title: "the VMM", MaxQueues: MaxQueues, FDs: true},
	{
		VMM: Firecracker, Title: "Firecracker", MaxQueues: 1,
		maxReason: "never asks for IFF_MULTI_QUEUE, so the kernel would refuse it with EINVAL",
		noFDs:     "opens its TAP by name alone",
	},
	{
		VMM: CloudHypervisor, Title: "Cloud Hypervisor", MaxQueues: MaxQueues, CountKey: "num_queues", CountsBoth: true, FDs: true,
		fdKey: func(fds []string) string { return "fd=[" + strings.Join(fds, ",") + "]" },
	},
	{
		VMM: QEMU, Title: "QEMU", MaxQueues: MaxQueues, CountKey: "queues", FDs: true,
		fdKey: func(fds []string) string {
			if len(fds) == 1 {
				return "fd=" + fds[0]
			}
			return "fds=" + strings.Join(fds, ":")
		},
	},
	{
		VMM: Kata, Title: "Kata Containers", MaxQueues: MaxQueues, CountKey: "queue_num", OwnTAP: true,
		noFDs: "opens a TAP of its DAN file by name, and makes its own where there is no such file",
	},
}

// ProfileOf gives the profile of a VMM by the name that a network configuration gives it; "" is [Generic].
func ProfileOf(vmm string) (Profile, error) {
	if vmm == "" {
		vmm = Generic
	}
	names := make([]string, len(profiles))
	for i, p := range profiles {
		if p.VMM == vmm {
			return p, nil
		}
		names[i] = p.VMM
	}
	return Profile{}, fmt.Errorf("vmm: want one of %s, got %q", strings.Join(names, ", "), vmm)
}

// Check refuses what the VMM cannot open, with the reason and the way out.
func (p Profile) Check(queues int) error {
	switch {
	case queues < 1 || queues > MaxQueues:
		return fmt.Errorf("queues: want 1 to %d, got %d", MaxQueues, queues)
	case queues > p.MaxQueues:
		return fmt.Errorf("the TAP has %d queues and %s %s; set \"queues\": %d", queues, p.Title, p.maxReason, p.MaxQueues)
	}
	return nil
}

// Count is the number of queues in the VMM's own unit, for the option [Profile.CountKey].
func (p Profile) Count(queues int) int {
	if p.CountsBoth {
		return 2 * queues
	}
	return queues
}

// FDOption is the VMM's option that takes those open queues, "fds=3:4" or "fd=[3,4]", or the reason why there is none. Cloud Hypervisor
// takes descriptors above 2 only.
func (p Profile) FDOption(fds []int) (string, error) {
	if err := p.Check(len(fds)); err != nil {
		return "", err
	}
	if !p.FDs {
		return "", fmt.Errorf("%s takes no open queues: it %s", p.Title, p.noFDs)
	}
	if p.fdKey == nil {
		return "", errors.New(`how the VMM takes open queues is not known; name it by "vmm"`)
	}
	texts := make([]string, len(fds))
	for i, fd := range fds {
		if fd <= 2 {
			return "", fmt.Errorf("queue %d: want a descriptor above 2, got %d: it would be the VMM's own input or output", i, fd)
		}
		texts[i] = strconv.Itoa(fd)
	}
	return p.fdKey(texts), nil
}
