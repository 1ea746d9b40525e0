package state

// XDP is an attachment's part in the shortcut.
type XDP struct {
	Wanted string `json:"wanted,omitempty"` // "xdp.mode" of the configuration: auto | native | generic; empty: off
	Mode   string `json:"mode,omitempty"`   // what is attached: native | generic; empty: nothing
	Why    string `json:"why,omitempty"`    // nothing is attached though something was wanted
	NSID   int    `json:"nsid,omitempty"`   // of the host's netns, in the sandbox's
	Layout string `json:"layout,omitempty"` // of the pinned maps that it has entries in
	Uplink string `json:"uplink,omitempty"` // "xdp.uplink" of the configuration

	Flagged bool `json:"flagged,omitempty"` // "no shortcut", by "tapirctl xdp flag"
	Policy  bool `json:"policy,omitempty"`  // likewise, by tapird: a NetworkPolicy selects the pod
}
