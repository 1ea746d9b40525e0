package plugin

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/tapir-cni/tapir/ipam"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// tapAnnotation opts a pod in where "when" is "annotated".
const tapAnnotation = podPrefix + choiceTAP

// Plan is what an ADD will do, decided from the configuration and the CNI arguments alone. Addresses, ifindexes, the
// MTU of the default route and the redirect method are filled in when the plan is carried out.
type Plan struct {
	Key      state.Key
	Netns    string // CNI_NETNS
	StateDir string

	PodName, PodNamespace string // as CNI_ARGS name the pod

	// Plain is a pod without a TAP: the veth's pod end carries the addresses.
	Plain bool
	// OnHost is a TAP in the host's netns and no veth.
	OnHost   bool
	TapName  string
	HostName string // of the veth's end in the host netns
	DAN      string // the file by which Kata finds the TAP; empty: none
	DANDir   string
	Queues   int
	Owner    *int
	Group    *int
	TxQueue  int
	NoNAPI   bool
	Profile  string // of the agent's tuner
	VMM      string
	MAC      net.HardwareAddr
	FixedMAC bool            // of a snapshot: other guests of the network may have it
	Inside   []state.Address // what the guest has in place of the pod's address of the family
	MTU      int             // 0: the default route's device
	DNS      state.DNS
	Layout   string
	Redirect string

	XDP       xdp.Mode // empty: off
	Uplink    string   // of the shortcut; empty: none
	Bandwidth *state.Bandwidth

	SpoofCheck bool
	Masquerade bool
	NoMasq     []string // nonMasqueradeCIDRs

	// Chained is an ADD after another plugin, to whose interface the TAP is added.
	Chained bool
	prev    *current.Result
	wanted  []netip.Addr // addresses that its interface must have

	Delegate string // the IPAM plugin to execute; empty: in process, by IPAM
	stdin    []byte // the configuration, for that plugin
	IPAM     ipam.Request
	Routes   []state.Route  // of the guest
	Subnets  []netip.Prefix // of all ranges
}

// newPlan turns a configuration and the CNI arguments into a plan, or returns every fault of both at once. chained tells
// whether tapir is called after another plugin.
func newPlan(cfg *Config, cfgFaults faults, args *skel.CmdArgs, chained bool) (*Plan, error) {
	a, argFaults := parseArgs(args.Args)
	conv, convFaults := parseConventions(cfg.Args)
	fs := slices.Concat(cfgFaults, cfg.validate(), convFaults)

	p := &Plan{
		Key:      state.Key{Network: cfg.Name, ContainerID: args.ContainerID, IfName: args.IfName},
		Netns:    args.Netns,
		StateDir: cfg.StateDir, PodName: a.PodName, PodNamespace: a.PodNamespace,
		Plain:  cfg.When == whenAnnotated && !cfg.optedIn(a) || cfg.scannedByKata(),
		DANDir: cfg.DANDir,
		Queues: cfg.Queues, Owner: cfg.Owner, Group: cfg.Group, TxQueue: cfg.TxQueueLen, NoNAPI: !cfg.NAPI, VMM: cfg.VMM,
		MTU: cfg.MTU, DNS: cfg.dns(), Layout: cfg.Result, Redirect: cfg.Redirect,
		SpoofCheck: cfg.SpoofCheck, Masquerade: cfg.IPMasq, NoMasq: cfg.NonMasqueradeCIDRs, stdin: args.StdinData,
	}
	p.OnHost = cfg.Placement == PlacementHost && !p.Plain
	checkAlias(&fs, p.Key)
	checkDeviceName(&argFaults, "CNI_IFNAME", args.IfName)
	if !filepath.IsAbs(args.Netns) {
		// It is recorded, and DEL or the clean-up may run elsewhere.
		argFaults.Add("CNI_NETNS", fmt.Sprintf("want an absolute path, got %q", args.Netns))
	}
	p.HostName = hostName(p.Key)
	if p.Chained = chained; p.Chained && present(cfg.PrevResult) {
		var err error
		if p.prev, err = parsePrev(cfg.PrevResult, cfg.CNIVersion); err != nil {
			fs.Add("prevResult", err.Error())
		}
	}
	ch := cfg.podChoices(&fs)
	p.planChoices(cfg, ch, &fs)
	p.planTap(cfg, a, ch, &fs, &argFaults)
	p.planKata(cfg, a, &argFaults)
	p.planShortcut(cfg, ch)
	p.planBandwidth(cfg, &fs)
	p.planMAC(cfg, a, ch, conv, &fs, &argFaults)
	p.planGuest(cfg, a, ch, &fs, &argFaults)
	if p.Chained {
		p.planForeign(cfg, a, ch, conv, &fs, &argFaults)
	} else {
		p.planIPAM(cfg, a, ch, conv, &fs)
	}
	if len(fs) > 0 {
		return nil, refuse(types.ErrInvalidNetworkConfig, append(fs, argFaults...))
	}
	return p, refuse(types.ErrInvalidEnvironmentVariables, argFaults)
}

// optedIn reports whether the pod asked for a TAP.
func (c *Config) optedIn(a Args) bool {
	if a.TAP != nil {
		return *a.TAP
	}
	return c.RuntimeConfig.PodAnnotations[tapAnnotation] == "true"
}

func (p *Plan) planTap(cfg *Config, a Args, ch choices, fs, argFaults *faults) {
	if ch.queues != nil {
		p.Queues = *ch.queues
	}
	if a.Queues != nil {
		p.Queues = *a.Queues
		checkQueues(argFaults, argPath("TAP_QUEUES"), cfg.VMM, p.Queues)
	}
	if a.Owner != nil || a.Group != nil {
		p.Owner, p.Group = a.Owner, a.Group
		checkID(argFaults, argPath("TAP_OWNER"), a.Owner)
		checkID(argFaults, argPath("TAP_GROUP"), a.Group)
	}
	if p.Owner == nil && p.Group == nil {
		// Without either, any uid that can open the device node could attach to the TAP.
		p.Owner = new(int)
	}
	derived := derivedTapName(p.Key.IfName)
	if p.OnHost {
		derived = hostTapName(p.Key)
	}
	p.TapName = cmp.Or(a.TapName, cfg.TapName, derived)
	if a.TapName != "" {
		checkDeviceName(argFaults, argPath("TAP_NAME"), a.TapName)
		checkHostTapName(argFaults, argPath("TAP_NAME"), a.TapName, p.OnHost)
	}
	if p.TapName == p.Key.IfName && !p.OnHost {
		fs.Add("tapName", fmt.Sprintf("want a name that is not CNI_IFNAME, which the veth has, got %q", p.TapName))
	}
}

func (p *Plan) planMAC(cfg *Config, a Args, ch choices, conv conventions, fs, argFaults *faults) {
	checkMAC(argFaults, argPath("MAC"), a.MAC)
	checkMAC(fs, "args.cni.mac", conv.MAC)
	given := cmp.Or(cfg.RuntimeConfig.MAC, conv.MAC, a.MAC, ch.mac, cfg.MAC)
	if given == "" {
		if !p.Chained { // then it is the interface's
			p.MAC = derivedMAC(p.Key)
		}
		return
	}
	mac, err := parseMAC(given)
	if err != nil {
		return // reported where it was given
	}
	if bytes.Equal(mac, xdp.GatewayMAC) && given != ch.mac {
		fs.Add("mac", fmt.Sprintf("want a MAC that is not the gateway's, got %q", given))
	}
	p.MAC = mac
}

func (p *Plan) planIPAM(cfg *Config, a Args, ch choices, conv conventions, fs *faults) {
	switch t := ipamTypeOf(cfg.IPAM); {
	case !present(cfg.IPAM):
		fs.Add("ipam", `is missing; want {"type": "tapir-ipam", "ranges": [[{"subnet": "10.9.0.0/24"}]]}`)
		return
	case t == "":
		fs.Add("ipam.type", fmt.Sprintf("want %q or the name of another IPAM plugin", ipamType))
		return
	case t != ipamType:
		p.Delegate = t
		if len(ch.ips) > 0 {
			fs.Add(annotationPath(choiceIP), fmt.Sprintf("want none with IPAM plugin %q, which does not read it", t))
		}
		return
	}
	own, problems := ownIPAM(cfg.IPAM)
	*fs = append(*fs, problems...)
	if dir := own.StateDir; dir != "" && dir != cfg.StateDir {
		fs.Add("ipam.stateDir", fmt.Sprintf("want the same as stateDir, %q, got %q", cfg.StateDir, dir))
	}
	more, problems := ipam.ParseRanges(cfg.RuntimeConfig.IPRanges, "runtimeConfig.ipRanges")
	*fs = append(*fs, problems...)
	set, problems := own.Validate(more...)
	*fs = append(*fs, problems.Under("ipam")...)
	p.IPAM = ipam.Request{Key: p.Key, Sets: set.Sets, ReuseDelay: set.ReuseDelay}
	if set.Sticky {
		p.IPAM.Pod = state.Pod{Namespace: a.PodNamespace, Name: a.PodName}
	}
	p.Routes = set.Routes
	if a.IP != "" {
		p.IPAM.Addresses = strings.Split(a.IP, ",")
	}
	p.IPAM.Addresses = slices.Concat(p.IPAM.Addresses, conv.IPs, cfg.RuntimeConfig.IPs)
	p.planChosenIPs(ch, fs)
	for _, s := range set.Sets {
		p.Subnets = append(p.Subnets, s.Subnets()...)
	}
	if len(problems) == 0 {
		*fs = append(*fs, p.insideFaults(p.countSets)...)
	}
	if p.MTU != 0 && p.MTU < minIPv6MTU && hasIPv6(p.Subnets) {
		fs.Add("mtu", fmt.Sprintf("want at least %d with IPv6 ranges, got %d", minIPv6MTU, p.MTU))
	}
}

// noMasq are the destinations that keep the pod's own address: the network's ranges, what the configuration names,
// link-local and multicast.
func noMasq(subnets []netip.Prefix, cidrs []string) []netip.Prefix {
	out := []netip.Prefix{
		netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/4"),
		netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
	}
	out = append(out, subnets...)
	for _, s := range cidrs {
		if prefix, err := netip.ParsePrefix(s); err == nil { // a bad one is reported by validate
			out = append(out, prefix.Masked())
		}
	}
	return out
}

// dns is what the guest resolves names by: the runtime's word goes before the configuration's.
func (c *Config) dns() state.DNS {
	d := state.DNS{Nameservers: c.DNS.Nameservers, Domain: c.DNS.Domain, Search: c.DNS.Search, Options: c.DNS.Options}
	r := c.RuntimeConfig.DNS
	if len(r.Servers)+len(r.Searches)+len(r.Options) > 0 {
		d = state.DNS{Nameservers: r.Servers, Search: r.Searches, Options: r.Options}
	}
	return d
}

// conventions is the "args" key's part for CNI (CNI conventions, "args"): {"cni": {"ips": […], "mac": "…"}}.
type conventions struct {
	IPs []string `json:"ips"`
	MAC string   `json:"mac"`
}

func parseConventions(raw json.RawMessage) (conventions, faults) {
	var a struct {
		CNI conventions `json:"cni"`
	}
	if !present(raw) {
		return a.CNI, nil
	}
	var fs faults
	if err := json.Unmarshal(raw, &a); err != nil {
		fs.Add("args.cni", err.Error())
	}
	return a.CNI, fs
}

// digest is a hash of the key that is the same on every node and in every version.
func digest(purpose string, key state.Key) [sha256.Size]byte {
	return sha256.Sum256([]byte(purpose + "\x00" + key.Network + "\x00" + key.ContainerID + "\x00" + key.IfName))
}

// derivedMAC is the guest's MAC where none is given: the same for the same key, unicast, locally administered.
func derivedMAC(key state.Key) net.HardwareAddr {
	sum := digest("guest mac", key)
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	if bytes.Equal(mac, xdp.GatewayMAC) {
		mac[5] ^= 1
	}
	return mac
}

// hostName is the name of the veth's host end, unique on the node.
func hostName(key state.Key) string {
	sum := digest("host end", key)
	return "tpr" + hex.EncodeToString(sum[:6])
}

// hostTapName is the name of a TAP in the host's netns, unique on the node. No host end has it: a 't' is no hexadecimal digit.
func hostTapName(key state.Key) string {
	sum := digest("host tap", key)
	const prefix = hostEndPrefix + "t"
	return prefix + hex.EncodeToString(sum[:])[:maxNameLen-len(prefix)]
}

// derivedTapName is "tap-" and the interface's name, hashed where that is too long: a name is never cut.
func derivedTapName(ifName string) string {
	const prefix = "tap-"
	if len(prefix)+len(ifName) <= maxNameLen {
		return prefix + ifName
	}
	sum := sha256.Sum256([]byte(ifName))
	return prefix + hex.EncodeToString(sum[:])[:maxNameLen-len(prefix)]
}
