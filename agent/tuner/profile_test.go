package tuner

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func faultsOf(t *testing.T, text string) (all []string) {
	t.Helper()
	var p Profiles
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	p.Validate("profiles", func(key, fault string) { all = append(all, key+": "+fault) })
	return all
}

func TestProfilesAreChecked(t *testing.T) {
	if got := faultsOf(t, `{"bulk": {"rules": [{"name": "quiet", "framesBelow": 500}, {"name": "all", "threaded": true, "batch": true, "groFlushTimeout": "50us", "deferHardIRQs": 1}],
		"ring": {"max": 8192, "giveBack": "1m"}, "rps": "near", "xps": "off", "threadCPUs": "0-3,8"}, "default": {}}`); len(got) != 0 {
		t.Errorf("want no fault, got %q", got)
	}
	for text, want := range map[string]string{
		`{"off": {}}`: "profiles.off: want another name",
		`{"a/b": {}}`: "profiles.a/b: want a name",
		`{"a": {"rules": [{"name": "x", "framesBelow": 1}]}}`:                            "rules[0]: the last rule takes all",
		`{"a": {"rules": [{"name": "x"}, {"name": "x"}]}}`:                               "rules[1].name: want a name of its own",
		`{"a": {"rules": [{"name": "x", "batch": true}]}}`:                               "rules[0].batch: want it with threaded",
		`{"a": {"rules": [{"name": "x", "groFlushTimeout": "1s", "deferHardIRQs": 1}]}}`: "want 0 to 10ms, got 1s",
		`{"a": {"rules": [{"name": "x", "groFlushTimeout": "1us"}]}}`:                    "want groFlushTimeout and deferHardIRQs together",
		`{"a": {"rules": [{"name": "x", "deferHardIRQs": 1001}]}}`:                       "want 0 to 1000, got 1001",
		`{"a": {"rules": [{"name": "x", "sizeBelow": -1}, {"name": "y"}]}}`:              "rules[0]: want framesBelow and sizeBelow of 0 or more",
		`{"a": {"ring": {"max": 65537}}}`:                                                "profiles.a.ring.max: want 0 to 65536",
		`{"a": {"ring": {"giveBack": "1ms"}}}`:                                           "profiles.a.ring.giveBack: want at least 1s",
		`{"a": {"rps": "any"}}`:                                                          "profiles.a.rps: want one of",
		`{"a": {"threadCPUs": "3-1"}}`:                                                   `got "3-1"`,
	} {
		if got := faultsOf(t, text); len(got) == 0 || !strings.Contains(strings.Join(got, "\n"), want) {
			t.Errorf("%s: want %q, got %q", text, want, got)
		}
	}
}

func TestAPodsProfileIsFromTheList(t *testing.T) {
	p := Profiles{"bulk": {}, "timely": {}}
	for _, tt := range []struct{ asked, want, why string }{
		{"", "bulk", ""},
		{"timely", "timely", ""},
		{OffProfile, OffProfile, ""},
		{DefaultProfile, "bulk", "may not have"},
		{"missing", "bulk", "which there is not"},
		{strings.Repeat("x", 5000), "bulk", "may not have"},
	} {
		got, why := p.pick(tt.asked, "bulk", []string{"timely", OffProfile, "missing"})
		if got != tt.want || (why == "") != (tt.why == "") || !strings.Contains(why, tt.why) || len(why) > 300 {
			t.Errorf("%.20q: want %q and %q, got %q and %q", tt.asked, tt.want, tt.why, got, why)
		}
	}
}

func TestCPUListsAndMasks(t *testing.T) {
	for list, mask := range map[string]string{"": "0", "0": "00000001", "0-1": "00000003", "31": "80000000", "32": "00000001,00000000", "0-3,8,40-41": "00000300,0000010f", "127": "80000000,00000000,00000000,00000000"} {
		c, err := parseCPUs(list)
		if err != nil || c.String() != list || c.mask() != mask {
			t.Errorf("%q: want mask %q, got %q as %q, %v", list, mask, c.mask(), c.String(), err)
		}
		back, err := parseMask(c.mask())
		if err != nil || !slices.Equal(back, c) {
			t.Errorf("%q: got %v back, %v", list, back, err)
		}
	}
	if c, err := parseMask("ff"); err != nil || c.String() != "0-7" {
		t.Errorf("a short mask: got %v, %v", c, err)
	}
	for _, bad := range []string{"x", "1-", "-1", "2-1", "1,,2", "99999", "1-2-3"} {
		if c, err := parseCPUs(bad); err == nil {
			t.Errorf("%q: want an error, got %v", bad, c)
		}
	}
}

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text + "\n")} }

// The trees are cut out of real machines: two sockets with a card at the second, one with memory on a node of its own, one without NUMA.
var (
	twoSockets = fstest.MapFS{
		"devices/system/cpu/online": file("0-31"), "devices/system/node/node0/cpulist": file("0-7,16-23"), "devices/system/node/node1/cpulist": file("8-15,24-31"),
		"class/net/ens1f0/device/numa_node": file("1"), "class/net/eno1/device/numa_node": file("-1"),
	}
	farMemory = fstest.MapFS{
		"devices/system/cpu/online": file("0-7"), "devices/system/node/node0/cpulist": file("0-3"), "devices/system/node/node1/cpulist": file("4-7"), "devices/system/node/node2/cpulist": file(""),
	}
	oneNode = fstest.MapFS{"devices/system/cpu/online": file("0-1"), "devices/system/node/node0/cpulist": file("0-1")}
	noNUMA  = fstest.MapFS{"devices/system/cpu/online": file("0-3")}
)

func TestCPUsNearToAVMM(t *testing.T) {
	for _, tt := range []struct {
		name   string
		sys    fstest.MapFS
		vmm    string
		uplink string
		want   string
	}{
		{"on one socket", twoSockets, "2-3", "ens1f0", "0-7,16-23"},
		{"on the other", twoSockets, "8-15", "", "8-15,24-31"},
		{"anywhere, and the uplink is known", twoSockets, "0-31", "ens1f0", "8-15,24-31"},
		{"anywhere, and the uplink is at no node", twoSockets, "0-31", "eno1", ""},
		{"anywhere, without an uplink", twoSockets, "0-31", "", ""},
		{"a node of memory alone", farMemory, "5", "", "4-7"},
		{"one node", oneNode, "0", "", ""},
		{"no NUMA", noNUMA, "0", "", ""},
		{"a VMM that has ended", twoSockets, "", "ens1f0", "8-15,24-31"},
	} {
		topo, err := readTopology(tt.sys)
		if err != nil {
			t.Fatal(err)
		}
		vmm, err := parseCPUs(tt.vmm)
		if err != nil {
			t.Fatal(err)
		}
		if got := topo.near(vmm, deviceNode(tt.sys, tt.uplink)).String(); got != tt.want {
			t.Errorf("%s: want %q, got %q", tt.name, tt.want, got)
		}
	}
	if _, err := readTopology(fstest.MapFS{}); err == nil {
		t.Error("without CPUs: want an error")
	}
}

func TestDurationsAreWrittenAsRead(t *testing.T) {
	text, err := json.Marshal(Ring{GiveBack: Duration(90 * time.Second)})
	var back Ring
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	if diff := cmp.Diff(Ring{GiveBack: Duration(90 * time.Second)}, back); err != nil || diff != "" {
		t.Errorf("%s: %v: %s", text, err, diff)
	}
}
