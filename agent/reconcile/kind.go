// Package reconcile holds the node's attachments against the kernel, the runtime's sandboxes and the pinned maps: it removes what is dead and
// mends or reports what was changed since an ADD. It works by package plugin's own removal and apply, under the hold of the attachment, so that
// nothing is touched that is being added or removed, and keeps nothing: killed at any moment it begins again with a look at everything.
package reconcile

import (
	"fmt"
	"slices"

	"github.com/tapir-cni/tapir/plugin"
)

// Kind is what can be wrong: a [plugin.Property] that differs, or one of the kinds below.
type Kind string

// What can be left over.
const (
	SandboxGone    Kind = "sandbox-gone"    // an attachment whose network namespace is gone
	SandboxUnknown Kind = "sandbox-unknown" // an attachment of a pod whose sandbox the runtime does not have
	Unfinished     Kind = "unfinished"      // an attachment whose ADD died
	StrayEntry     Kind = "stray-entry"     // see [plugin.StrayKind]
	StrayShortcut  Kind = "stray-shortcut"
	StrayDevice    Kind = "stray-device"
	StrayLease     Kind = "stray-lease"
	StrayDAN       Kind = "stray-dan"
)

// Policy is what is done about a kind.
type Policy string

// The policies.
const (
	Repair Policy = "repair" // removed or put right, and told of
	Report Policy = "report" // told of
	Off    Policy = "off"    // not even looked at where that saves a look
)

// spec is the default of a kind, and whether there is a repair.
type spec struct {
	kind     Kind
	policy   Policy
	noRepair bool
}

// specs are all kinds. docs/reconcile.md says why a default is "report".
var specs = []spec{
	{kind: SandboxGone, policy: Repair},
	{kind: SandboxUnknown, policy: Repair},
	{kind: Unfinished, policy: Repair},
	{kind: StrayEntry, policy: Repair},
	{kind: StrayShortcut, policy: Repair},
	{kind: StrayDevice, policy: Report},
	{kind: StrayLease, policy: Report},
	{kind: StrayDAN, policy: Repair},
	{kind: Kind(plugin.PropertyPins), policy: Report, noRepair: true},
	{kind: Kind(plugin.PropertyEntry), policy: Repair},
	{kind: Kind(plugin.PropertyDevice), policy: Report, noRepair: true},
	{kind: Kind(plugin.PropertyLink), policy: Repair},
	{kind: Kind(plugin.PropertyTAP), policy: Report, noRepair: true},
	{kind: Kind(plugin.PropertyRing), policy: Report},
	{kind: Kind(plugin.PropertyQdisc), policy: Repair},
	{kind: Kind(plugin.PropertyProgram), policy: Repair},
	{kind: Kind(plugin.PropertyGateway), policy: Repair},
	{kind: Kind(plugin.PropertyNeighbour), policy: Repair},
	{kind: Kind(plugin.PropertyRoute), policy: Repair},
	{kind: Kind(plugin.PropertyForwarding), policy: Repair},
	{kind: Kind(plugin.PropertyRPFilter), policy: Repair},
	{kind: Kind(plugin.PropertyShortcut), policy: Repair},
	{kind: Kind(plugin.PropertyMasquerade), policy: Repair},
	{kind: Kind(plugin.PropertyDAN), policy: Repair},
	{kind: Kind(plugin.PropertyPod), policy: Report, noRepair: true},
}

// Kinds are all kinds, in the order of docs/reconcile.md.
func Kinds() []Kind {
	out := make([]Kind, 0, len(specs))
	for _, s := range specs {
		out = append(out, s.kind)
	}
	return out
}

// Policies are the kinds whose policy is not the default.
type Policies map[Kind]Policy

// Of is the policy of a kind.
func (p Policies) Of(k Kind) Policy {
	if policy, ok := p[k]; ok {
		return policy
	}
	for _, s := range specs {
		if s.kind == k {
			return s.policy
		}
	}
	return Report
}

// Validate reports what is wrong by add, with the path of each below prefix.
func (p Policies) Validate(prefix string, add func(path, text string)) {
	for k, policy := range p {
		i := slices.IndexFunc(specs, func(s spec) bool { return s.kind == k })
		switch {
		case i < 0:
			add(prefix+"."+string(k), fmt.Sprintf("want one of %q as key, got %q", Kinds(), k))
		case !slices.Contains([]Policy{Repair, Report, Off}, policy):
			add(prefix+"."+string(k), fmt.Sprintf("want %q, %q or %q, got %q", Repair, Report, Off, policy))
		case specs[i].noRepair && policy == Repair:
			add(prefix+"."+string(k), fmt.Sprintf("want %q or %q, since it has no repair, got %q", Report, Off, policy))
		}
	}
}
