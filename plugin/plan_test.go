package plugin

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// ranges is the least that a configuration needs.
const ranges = `"ipam": {"type": "tapir-ipam", "ranges": [[{"subnet": "10.9.0.0/24"}]]}`

// conf is a configuration with these keys.
func conf(keys ...string) string {
	all := append([]string{`"cniVersion": "1.1.0"`, `"name": "net"`, `"type": "tapir"`}, keys...)
	return "{" + strings.Join(all, ", ") + "}"
}

func planOf(t *testing.T, stdin, args string) (*Plan, error) {
	t.Helper()
	cfg, fs, err := parse([]byte(stdin))
	if err != nil {
		return nil, err
	}
	return newPlan(cfg, fs, &skel.CmdArgs{ContainerID: "c1", IfName: "eth0", Netns: "/run/netns/s1", Args: args, StdinData: []byte(stdin)}, present(cfg.PrevResult))
}

func TestEveryFaultIsToldAtOnceWithItsPath(t *testing.T) {
	for name, tc := range map[string]struct {
		keys []string
		args string
		code uint
		want []string
	}{
		"many": {
			keys: []string{`"queues": 300`, `"qeues": 2`, `"vmm": "xen"`, `"mtu": 67`, `"mac": "01:00:00:00:00:01"`, `"txQueueLen": 0`, `"stateDir": "x"`,
				`"ipam": {"type": "tapir-ipam", "ranges": [[{"subnet": "10.9.0.0/24", "rangeStart": "10.8.0.1"}]]}`},
			code: 7,
			want: []string{"queues: want 1 to 256, got 300", `unknown key "qeues"; did you mean "queues"?`, `vmm: want one of`, "mtu: want 0 or 68 to 65521, got 67",
				"mac: want a unicast MAC", "txQueueLen: want at least 1", "stateDir: want an absolute path", "ipam.ranges[0][0].rangeStart"},
		},
		"wrong types":         {keys: []string{`"queues": "2"`, `"spoofCheck": 1`, ranges}, code: 7, want: []string{"queues", "spoofCheck"}},
		"arguments":           {keys: []string{ranges}, args: "TAP_QUEUES=0;MAC=zz;TAP_NAME=a/b;TAP=maybe", code: 4, want: []string{"CNI_ARGS.TAP_QUEUES: want 1 to 256", "CNI_ARGS.MAC", "CNI_ARGS.TAP_NAME", "CNI_ARGS.TAP: want true or false"}},
		"unknown argument":    {keys: []string{ranges}, args: "TAP_QUEUE=2", code: 4, want: []string{`"TAP_QUEUES"`}},
		"both":                {keys: []string{`"mtu": -1`, ranges}, args: "TAP_QUEUES=x", code: 7, want: []string{"mtu", "CNI_ARGS.TAP_QUEUES"}},
		"firecracker has one": {keys: []string{`"vmm": "firecracker"`, `"queues": 2`, ranges}, code: 7, want: []string{"queues: the TAP has 2 queues", `set "queues": 1`}},
		"no TAP for Kata's scan": {
			keys: []string{`"vmm": "kata"`, `"queues": 2`, `"tapName": "tap0"`, `"owner": 0`, `"group": 0`, `"txQueueLen": 500`, `"result": "firecracker"`, `"when": "annotated"`, ranges},
			code: 7, want: []string{"queues: want 1", "tapName", "owner", "group", "txQueueLen", "result", "when", "Kata makes its own"},
		},
		"no argument for Kata's scan": {
			keys: []string{`"vmm": "kata"`, ranges}, args: "TAP_QUEUES=2;TAP_NAME=tap0;TAP_OWNER=1;TAP_GROUP=1",
			code: 4, want: []string{"TAP_QUEUES", "TAP_NAME", "TAP_OWNER", "TAP_GROUP"},
		},
		"Kata after another plugin":      {keys: []string{`"vmm": "kata"`, `"prevResult": {"cniVersion": "1.0.0"}`}, code: 7, want: []string{`vmm: "kata" leaves nothing to add`}},
		"placement after another plugin": {keys: []string{`"placement": "host"`, `"prevResult": {"cniVersion": "1.0.0"}`}, code: 7, want: []string{`placement: want "pod"`}},
		"a host end's name":              {keys: []string{`"placement": "host"`, `"tapName": "tpr0"`, ranges}, code: 7, want: []string{`tapName: want a name that does not start with "tpr"`}},
		"no shortcut from the host":      {keys: []string{`"placement": "host"`, `"xdp": {"mode": "auto"}`, ranges}, code: 7, want: []string{`xdp.mode: want "off" with placement "host"`}},
		"a host end's name asked for":    {keys: []string{`"placement": "host"`, ranges}, args: "TAP_NAME=tpr0", code: 4, want: []string{"CNI_ARGS.TAP_NAME"}},
		"IPv6 wants 1280":                {keys: []string{`"mtu": 1279`, `"ipam": {"type": "tapir-ipam", "ranges": [[{"subnet": "fd00::/64"}]]}`}, code: 7, want: []string{"mtu: want at least 1280"}},
		"no ipam":                        {code: 7, want: []string{"ipam: is missing"}},
		"state of IPAM elsewhere":        {keys: []string{`"ipam": {"type": "tapir-ipam", "stateDir": "/else", "ranges": [[{"subnet": "10.9.0.0/24"}]]}`}, code: 7, want: []string{"ipam.stateDir"}},
		"gateway's MAC":                  {keys: []string{fmt.Sprintf("%q: %q", "mac", xdp.GatewayMAC), ranges}, code: 7, want: []string{"not the gateway's"}},
		"the veth's name":                {keys: []string{`"tapName": "eth0"`, ranges}, code: 7, want: []string{"tapName"}},
		"chained":                        {keys: []string{`"prevResult": {"cniVersion": "1.0.0"}`, `"ipMasq": true`, ranges}, code: 7, want: []string{"ipam: want none", "ipMasq: want false"}},
		"limits without a burst":         {keys: []string{`"runtimeConfig": {"bandwidth": {"ingressRate": 8000, "egressBurst": 1}}`, ranges}, code: 7, want: []string{"runtimeConfig.bandwidth.ingressBurst: want one", "runtimeConfig.bandwidth.egressRate: want one"}},
		"limits out of range":            {keys: []string{`"runtimeConfig": {"bandwidth": {"ingressRate": 7, "ingressBurst": 1, "egressRate": 8, "egressBurst": 34359738360}}`, ranges}, code: 7, want: []string{"ingressRate: want at least 8", "egressBurst: want less than"}},
		"limits of another type":         {keys: []string{`"runtimeConfig": {"bandwidth": {"ingressRate": -1, "ingresBurst": 1}}`, ranges}, code: 7, want: []string{"runtimeConfig.bandwidth.ingressRate", `"ingressBurst"`}},
		"limits after another":           {keys: []string{`"prevResult": {"cniVersion": "1.0.0"}`, `"runtimeConfig": {"bandwidth": {"ingressRate": 8, "ingressBurst": 8}}`}, code: 7, want: []string{"put the bandwidth plugin after tapir"}},
		"limits on the host":             {keys: []string{`"placement": "host"`, `"runtimeConfig": {"bandwidth": {"ingressRate": 8, "ingressBurst": 8}}`, ranges}, code: 7, want: []string{"runtimeConfig.bandwidth: want none with placement", `use placement "pod"`}},
		"shortcut after another":         {keys: []string{`"prevResult": {"cniVersion": "1.0.0"}`, `"xdp": {"mode": "auto"}`}, code: 7, want: []string{`xdp.mode: want "off" after another plugin`}},
		"shortcut on the host":           {keys: []string{`"placement": "host"`, `"xdp": {"mode": "auto"}`, ranges}, code: 7, want: []string{`xdp.mode: want "off" with placement "host"`}},
		"shortcut of Kata":               {keys: []string{`"vmm": "kata"`, `"xdp": {"mode": "native"}`, ranges}, code: 7, want: []string{`xdp.mode: want "off" with "vmm": "kata"`}},
		"unknown mode":                   {keys: []string{`"xdp": {"mode": "fast"}`, ranges}, code: 7, want: []string{"xdp.mode: want one of off, auto, native, generic"}},
		"uplink of no shortcut":          {keys: []string{`"xdp": {"uplink": "eth0"}`, ranges}, code: 7, want: []string{`xdp.uplink: want none with xdp.mode "off"`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := planOf(t, conf(tc.keys...), tc.args)
			if err == nil {
				t.Fatal("want an error, got none")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("want %q in %q", want, err)
				}
			}
			if got := codeOf(err); got != tc.code {
				t.Errorf("code: want %d, got %d", tc.code, got)
			}
		})
	}
}

func TestPlanSaysWhatAnAddWillDo(t *testing.T) {
	one := 1000
	for name, tc := range map[string]struct {
		keys  []string
		args  string
		check func(*Plan) (want, got any)
	}{
		"one queue by default":     {check: func(p *Plan) (any, any) { return 1, p.Queues }},
		"argument before key":      {keys: []string{`"queues": 2`}, args: "TAP_QUEUES=4", check: func(p *Plan) (any, any) { return 4, p.Queues }},
		"owner is root by default": {check: func(p *Plan) (any, any) { return "0 none", optional(p.Owner) + " " + optional(p.Group) }},
		"only a group":             {keys: []string{`"group": 107`}, check: func(p *Plan) (any, any) { return "none 107", optional(p.Owner) + " " + optional(p.Group) }},
		"argument replaces both":   {keys: []string{`"owner": 1`, `"group": 2`}, args: "TC_REDIRECT_TAP_UID=1000", check: func(p *Plan) (any, any) { return optional(&one) + " none", optional(p.Owner) + " " + optional(p.Group) }},
		"tap name":                 {check: func(p *Plan) (any, any) { return "tap-eth0", p.TapName }},
		"tap name of other plugin": {args: "TC_REDIRECT_TAP_NAME=vmtap0", check: func(p *Plan) (any, any) { return "vmtap0", p.TapName }},
		"the runtime's MAC first":  {keys: []string{`"mac": "02:00:00:00:00:01"`, `"runtimeConfig": {"mac": "02:00:00:00:00:03"}`}, args: "MAC=02:00:00:00:00:02", check: func(p *Plan) (any, any) { return "02:00:00:00:00:03", p.MAC.String() }},
		"plain without the opt-in": {keys: []string{`"when": "annotated"`}, check: func(p *Plan) (any, any) { return true, p.Plain }},
		"opt-in by annotation":     {keys: []string{`"when": "annotated"`, `"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"tapir.dev/tap": "true"}}`}, check: func(p *Plan) (any, any) { return false, p.Plain }},
		"opt-in by argument":       {keys: []string{`"when": "annotated"`}, args: "TAP=1", check: func(p *Plan) (any, any) { return false, p.Plain }},
		"unknown arguments let by": {args: "IgnoreUnknown=1;FOO=bar;K8S_POD_NAME=p", check: func(p *Plan) (any, any) { return "c1", p.Key.ContainerID }},
		"requested addresses":      {keys: []string{`"runtimeConfig": {"ips": ["10.9.0.9/24"]}`, `"args": {"cni": {"ips": ["10.9.0.8"]}}`}, args: "IP=10.9.0.7", check: func(p *Plan) (any, any) { return []string{"10.9.0.7", "10.9.0.8", "10.9.0.9/24"}, p.IPAM.Addresses }},
		"host without the opt-in":  {keys: []string{`"placement": "host"`, `"when": "annotated"`, `"vmm": "kata"`}, check: func(p *Plan) (any, any) { return "true false ", fmt.Sprint(p.Plain, " ", p.OnHost, " ", p.DAN) }},
		"host with the opt-in": {keys: []string{`"placement": "host"`, `"when": "annotated"`, `"vmm": "kata"`, `"danDir": "/dans"`}, args: "TAP=1", check: func(p *Plan) (any, any) {
			return "false true /dans/c1.json", fmt.Sprint(p.Plain, " ", p.OnHost, " ", p.DAN)
		}},
		"no DAN file for others":                  {keys: []string{`"placement": "host"`}, check: func(p *Plan) (any, any) { return "true ", fmt.Sprint(p.OnHost, " ", p.DAN) }},
		"a veth for Kata's scan":                  {keys: []string{`"vmm": "kata"`}, check: func(p *Plan) (any, any) { return "true false ", fmt.Sprint(p.Plain, " ", p.OnHost, " ", p.DAN) }},
		"on the host any name":                    {keys: []string{`"placement": "host"`, `"tapName": "eth0"`}, check: func(p *Plan) (any, any) { return "eth0", p.TapName }},
		"a plain pod has no part in the shortcut": {keys: []string{`"when": "annotated"`, `"xdp": {"mode": "native", "uplink": "eth0"}`}, check: func(p *Plan) (any, any) { return "", string(p.XDP) + p.Uplink }},
		"the shortcut":                            {keys: []string{`"xdp": {"mode": "auto", "uplink": "eth0"}`}, check: func(p *Plan) (any, any) { return "auto eth0", string(p.XDP) + " " + p.Uplink }},
		"limits":                                  {keys: []string{`"runtimeConfig": {"bandwidth": {"egressRate": 8, "egressBurst": 8}}`}, check: func(p *Plan) (any, any) { return &state.Bandwidth{EgressRate: 8, EgressBurst: 8}, p.Bandwidth }},
		"no limits":                               {keys: []string{`"runtimeConfig": {"bandwidth": {}}`}, check: func(p *Plan) (any, any) { return (*state.Bandwidth)(nil), p.Bandwidth }},
		"the runtime's names first":               {keys: []string{`"dns": {"nameservers": ["192.0.2.1"]}`, `"runtimeConfig": {"dns": {"servers": ["192.0.2.2"]}}`}, check: func(p *Plan) (any, any) { return []string{"192.0.2.2"}, p.DNS.Nameservers }},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := planOf(t, conf(append(tc.keys, ranges)...), tc.args)
			if err != nil {
				t.Fatal(err)
			}
			want, got := tc.check(p)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDerivedNamesAreStableUniqueAndLegal(t *testing.T) {
	seen := map[string]state.Key{}
	for i := range 2000 {
		key := state.Key{Network: "net", ContainerID: fmt.Sprintf("c%d", i), IfName: "eth0"}
		mac, name, onHost := derivedMAC(key), hostName(key), hostTapName(key)
		if !bytes.Equal(mac, derivedMAC(key)) || name != hostName(key) {
			t.Fatalf("%s: derived twice, got two", key)
		}
		if mac[0]&3 != 2 || len(mac) != 6 {
			t.Fatalf("%s: MAC %s is not unicast and locally administered", key, mac)
		}
		if len(name) > maxNameLen {
			t.Fatalf("%s: name %q has %d bytes", key, name, len(name))
		}
		if len(onHost) > maxNameLen || !strings.HasPrefix(onHost, hostEndPrefix+"t") || onHost != hostTapName(key) {
			t.Fatalf("%s: TAP in the host's netns: got %q", key, onHost)
		}
		for _, s := range []string{mac.String(), name, onHost} {
			if other, ok := seen[s]; ok {
				t.Fatalf("%s and %s both have %s", key, other, s)
			}
			seen[s] = key
		}
	}
	long := derivedTapName("abcdefghijklmno")
	if len(long) != maxNameLen || !strings.HasPrefix(long, "tap-") || long == derivedTapName("abcdefghijklmnp") {
		t.Errorf("long interface name: got %q", long)
	}
}

func TestParseMACRefusesWhatNoGuestCanHave(t *testing.T) {
	for _, s := range []string{"", "zz", "00:00:00:00:00:00", "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "02:00:00:00:00:00:00:01"} {
		if mac, err := parseMAC(s); err == nil {
			t.Errorf("%q: want an error, got %s", s, mac)
		}
	}
	if mac, err := parseMAC("02-00-00-00-00-0a"); err != nil || mac.String() != (net.HardwareAddr{2, 0, 0, 0, 0, 10}).String() {
		t.Errorf("a legal MAC: got %s, %v", mac, err)
	}
}

// No input makes parsing or planning panic, and what is refused is refused with a code.
func FuzzPlan(f *testing.F) {
	f.Add(conf(ranges), "")
	f.Add(conf(`"prevResult": {"ips": [{"address": "10.0.0.2/24", "interface": 7}]}`), "IgnoreUnknown=1;IP=1.2.3.4")
	f.Add(conf(`"ipam": {"type": "host-local"}`, `"dns": null`), "MAC=;TAP=1")
	f.Add(`{"ipam": {"type": "tapir-ipam", "ranges": [[{"subnet": "::/0"}]]}}`, ";;=;")
	f.Fuzz(func(t *testing.T, stdin, args string) {
		cfg, fs, err := parse([]byte(stdin))
		if err != nil {
			return
		}
		_, err = newPlan(cfg, fs, &skel.CmdArgs{ContainerID: "c1", IfName: "eth0", Netns: "/n", Args: args, StdinData: []byte(stdin)}, present(cfg.PrevResult))
		if err != nil && codeOf(err) != 4 && codeOf(err) != 7 {
			t.Errorf("code: want 4 or 7, got %d for %v", codeOf(err), err)
		}
	})
}
