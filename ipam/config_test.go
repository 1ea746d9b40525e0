package ipam

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tapir-cni/tapir/state"
)

func TestConfigDefaults(t *testing.T) {
	s := settings(t, ranges("10.9.0.0/24"))
	if s.ReuseDelay != 30*time.Second || s.StateDir != "/run/tapir" {
		t.Errorf("defaults: got a reuse delay of %v and the state in %q", s.ReuseDelay, s.StateDir)
	}
	c := ranges("10.9.0.0/24")
	c.ReuseDelay, c.StateDir = "0s", "/x"
	if s := settings(t, c); s.ReuseDelay != 0 || s.StateDir != "/x" {
		t.Errorf("given: got a reuse delay of %v and the state in %q", s.ReuseDelay, s.StateDir)
	}
}

func TestEveryFaultIsReportedAtOnce(t *testing.T) {
	c := Config{
		Ranges: [][]Range{
			{
				{Subnet: "10.9.0.0/24"},
				{Subnet: "10.10.0.0/24", RangeStart: "10.8.0.1", RangeEnd: "10.10.0.255", Gateway: "10.8.0.1", Exclude: []string{"10.10.0.9", "x", "10.8.0.0/24"}},
				{Subnet: "fd00::/64"},
			},
			{},
			{{Subnet: "10.9.0.0/33"}, {Subnet: "10.9.9.9/24"}},
		},
		Routes:     []Route{{Dst: "default"}, {Dst: "10.0.0.1/8"}, {Dst: "0.0.0.0/0", GW: "fd00::1"}},
		ReuseDelay: "30", StateDir: "run",
	}
	_, faults := c.Validate()
	want := map[string]string{
		"reuseDelay":              `want a duration from "0s" to "720h0m0s", as in "30s", got "30"`,
		"stateDir":                `want an absolute path, got "run"`,
		"ranges[0][1].rangeStart": `want an address inside 10.10.0.0/24, got "10.8.0.1"`,
		"ranges[0][1].rangeEnd":   `want an address from 10.10.0.1 to 10.10.0.254, got "10.10.0.255", which is the broadcast address`,
		"ranges[0][1].gateway":    `want an address inside 10.10.0.0/24 or a link-local one, got "10.8.0.1"`,
		"ranges[0][1].exclude[1]": `want an address or a prefix inside 10.10.0.0/24, got "x"`,
		"ranges[0][1].exclude[2]": `want an address or a prefix inside 10.10.0.0/24, got "10.8.0.0/24"`,
		"ranges[0][2].subnet":     `want the IP version of the set's first range, 10.9.0.0/24, got "fd00::/64"; give the other version a set of its own`,
		"ranges[1]":               "want at least one range, got none",
		"ranges[2][0].subnet":     `want a subnet, as in 10.9.0.0/24, got "10.9.0.0/33"`,
		"ranges[2][1].subnet":     `want no bits beyond the prefix length, as in 10.9.9.0/24, got "10.9.9.9/24"`,
		"routes[0].dst":           `want a prefix, as in 0.0.0.0/0, got "default"`,
		"routes[1].dst":           `want no bits beyond the prefix length, as in 10.0.0.0/8, got "10.0.0.1/8"`,
		"routes[2].gw":            `want an IPv4 address, got "fd00::1"`,
	}
	if diff := cmp.Diff(want, faultPaths(faults)); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

func TestRangeFaults(t *testing.T) {
	for name, c := range map[string]struct {
		set  []Range
		path string
	}{
		"network as start":             {[]Range{{Subnet: "10.9.0.0/24", RangeStart: "10.9.0.0"}}, "ranges[0][0].rangeStart"},
		"anycast as start":             {[]Range{{Subnet: "fd00::/64", RangeStart: "fd00::"}}, "ranges[0][0].rangeStart"},
		"start above end":              {[]Range{{Subnet: "10.9.0.0/24", RangeStart: "10.9.0.9", RangeEnd: "10.9.0.8"}}, "ranges[0][0].rangeEnd"},
		"other family as start":        {[]Range{{Subnet: "10.9.0.0/24", RangeStart: "fd00::1"}}, "ranges[0][0].rangeStart"},
		"gateway is the network":       {[]Range{{Subnet: "10.9.0.0/24", Gateway: "10.9.0.0"}}, "ranges[0][0].gateway"},
		"gateway is the broadcast":     {[]Range{{Subnet: "10.9.0.0/24", Gateway: "10.9.0.255"}}, "ranges[0][0].gateway"},
		"gateway of the other family":  {[]Range{{Subnet: "10.9.0.0/24", Gateway: "fe80::1"}}, "ranges[0][0].gateway"},
		"gateway with a zone":          {[]Range{{Subnet: "fd00::/64", Gateway: "fe80::1%eth0"}}, "ranges[0][0].gateway"},
		"mapped subnet":                {[]Range{{Subnet: "::ffff:10.9.0.0/120"}}, "ranges[0][0].subnet"},
		"subnet of everything":         {[]Range{{Subnet: "::/0"}}, "ranges[0][0].subnet"},
		"multicast":                    {[]Range{{Subnet: "224.0.0.0/24"}}, "ranges[0][0].subnet"},
		"loopback":                     {[]Range{{Subnet: "127.0.0.0/8"}}, "ranges[0][0].subnet"},
		"link-local IPv6":              {[]Range{{Subnet: "fe80::/64"}}, "ranges[0][0].subnet"},
		"empty subnet":                 {[]Range{{}}, "ranges[0][0].subnet"},
		"only the gateway":             {[]Range{{Subnet: "10.9.0.0/24", RangeStart: "10.9.0.1", RangeEnd: "10.9.0.1"}}, "ranges[0][0]"},
		"all excluded":                 {[]Range{{Subnet: "10.9.0.0/24", Exclude: []string{"10.9.0.0/16"}}}, "ranges[0][0]"},
		"same subnet twice":            {[]Range{{Subnet: "10.9.0.0/24"}, {Subnet: "10.9.0.0/24"}}, "ranges[0][1]"},
		"overlap of one address":       {[]Range{{Subnet: "10.9.0.0/24", RangeEnd: "10.9.0.9"}, {Subnet: "10.9.0.0/24", RangeStart: "10.9.0.9"}}, "ranges[0][1]"},
		"contained":                    {[]Range{{Subnet: "10.0.0.0/8"}, {Subnet: "10.9.0.0/24"}}, "ranges[0][1]"},
		"overlap with the one before":  {[]Range{{Subnet: "10.0.0.0/8"}, {Subnet: "10.9.0.0/24"}, {Subnet: "10.200.0.0/16"}}, "ranges[0][2]"},
		"excluded from another family": {[]Range{{Subnet: "10.9.0.0/24", Exclude: []string{"fd00::1"}}}, "ranges[0][0].exclude[0]"},
	} {
		_, faults := Config{Ranges: [][]Range{c.set}}.Validate()
		if _, ok := faultPaths(faults)[c.path]; !ok {
			t.Errorf("%s: want a fault at %s, got %q", name, c.path, faults)
		}
	}
	for name, set := range map[string][]Range{
		"two parts of a subnet":  {{Subnet: "10.9.0.0/24", RangeEnd: "10.9.0.9"}, {Subnet: "10.9.0.0/24", RangeStart: "10.9.0.10"}},
		"link-local gateway":     {{Subnet: "10.9.0.0/24", Gateway: "169.254.1.1"}},
		"link-local gateway, v6": {{Subnet: "fd00::/64", Gateway: "fe80::1"}},
		"end of the subnet":      {{Subnet: "10.9.0.0/24", RangeStart: "10.9.0.254", RangeEnd: "10.9.0.254"}},
	} {
		if _, faults := (Config{Ranges: [][]Range{set}}).Validate(); len(faults) > 0 {
			t.Errorf("%s: want no fault, got %v", name, faults)
		}
	}
	if _, faults := (Config{}).Validate(); faultPaths(faults)["ranges"] == "" {
		t.Errorf("no ranges: want a fault, got %v", faults)
	}
}

func TestOverlapIsFoundBetweenSets(t *testing.T) {
	more, _ := ParseRanges([][]Range{{{Subnet: "10.9.0.0/25"}}}, "ipRanges")
	_, faults := ranges("10.9.0.0/24").Validate(more...)
	if got := faultPaths(faults); len(got) != 1 || got["ranges[0][0]"] == "" && got["ipRanges[0][0]"] == "" {
		t.Errorf("want one fault, got %v", faults)
	}
}

// Each range is filled to the last address, and what came out is compared with what the rules say.
func TestRangeGivesOutExactlyWhatTheRulesSay(t *testing.T) {
	for name, c := range map[string]struct {
		set     []Range
		first   string
		last    string
		count   int
		gateway string // "none": it has none
		never   []string
	}{
		"/24":                       {[]Range{{Subnet: "10.9.0.0/24"}}, "10.9.0.2", "10.9.0.254", 253, "10.9.0.1", nil},
		"/24, gateway at the end":   {[]Range{{Subnet: "10.9.0.0/24", Gateway: "10.9.0.254"}}, "10.9.0.1", "10.9.0.253", 253, "10.9.0.254", nil},
		"/24, gateway inside":       {[]Range{{Subnet: "10.9.0.0/24", Gateway: "10.9.0.100"}}, "10.9.0.1", "10.9.0.254", 253, "10.9.0.100", []string{"10.9.0.100"}},
		"/24, gateway link-local":   {[]Range{{Subnet: "10.9.0.0/24", Gateway: "169.254.1.1"}}, "10.9.0.1", "10.9.0.254", 254, "169.254.1.1", nil},
		"/24, start and end":        {[]Range{{Subnet: "10.9.0.0/24", RangeStart: "10.9.0.10", RangeEnd: "10.9.0.20"}}, "10.9.0.10", "10.9.0.20", 11, "10.9.0.1", nil},
		"/24, one address":          {[]Range{{Subnet: "10.9.0.0/24", RangeStart: "10.9.0.254", RangeEnd: "10.9.0.254"}}, "10.9.0.254", "10.9.0.254", 1, "10.9.0.1", nil},
		"/24, excluded":             {[]Range{{Subnet: "10.9.0.0/24", Exclude: []string{"10.9.0.2", "10.9.0.128/25", "10.9.0.3", "10.9.0.50"}}}, "10.9.0.4", "10.9.0.127", 123, "10.9.0.1", []string{"10.9.0.50"}},
		"/29":                       {[]Range{{Subnet: "10.9.0.8/29"}}, "10.9.0.10", "10.9.0.14", 5, "10.9.0.9", nil},
		"/30":                       {[]Range{{Subnet: "10.9.0.0/30"}}, "10.9.0.2", "10.9.0.2", 1, "10.9.0.1", nil},
		"/31":                       {[]Range{{Subnet: "10.9.0.0/31"}}, "10.9.0.1", "10.9.0.1", 1, "10.9.0.0", nil},
		"/31, gateway link-local":   {[]Range{{Subnet: "10.9.0.0/31", Gateway: "169.254.1.1"}}, "10.9.0.0", "10.9.0.1", 2, "169.254.1.1", nil},
		"/32":                       {[]Range{{Subnet: "10.9.0.5/32"}}, "10.9.0.5", "10.9.0.5", 1, "none", nil},
		"/16, with .255 inside":     {[]Range{{Subnet: "10.9.0.0/16", RangeStart: "10.9.3.250", RangeEnd: "10.9.4.5"}}, "10.9.3.250", "10.9.4.5", 12, "10.9.0.1", nil},
		"end of the address space":  {[]Range{{Subnet: "255.255.255.252/30"}}, "255.255.255.254", "255.255.255.254", 1, "255.255.255.253", nil},
		"IPv6 /120":                 {[]Range{{Subnet: "fd00::/120"}}, "fd00::2", "fd00::ff", 254, "fd00::1", nil},
		"IPv6 /126":                 {[]Range{{Subnet: "fd00::/126"}}, "fd00::2", "fd00::3", 2, "fd00::1", nil},
		"IPv6 /127, gateway fe80":   {[]Range{{Subnet: "fd00::/127", Gateway: "fe80::1"}}, "fd00::", "fd00::1", 2, "fe80::1", nil},
		"IPv6 /128":                 {[]Range{{Subnet: "fd00::7/128"}}, "fd00::7", "fd00::7", 1, "none", nil},
		"IPv6 /64, end":             {[]Range{{Subnet: "fd00::/64", RangeStart: "fd00::ffff:ffff:ffff:fff0"}}, "fd00::ffff:ffff:ffff:fff0", "fd00::ffff:ffff:ffff:ffff", 16, "fd00::1", nil},
		"two subnets":               {[]Range{{Subnet: "10.9.0.0/29"}, {Subnet: "10.8.0.0/29"}}, "10.9.0.2", "10.8.0.6", 10, "", nil},
		"gateway of the other part": {[]Range{{Subnet: "10.9.0.0/24", RangeStart: "10.9.0.10", RangeEnd: "10.9.0.12", Gateway: "10.9.0.21"}, {Subnet: "10.9.0.0/24", RangeStart: "10.9.0.20", RangeEnd: "10.9.0.22", Gateway: "10.9.0.11"}}, "10.9.0.10", "10.9.0.22", 4, "", []string{"10.9.0.11", "10.9.0.21"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := settings(t, Config{Ranges: [][]Range{c.set}})
			var got []Lease
			update(t, newStore(t), func(tx *state.Tx) error {
				for i := 0; i <= c.count+1; i++ {
					leases, err := Acquire(tx, Request{Key: key(i), Sets: s.Sets})
					if err != nil {
						_ = wantExhausted(t, err)
						break
					}
					got = append(got, leases...)
				}
				return nil
			})
			if len(got) != c.count {
				t.Fatalf("addresses: want %d, got %d: %v", c.count, len(got), addrs(got))
			}
			seen := map[string]bool{}
			for _, l := range got {
				addr, gateway := l.Prefix.Addr().String(), "none"
				if l.Gateway.IsValid() {
					gateway = l.Gateway.String()
				}
				if seen[addr] || c.gateway != "" && gateway != c.gateway {
					t.Errorf("address %s: given out before: %v, gateway %s, want %s", addr, seen[addr], gateway, c.gateway)
				}
				seen[addr] = true
			}
			if first, last := got[0].Prefix.Addr().String(), got[len(got)-1].Prefix.Addr().String(); first != c.first || last != c.last {
				t.Errorf("addresses: want %s first and %s last, got %s and %s", c.first, c.last, first, last)
			}
			for _, addr := range c.never {
				if seen[addr] {
					t.Errorf("address %s was given out", addr)
				}
			}
		})
	}
}
