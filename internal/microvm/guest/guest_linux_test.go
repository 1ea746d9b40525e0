package main

import (
	"net/netip"
	"strings"
	"testing"
)

func TestIPLineIsReadByTheKernelsRules(t *testing.T) {
	for _, tt := range []struct {
		line, prefix, device string
		route                bool
		dns                  int
	}{
		{"10.9.0.2::10.9.0.1:255.255.255.0::eth0:off:10.96.0.10:10.96.0.11", "10.9.0.2/24", "eth0", true, 2},
		{"10.9.0.2::10.9.0.1:255.255.255.0:vm:eth1:off", "10.9.0.2/24", "eth1", true, 0},
		{"10.9.0.2:::255.255.255.0::eth0:off", "10.9.0.2/24", "eth0", false, 0},
		{"10.9.0.2::169.254.1.1:255.255.255.255::eth0:off", "10.9.0.2/32", "eth0", false, 0}, // not on the connected network
		{"10.9.0.2::10.1.1.1::::none", "10.9.0.2/8", "", true, 0},                            // the class's mask
		{"192.0.2.7::192.0.2.1::::off", "192.0.2.7/24", "", true, 0},
	} {
		c, err := parseIPLine(tt.line)
		if err != nil {
			t.Errorf("%s: %v", tt.line, err)
			continue
		}
		p, err := c.prefix()
		if err != nil || p != netip.MustParsePrefix(tt.prefix) || c.device != tt.device || c.reachable(p) != tt.route || len(c.dns) != tt.dns {
			t.Errorf("%s: got %s on %q, route %v, %d nameservers, %v", tt.line, p, c.device, c.reachable(p), len(c.dns), err)
		}
	}
}

func TestIPLineThatNoKernelTakesIsAnError(t *testing.T) {
	for line, want := range map[string]string{
		"": "no client address",
		"fd00::2::10.9.0.1:255.255.255.0::eth0:off": "no client address",
		"10.9.0.2::<nil>:255.255.255.0::eth0:off":   "<nil>", // what the Firecracker SDK writes without a gateway
		"10.9.0.2::10.9.0.1:255.255.255.0::eth0":    "autoconf",
	} {
		if _, err := parseIPLine(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ip=%s: want an error with %q, got %v", line, want, err)
		}
	}
}

func TestLastIPOnTheCommandLineCounts(t *testing.T) {
	line, ok := findIPLine("console=ttyS0 ip=a zip=b ip=c quiet\n")
	if !ok || line != "c" {
		t.Errorf("want c, got %q, %v", line, ok)
	}
	if line, ok := findIPLine("console=ttyS0 zip=b"); ok {
		t.Errorf("want none, got %q", line)
	}
}

func TestNetworkConfigWithAndWithoutTheOuterKey(t *testing.T) {
	const inner = `version: 2
ethernets:
  "eth0":
    match: {macaddress: "02:00:00:00:00:10"}
    set-name: eth0
    addresses: ["10.9.0.2/32", "fd00:9::2/64"]
    routes: [{to: "0.0.0.0/0", via: "169.254.1.1", on-link: true}]
`
	outer := "network:\n  " + strings.TrimSuffix(strings.ReplaceAll(inner, "\n", "\n  "), "  ")
	for _, text := range []string{inner, outer} {
		e, err := parseNetworkConfig([]byte(text))
		if err != nil {
			t.Errorf("%v in\n%s", err, text)
			continue
		}
		if e.Match.MACAddress != "02:00:00:00:00:10" || len(e.Addresses) != 2 || len(e.Routes) != 1 || !e.Routes[0].OnLink {
			t.Errorf("got %+v of\n%s", e, text)
		}
	}
}

func TestNetworkConfigThatWouldBeHalfAppliedIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		"version: 1\nethernets: {eth0: {}}":                                                    "version",
		"version: 2\nethernets: {eth0: {match: {macaddress: a}, dhcp4: true}}":                 "DHCP",
		"version: 2\nethernets: {eth0: {}}":                                                    "macaddress",
		"version: 2\nethernets: {eth0: {match: {macaddress: a}, gateway4: 10.9.0.1}}":          "gateway4",
		"version: 2\nethernets: {a: {match: {macaddress: a}}, b: {match: {macaddress: b}}}":    "want one",
		"version: 2\nethernets: {eth0: {match: {macaddress: a}, addresses: [not-an-address]}}": "not-an-address",
	} {
		if _, err := parseNetworkConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want an error with %q, got %v", text, want, err)
		}
	}
}
