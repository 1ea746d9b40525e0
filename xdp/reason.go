package xdp

import "fmt"

// Reason is what became of a frame: enum reason of bpf/tapir.h, which says what each means. Each frame of a known
// endpoint is counted under exactly one.
type Reason uint32

// Frames that were sent on.
const (
	ReasonUnknown     = Reason(redirectReasonREASON_UNKNOWN)
	ReasonToHost      = Reason(redirectReasonREASON_TO_HOST)
	ReasonToGuest     = Reason(redirectReasonREASON_TO_GUEST)
	ReasonARPAnswered = Reason(redirectReasonREASON_ARP_ANSWERED)
	ReasonNDAnswered  = Reason(redirectReasonREASON_ND_ANSWERED)
)

// Frames that were dropped.
const (
	ReasonSpoofMAC      = Reason(redirectReasonREASON_SPOOF_MAC)
	ReasonSpoofIPv4     = Reason(redirectReasonREASON_SPOOF_IPV4)
	ReasonSpoofIPv6     = Reason(redirectReasonREASON_SPOOF_IPV6)
	ReasonSpoofARP      = Reason(redirectReasonREASON_SPOOF_ARP)
	ReasonSpoofND       = Reason(redirectReasonREASON_SPOOF_ND)
	ReasonVLAN          = Reason(redirectReasonREASON_VLAN)
	ReasonTruncated     = Reason(redirectReasonREASON_TRUNCATED)
	ReasonMalformed     = Reason(redirectReasonREASON_MALFORMED)
	ReasonFragmentedND  = Reason(redirectReasonREASON_FRAGMENTED_ND)
	ReasonExtHeaders    = Reason(redirectReasonREASON_EXT_HEADERS)
	ReasonRogueRA       = Reason(redirectReasonREASON_ROGUE_RA)
	ReasonRogueRedirect = Reason(redirectReasonREASON_ROGUE_REDIRECT)
	ReasonAnswerFailed  = Reason(redirectReasonREASON_ANSWER_FAILED)
	ReasonNoPeer        = Reason(redirectReasonREASON_NO_PEER)
)

// ReasonNDLinkLocal is of frames that ended at tapir's programs: nobody is to have them, and nothing is wrong with them.
const ReasonNDLinkLocal = Reason(redirectReasonREASON_ND_LINK_LOCAL)

// Questions about the guest's configuration, of endpoints with Answers.
const (
	ReasonDHCPAnswered  = Reason(redirectReasonREASON_DHCP_ANSWERED)
	ReasonRAAnswered    = Reason(redirectReasonREASON_RA_ANSWERED)
	ReasonDHCP6Answered = Reason(redirectReasonREASON_DHCP6ANSWERED)
	ReasonConfigIgnored = Reason(redirectReasonREASON_CONFIG_IGNORED) // ended at the answerer, as it should
)

// ReasonRogueDHCP is of frames that were dropped: the guest spoke as a DHCP server.
const ReasonRogueDHCP = Reason(redirectReasonREASON_ROGUE_DHCP)

// Frames of translated endpoints.
const (
	ReasonInsideOnly      = Reason(redirectReasonREASON_INSIDE_ONLY) // ended at tapir's programs, as it should
	ReasonInsideAddress   = Reason(redirectReasonREASON_INSIDE_ADDRESS)
	ReasonUntranslatable  = Reason(redirectReasonREASON_UNTRANSLATABLE)
	ReasonTranslateFailed = Reason(redirectReasonREASON_TRANSLATE_FAILED)
)

// reasonNames are also the label values of the metrics: they do not change.
var reasonNames = [redirectReasonREASON_MAX]string{
	ReasonUnknown:         "unknown",
	ReasonToHost:          "to_host",
	ReasonToGuest:         "to_guest",
	ReasonARPAnswered:     "arp_answered",
	ReasonNDAnswered:      "nd_answered",
	ReasonSpoofMAC:        "spoof_mac",
	ReasonSpoofIPv4:       "spoof_ipv4",
	ReasonSpoofIPv6:       "spoof_ipv6",
	ReasonSpoofARP:        "spoof_arp",
	ReasonSpoofND:         "spoof_nd",
	ReasonVLAN:            "vlan",
	ReasonTruncated:       "truncated",
	ReasonMalformed:       "malformed",
	ReasonFragmentedND:    "fragmented_nd",
	ReasonExtHeaders:      "ext_headers",
	ReasonRogueRA:         "rogue_ra",
	ReasonRogueRedirect:   "rogue_redirect",
	ReasonAnswerFailed:    "answer_failed",
	ReasonNoPeer:          "no_peer",
	ReasonNDLinkLocal:     "nd_link_local",
	ReasonDHCPAnswered:    "dhcp_answered",
	ReasonRAAnswered:      "ra_answered",
	ReasonDHCP6Answered:   "dhcp6_answered",
	ReasonConfigIgnored:   "config_ignored",
	ReasonRogueDHCP:       "rogue_dhcp",
	ReasonInsideOnly:      "inside_only",
	ReasonInsideAddress:   "inside_address",
	ReasonUntranslatable:  "untranslatable",
	ReasonTranslateFailed: "translate_failed",
}

// String is the reason in lower case, as in the C enum: "spoof_mac". One that this version does not know, counted by
// another version's programs, is "reason_" and its number.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason_%d", uint32(r))
}

// Dropped says whether frames counted under r were refused.
func (r Reason) Dropped() bool {
	switch r {
	case ReasonUnknown, ReasonToHost, ReasonToGuest, ReasonARPAnswered, ReasonNDAnswered, ReasonNDLinkLocal,
		ReasonDHCPAnswered, ReasonRAAnswered, ReasonDHCP6Answered, ReasonConfigIgnored, ReasonInsideOnly:
		return false
	}
	return true
}

// Counter counts frames as the guest or the host handed them over (a GSO frame is one), and their bytes with the
// Ethernet header.
type Counter struct {
	Frames uint64 `json:"frames"`
	Bytes  uint64 `json:"bytes"`
}
