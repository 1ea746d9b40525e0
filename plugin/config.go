package plugin

import (
	"encoding/json"

	"github.com/tapir-cni/tapir/ipam"
	"github.com/tapir-cni/tapir/tap"
)

// Config is the network configuration of tapir, the object in the "plugins" list of a conflist. docs/config.md is
// generated from it; the `default` tag is what an absent key means.
type Config struct {
	// Version of the CNI specification: 0.3.1, 0.4.0, 1.0.0 or 1.1.0.
	CNIVersion string `json:"cniVersion"`
	// Name of the network. Attachments, MACs and leases belong to it.
	Name string `json:"name"`
	// Always "tapir": the name of the binary.
	Type string `json:"type"`

	// Queue pairs of the TAP, 1 to 256. 1 makes a TAP without IFF_MULTI_QUEUE, more makes one with it; a VMM must open it the same way.
	Queues int `json:"queues" default:"1"`
	// The VMM that will open the TAP: generic, firecracker (queues 1 only), cloud-hypervisor, qemu or kata. Sets limits and what guest-config prints. kata: placement pod gives a veth with addresses and no TAP, placement host writes Kata's DAN file (docs/kata.md).
	VMM string `json:"vmm" default:"generic"`
	// Whether the queues that tapir hands over or supervises run NAPI.
	NAPI bool `json:"napi" default:"true"`
	// Which pods get a TAP: always, or annotated (only those with the annotation tapir.dev/tap: "true" or CNI_ARGS TAP=1; others get an addressed veth).
	When string `json:"when" default:"always"`
	// Where the TAP stands: pod (in the sandbox's network namespace) or host (in the node's, routed, without a veth; not after another plugin).
	Placement string `json:"placement" default:"pod"`
	// Name of the TAP, at most 15 bytes. Empty: "tap-" and CNI_IFNAME, hashed where that is longer than 15 bytes; with placement host a hash that is unique on the node. With placement host it must be free on the node and not start with "tpr".
	TapName string `json:"tapName" default:"\"\""`
	// MTU of TAP and veth in bytes, 68 to 65521, with IPv6 at least 1280. 0: the MTU of the default route's device.
	MTU int `json:"mtu" default:"0"`
	// MAC of the guest, unicast. Empty: derived from network, container id and CNI_IFNAME.
	MAC string `json:"mac" default:"\"\""`
	// An identity that the guest brings along, the same in each clone of a snapshot. The pod keeps its own addresses; tapir translates between both (below). Not with placement host, vmm kata, or after another plugin.
	Guest *GuestConfig `json:"guest" default:"none"`
	// How the guest gets its addresses: none (it is told by the VMM, or has them), or dhcp: refused until tapir answers DHCP at the TAP.
	GuestConfig string `json:"guestConfig" default:"none"`
	// User id that may open the TAP. Where neither owner nor group is given the owner is 0.
	Owner *int `json:"owner" default:"0"`
	// Group id that may open the TAP. Where both are given the kernel wants both to match.
	Group *int `json:"group" default:"none"`
	// Length of the TAP's ring towards the guest, in frames, 1 to 65536.
	TxQueueLen int `json:"txQueueLen" default:"1000"`
	// Whether frames that the guest sends from a MAC or address that is not its own are dropped.
	SpoofCheck bool `json:"spoofCheck" default:"true"`
	// Whether what the pod sends out of the node's pod ranges gets the node's address.
	IPMasq bool `json:"ipMasq" default:"false"`
	// Destinations that are reached without masquerade, beside the network's own ranges, link-local and multicast.
	NonMasqueradeCIDRs []string `json:"nonMasqueradeCIDRs" default:"[]"`
	// How frames get from the TAP to the veth and back: clsact, tcx (Linux 6.6 or newer; slower to ADD and DEL) or auto: clsact on devices that tapir made; on the interface of another plugin tcx, or the end of the filters that are there.
	Redirect string `json:"redirect" default:"auto"`
	// The shortcut between guests of this node, and to other nodes (docs/xdp.md). Not after another plugin, nor without a veth: placement host, vmm kata.
	XDP XDPConfig `json:"xdp"`
	// Layout of the result: cri, firecracker or plain.
	Result string `json:"result" default:"cri"`
	// Folder of attachments and leases; belongs on a tmpfs.
	StateDir string `json:"stateDir" default:"/run/tapir"`
	// Folder of Kata's directly attachable networks, its "dan_conf" (vmm kata with placement host). Made with mode 0700 where it is missing.
	DANDir string `json:"danDir" default:"/run/kata-containers/dans"`
	// Address management: tapir-ipam, in process, or any other IPAM plugin, which is executed and has keys of its own. Absent after another plugin.
	IPAM json.RawMessage `json:"ipam"`

	// What pods may choose by annotations with the prefix tapir.dev/: queues, mac, ip, profile, xdp (below). Any other annotation with the prefix, and one that is malformed, is refused.
	PodAnnotations []string `json:"podAnnotations" default:"[]"`

	// DNS of the guest, as in the CNI result.
	DNS DNSConfig `json:"dns"`
	// Capabilities that the runtime may fill in runtimeConfig: mac, ips, ipRanges, dns, bandwidth, io.kubernetes.cri.pod-annotations.
	Capabilities map[string]bool `json:"capabilities" default:"{}"`
	// What the runtime filled in; written by the runtime, not by people.
	RuntimeConfig RuntimeConfig `json:"runtimeConfig"`
	// The result of the plugin before, to whose interface the TAP is added; written by the runtime.
	PrevResult json.RawMessage `json:"prevResult" default:"none"`
	// Arguments by the old "args" convention: cni.ips, cni.mac. Others are ignored.
	Args json.RawMessage `json:"args" default:"none"`
	// Attachments that GC keeps; written by the runtime.
	ValidAttachments json.RawMessage `json:"cni.dev/valid-attachments" default:"none"`
	// The older name of cni.dev/valid-attachments; written by the runtime.
	Attachments json.RawMessage `json:"cni.dev/attachments" default:"none"`
}

// GuestConfig is the key "guest": what the guest has inside, whatever its pod is called outside.
type GuestConfig struct {
	// The guest's MAC. Others of the network may have the same. Empty: as without an identity.
	MAC string `json:"mac" default:"\"\""`
	// The guest's IPv4 address with its prefix length, as in 172.16.0.2/30. Empty: the guest has the pod's.
	IP string `json:"ip" default:"\"\""`
	// The guest's IPv4 gateway, inside the prefix or link-local. It goes with ip.
	Gateway string `json:"gateway" default:"\"\""`
	// The guest's IPv6 address with its prefix length. Empty: the guest has the pod's.
	IP6 string `json:"ip6" default:"\"\""`
	// The guest's IPv6 gateway, inside the prefix or link-local. It goes with ip6.
	Gateway6 string `json:"gateway6" default:"\"\""`
}

// XDPConfig is the key "xdp".
type XDPConfig struct {
	// off, native, generic, or auto: native where the kernel has what it needs, else generic, else off, and the attachment's record says why. native and generic fail with code 101 there.
	Mode string `json:"mode" default:"off"`
	// The node's NIC, for the short way to other nodes. It is shared by all attachments and stays an uplink. Empty: none.
	Uplink string `json:"uplink" default:"\"\""`
}

// DNSConfig is the key "dns" (CNI specification, section 1).
type DNSConfig struct {
	// Addresses of name servers, in the order they are asked.
	Nameservers []string `json:"nameservers" default:"[]"`
	// The local domain.
	Domain string `json:"domain" default:"\"\""`
	// Search domains.
	Search []string `json:"search" default:"[]"`
	// Resolver options.
	Options []string `json:"options" default:"[]"`
}

// RuntimeConfig is the key "runtimeConfig": what the runtime fills in for the capabilities of the configuration.
type RuntimeConfig struct {
	// Guest MAC (capability mac).
	MAC string `json:"mac" default:"\"\""`
	// Requested addresses, each with or without a prefix length (capability ips).
	IPs []string `json:"ips" default:"[]"`
	// Range sets used before the configuration's own (capability ipRanges).
	IPRanges [][]ipam.Range `json:"ipRanges" default:"[]"`
	// Name servers of the pod (capability dns).
	DNS RuntimeDNS `json:"dns"`
	// Annotations of the pod (capability io.kubernetes.cri.pod-annotations).
	PodAnnotations map[string]string `json:"io.kubernetes.cri.pod-annotations" default:"{}"`
	// Limits (capability bandwidth). Refused with placement host; refused after another plugin, where the bandwidth plugin belongs after tapir.
	Bandwidth *BandwidthConfig `json:"bandwidth" default:"none"`
	// Refused: put the portmap plugin after tapir in the list.
	PortMappings json.RawMessage `json:"portMappings" default:"none"`
}

// RuntimeDNS is what the runtime fills in for the capability dns.
type RuntimeDNS struct {
	// Addresses of name servers.
	Servers []string `json:"servers" default:"[]"`
	// Search domains.
	Searches []string `json:"searches" default:"[]"`
	// Resolver options.
	Options []string `json:"options" default:"[]"`
}

// BandwidthConfig is what the runtime fills in for the capability bandwidth. A rate needs a burst, and the other way round.
type BandwidthConfig struct {
	// What the guest may receive, in bits a second; 0 is no limit.
	IngressRate uint64 `json:"ingressRate" default:"0"`
	// How much of that may come at once, in bits; a burst shorter than a frame counts as one.
	IngressBurst uint64 `json:"ingressBurst" default:"0"`
	// What the guest may send, in bits a second; 0 is no limit.
	EgressRate uint64 `json:"egressRate" default:"0"`
	// How much of that may go at once, in bits.
	EgressBurst uint64 `json:"egressBurst" default:"0"`
}

// DefaultStateDir is where attachments and leases are kept.
const DefaultStateDir = "/run/tapir"

// DefaultDANDir is where Kata looks for its files of directly attachable networks ("dan_conf" of its configuration).
const DefaultDANDir = "/run/kata-containers/dans"

// defaults is the configuration of an object without keys.
func defaults() Config {
	return Config{
		Queues: 1, VMM: tap.Generic, NAPI: true, When: whenAlways, Placement: PlacementPod, GuestConfig: guestConfigNone, TxQueueLen: 1000, SpoofCheck: true,
		Redirect: redirectAuto, XDP: XDPConfig{Mode: "off"}, Result: LayoutCRI, StateDir: DefaultStateDir,
		DANDir: DefaultDANDir,
	}
}
