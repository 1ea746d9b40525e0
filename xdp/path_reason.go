package xdp

import "fmt"

// ShortcutReason is what a program of the shortcut made of a frame: enum path_reason of bpf/shortcut.h, which says what
// each means, and the hook that counted it. Each frame that a program saw is counted under exactly one of its hook, and
// beside it under [ShortcutReason.Beside] ones.
type ShortcutReason uint32

// Hook is where a program of the shortcut ran.
type Hook uint32

// The hooks of enum path_hook in bpf/shortcut.h.
const (
	HookUnknown   = Hook(shortcutPathHookHOOK_UNKNOWN)
	HookTAPXDP    = Hook(shortcutPathHookHOOK_TAP_XDP)
	HookHostTC    = Hook(shortcutPathHookHOOK_HOST_TC)
	HookUplinkXDP = Hook(shortcutPathHookHOOK_UPLINK_XDP)
)

func (h Hook) String() string {
	switch h {
	case HookTAPXDP:
		return "tap-xdp"
	case HookHostTC:
		return "host-tc"
	case HookUplinkXDP:
		return "uplink-xdp"
	}
	return "unknown"
}

const (
	pathSlots   = len(shortcutPathCounts{}.ByHook[0])
	tcReasons   = ShortcutReason(pathSlots) // from here on: counted by tc on the host end
	tcPrefix    = "tc_"
	xdpPrefix   = "xdp_"
	xdpToGuest  = ShortcutReason(shortcutPathReasonPATH_TO_GUEST)
	xdpToUplink = ShortcutReason(shortcutPathReasonPATH_TO_UPLINK)
)

// The reasons that say a frame took the shortcut. An uplink's XDP program counts under the uplink's ifindex.
const (
	ShortcutXDPToGuest  = xdpToGuest
	ShortcutXDPToUplink = xdpToUplink
	ShortcutTCToGuest   = tcReasons + xdpToGuest
	ShortcutTCToUplink  = tcReasons + xdpToUplink
)

// What is counted beside.
const (
	ShortcutChecksumCompleted = ShortcutReason(shortcutPathReasonPATH_CHECKSUM_COMPLETED)
	ShortcutXDPLookedUp       = ShortcutReason(shortcutPathReasonPATH_LOOKED_UP)
	ShortcutTCLookedUp        = tcReasons + ShortcutReason(shortcutPathReasonPATH_LOOKED_UP)
)

// pathNames are also the label values of the metrics, behind "xdp_" or "tc_": they do not change.
var pathNames = [shortcutPathReasonPATH_MAX]string{
	shortcutPathReasonPATH_UNKNOWN:            "unknown",
	shortcutPathReasonPATH_TO_GUEST:           "to_guest",
	shortcutPathReasonPATH_TO_UPLINK:          "to_uplink",
	shortcutPathReasonPATH_CHECKSUM_COMPLETED: "checksum_completed",
	shortcutPathReasonPATH_LOOKED_UP:          "conntrack_lookup",
	shortcutPathReasonPATH_PASS_GENERIC:       "pass_generic",
	shortcutPathReasonPATH_PASS_NOT_IP:        "pass_not_ip",
	shortcutPathReasonPATH_PASS_NOT_GATEWAY:   "pass_not_gateway",
	shortcutPathReasonPATH_PASS_SOURCE:        "pass_source",
	shortcutPathReasonPATH_PASS_OPTIONS:       "pass_options",
	shortcutPathReasonPATH_PASS_EXT_HEADERS:   "pass_ext_headers",
	shortcutPathReasonPATH_PASS_FRAGMENT:      "pass_fragment",
	shortcutPathReasonPATH_PASS_PROTOCOL:      "pass_protocol",
	shortcutPathReasonPATH_PASS_TUNNEL:        "pass_tunnel",
	shortcutPathReasonPATH_PASS_TTL:           "pass_ttl",
	shortcutPathReasonPATH_PASS_LENGTH:        "pass_length",
	shortcutPathReasonPATH_PASS_CHECKSUM:      "pass_checksum",
	shortcutPathReasonPATH_PASS_TRANSLATED:    "pass_translated",
	shortcutPathReasonPATH_PASS_NO_TARGET:     "pass_no_target",
	shortcutPathReasonPATH_PASS_NO_DEVICE:     "pass_no_device",
	shortcutPathReasonPATH_PASS_NO_NEXT_HOP:   "pass_no_next_hop",
	shortcutPathReasonPATH_PASS_MTU:           "pass_mtu",
	shortcutPathReasonPATH_PASS_FLAGGED:       "pass_flagged",
	shortcutPathReasonPATH_PASS_CONNTRACK:     "pass_conntrack",
	shortcutPathReasonPATH_PASS_NO_REQUEST:    "pass_no_request",
	shortcutPathReasonPATH_PASS_LOOKUP_FAILED: "pass_lookup_failed",
	shortcutPathReasonPATH_DROP_SPOOF_MAC:     "drop_spoof_mac",
	shortcutPathReasonPATH_DROP_SPOOF_IPV4:    "drop_spoof_ipv4",
	shortcutPathReasonPATH_DROP_SPOOF_IPV6:    "drop_spoof_ipv6",
	shortcutPathReasonPATH_DROP_ABORTED:       "drop_aborted",
}

// ShortcutReasons are all that this version knows.
func ShortcutReasons() []ShortcutReason {
	var out []ShortcutReason
	for _, hook := range []ShortcutReason{0, tcReasons} {
		for r := ShortcutReason(1); int(r) < len(pathNames); r++ {
			out = append(out, hook+r)
		}
	}
	return out
}

// path is the reason without its hook.
func (r ShortcutReason) path() shortcutPathReason { return shortcutPathReason(r % tcReasons) }

// String is the hook and the reason: "xdp_to_guest", "tc_pass_conntrack". One of another version is "xdp_reason_" and its
// number.
func (r ShortcutReason) String() string {
	prefix := xdpPrefix
	if r >= tcReasons {
		prefix = tcPrefix
	}
	if int(r.path()) < len(pathNames) {
		return prefix + pathNames[r.path()]
	}
	return fmt.Sprintf("%sreason_%d", prefix, r.path())
}

// Taken says whether frames counted under r took the shortcut.
func (r ShortcutReason) Taken() bool {
	return r.path() == shortcutPathReasonPATH_TO_GUEST || r.path() == shortcutPathReasonPATH_TO_UPLINK
}

// Beside says whether r is counted beside another reason.
func (r ShortcutReason) Beside() bool {
	return r.path() == shortcutPathReasonPATH_CHECKSUM_COMPLETED || r.path() == shortcutPathReasonPATH_LOOKED_UP
}

// Passed says whether frames counted under r went on to the default path.
func (r ShortcutReason) Passed() bool {
	return r.path() >= shortcutPathReasonPATH_PASS_GENERIC && r.path() <= shortcutPathReasonPATH_PASS_LOOKUP_FAILED
}

// Dropped says whether frames counted under r were refused.
func (r ShortcutReason) Dropped() bool { return r.path() >= shortcutPathReasonPATH_DROP_SPOOF_MAC }

// refused is the reason of the redirect programs under which such a frame would have been dropped by them.
var refused = map[ShortcutReason]Reason{
	ShortcutReason(shortcutPathReasonPATH_DROP_SPOOF_MAC):  ReasonSpoofMAC,
	ShortcutReason(shortcutPathReasonPATH_DROP_SPOOF_IPV4): ReasonSpoofIPv4,
	ShortcutReason(shortcutPathReasonPATH_DROP_SPOOF_IPV6): ReasonSpoofIPv6,
}
