package plugin

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/xdp"
)

// Values of the enumerated keys.
const (
	PlacementPod  = state.PlacementPod
	PlacementHost = state.PlacementHost

	LayoutCRI         = "cri"
	LayoutFirecracker = "firecracker"
	LayoutPlain       = "plain"

	whenAlways    = "always"
	whenAnnotated = "annotated"

	guestConfigNone = "none"
	guestConfigDHCP = "dhcp"

	redirectAuto   = "auto"
	redirectTCX    = "tcx"
	redirectClsact = "clsact"
)

// maxNameLen is the longest name of a network device in bytes (IFNAMSIZ less the terminating NUL).
const maxNameLen = 15

// minIPv6MTU is the smallest MTU that IPv6 runs on, in bytes (RFC 8200, section 5).
const minIPv6MTU = 1280

// validate checks what the configuration says by itself, each fault with its JSON path.
func (c *Config) validate() faults {
	var fs faults
	c.validateTap(&fs)
	c.validateEnums(&fs)
	c.validateKata(&fs)
	c.validateShortcut(&fs)
	c.validateBandwidth(&fs)
	c.validateChoosable(&fs)
	if c.GuestConfig == guestConfigDHCP {
		fs.Add("guestConfig", `want "none": nothing answers DHCP at the TAP yet; tell the guest by "tapirctl guest-config"`)
	}
	if present(c.RuntimeConfig.PortMappings) {
		fs.Add("runtimeConfig.portMappings", `is not tapir's; put the portmap plugin after tapir and give it the capability`)
	}
	for i, s := range c.NonMasqueradeCIDRs {
		if _, err := netip.ParsePrefix(s); err != nil {
			fs.Add(fmt.Sprintf("nonMasqueradeCIDRs[%d]", i), fmt.Sprintf("want a prefix such as 10.0.0.0/8, got %q", s))
		}
	}
	if !strings.HasPrefix(c.StateDir, "/") {
		fs.Add("stateDir", fmt.Sprintf("want an absolute path, got %q", c.StateDir))
	}
	if !strings.HasPrefix(c.DANDir, "/") {
		fs.Add("danDir", fmt.Sprintf("want an absolute path, got %q", c.DANDir))
	}
	for i, s := range c.DNS.Nameservers {
		checkAddr(&fs, fmt.Sprintf("dns.nameservers[%d]", i), s)
	}
	for i, s := range c.RuntimeConfig.DNS.Servers {
		checkAddr(&fs, fmt.Sprintf("runtimeConfig.dns.servers[%d]", i), s)
	}
	checkMAC(&fs, "mac", c.MAC)
	checkMAC(&fs, "runtimeConfig.mac", c.RuntimeConfig.MAC)
	return fs
}

func (c *Config) validateTap(fs *faults) {
	checkQueues(fs, "queues", c.VMM, c.Queues)
	if c.TapName != "" {
		checkDeviceName(fs, "tapName", c.TapName)
		checkHostTapName(fs, "tapName", c.TapName, c.Placement == PlacementHost)
	}
	if c.MTU != 0 && (c.MTU < tap.MinMTU || c.MTU > tap.MaxMTU) {
		fs.Add("mtu", fmt.Sprintf("want 0 or %d to %d, got %d", tap.MinMTU, tap.MaxMTU, c.MTU))
	}
	switch {
	case c.TxQueueLen < 1:
		fs.Add("txQueueLen", fmt.Sprintf("want at least 1 (a ring of 0 drops every frame), got %d", c.TxQueueLen))
	case c.TxQueueLen > tap.MaxTxQueueLen:
		fs.Add("txQueueLen", fmt.Sprintf("want at most %d (a ring has 8 bytes for each frame, and each queue has one), got %d", tap.MaxTxQueueLen, c.TxQueueLen))
	}
	checkID(fs, "owner", c.Owner)
	checkID(fs, "group", c.Group)
}

func (c *Config) validateEnums(fs *faults) {
	for _, e := range []struct {
		path, got string
		want      []string
	}{
		{"vmm", c.VMM, []string{tap.Generic, tap.Firecracker, tap.CloudHypervisor, tap.QEMU, tap.Kata}},
		{"when", c.When, []string{whenAlways, whenAnnotated}},
		{"placement", c.Placement, []string{PlacementPod, PlacementHost}},
		{"guestConfig", c.GuestConfig, []string{guestConfigNone, guestConfigDHCP}},
		{"redirect", c.Redirect, []string{redirectAuto, redirectTCX, redirectClsact}},
		{"xdp.mode", c.XDP.Mode, []string{string(xdp.ModeOff), string(xdp.ModeAuto), string(xdp.ModeNative), string(xdp.ModeGeneric)}},
		{"result", c.Result, []string{LayoutCRI, LayoutFirecracker, LayoutPlain}},
	} {
		if !slices.Contains(e.want, e.got) {
			fs.Add(e.path, fmt.Sprintf("want one of %s, got %q", strings.Join(e.want, ", "), e.got))
		}
	}
}

// present tells a JSON value that was given from one that was not, or was null.
func present(raw []byte) bool { return len(raw) > 0 && string(raw) != "null" }

// checkQueues holds a number of queues against the driver's limit and the VMM's.
func checkQueues(fs *faults, path, vmm string, n int) {
	if n < 1 || n > tap.MaxQueues {
		fs.Add(path, fmt.Sprintf("want 1 to %d, got %d", tap.MaxQueues, n))
		return
	}
	profile, err := tap.ProfileOf(vmm)
	if err != nil {
		return // the name of the VMM is a fault of its own
	}
	if err := profile.Check(n); err != nil {
		fs.Add(path, err.Error())
	}
}

func checkID(fs *faults, path string, id *int) {
	if id != nil && (*id < 0 || *id > 1<<32-2) {
		fs.Add(path, fmt.Sprintf("want 0 to %d, got %d", 1<<32-2, *id))
	}
}

func checkAddr(fs *faults, path, s string) {
	if _, err := netip.ParseAddr(s); err != nil {
		fs.Add(path, fmt.Sprintf("want an IP address, got %q", s))
	}
}

// checkDeviceName holds a name against what the kernel takes (net/core/dev.c, dev_valid_name) and against '%', which
// the kernel would take for a pattern.
func checkDeviceName(fs *faults, path, name string) {
	switch {
	case len(name) > maxNameLen:
		fs.Add(path, fmt.Sprintf("want at most %d bytes, got %q (%d)", maxNameLen, name, len(name)))
	case name == "", name == ".", name == "..", name == "lo", name == "all", name == "default":
		fs.Add(path, fmt.Sprintf("want the name of a network device, got %q", name))
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' || r == ':' || r == '%' }):
		fs.Add(path, fmt.Sprintf("want a name without spaces, '/', ':' and '%%', got %q", name))
	}
}

// checkHostTapName keeps a TAP in the host's netns from the names that tapir derives for devices there.
func checkHostTapName(fs *faults, path, name string, onHost bool) {
	if onHost && strings.HasPrefix(name, hostEndPrefix) {
		fs.Add(path, fmt.Sprintf("want a name that does not start with %q, as the host ends of this node do, got %q", hostEndPrefix, name))
	}
}

func checkMAC(fs *faults, path, s string) {
	if s == "" {
		return
	}
	if _, err := parseMAC(s); err != nil {
		fs.Add(path, err.Error())
	}
}

// checkAlias refuses an attachment whose names do not fit in an ifalias, by which its devices are found again.
func checkAlias(fs *faults, key state.Key) {
	if n := len(key.Alias()); n > state.MaxAliasLen {
		fs.Add("name", fmt.Sprintf("want at most %d bytes for name, CNI_CONTAINERID and CNI_IFNAME together, got %d", state.MaxAliasLen-len("tapir://"), n-len("tapir://")))
	}
}

// parseMAC reads a unicast Ethernet address that is not all zeroes.
func parseMAC(s string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(s)
	switch {
	case err != nil || len(mac) != 6:
		return nil, fmt.Errorf("want a MAC of six octets, got %q", s)
	case mac[0]&1 != 0:
		return nil, fmt.Errorf("want a unicast MAC, got %q (the lowest bit of the first octet is set)", s)
	case [6]byte(mac) == [6]byte{}:
		return nil, fmt.Errorf("want a MAC that is not all zeroes, got %q", s)
	}
	return mac, nil
}
