package cni_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// CNI codes that the tests want; docs/operations.md says what each means.
const (
	codeEnvironment = 4
	codeIO          = 5
	codeDecoding    = 6
	codeConfig      = 7
	codeNetns       = 8
	codeTryAgain    = 11
	codeUnavailable = 50
	codeExhausted   = 100
	codeBusy        = 102
	codeDiffers     = 104
)

// TestConfigFaults wants each fault of a configuration refused, with its place; nothing is made.
func TestConfigFaults(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", nil)
	set := func(r object) object { return object{"type": "tapir-ipam", "ranges": [][]object{{r}}} }
	for _, tt := range []struct {
		name string
		over object
		args string
		code uint
		want []string
	}{
		{"unknown key", object{"qeues": 2}, "", codeConfig, []string{`unknown key "qeues"; did you mean "queues"?`}},
		{"unknown key below", object{"ipam": object{"type": "tapir-ipam", "rnges": []int{}}}, "", codeConfig, []string{`ipam: unknown key "rnges"; did you mean "ranges"?`}},
		{"wrong type", object{"queues": "two"}, "", codeConfig, []string{`queues: want a whole number, got string "two"`}},
		{"no queue", object{"queues": 0}, "", codeConfig, []string{"queues: want 1 to 256, got 0"}},
		{"257 queues", object{"queues": 257}, "", codeConfig, []string{"queues: want 1 to 256, got 257"}},
		{"Firecracker with queues", object{"vmm": "firecracker", "queues": 2}, "", codeConfig, []string{"queues: the TAP has 2 queues", "Firecracker", `"queues": 1`}},
		{"unknown VMM", object{"vmm": "bhyve"}, "", codeConfig, []string{"vmm: want one of", `"bhyve"`}},
		{"unknown layout", object{"result": "full"}, "", codeConfig, []string{"result: want one of cri, firecracker, plain"}},
		{"unknown redirect", object{"redirect": "mirred"}, "", codeConfig, []string{"redirect: want one of auto, tcx, clsact"}},
		{"MTU of nothing", object{"mtu": 67}, "", codeConfig, []string{"mtu: want 0 or 68 to 65521, got 67"}},
		{"MTU beyond the driver's", object{"mtu": 65522}, "", codeConfig, []string{"got 65522"}},
		{"MTU below IPv6's", object{"mtu": 1279}, "", codeConfig, []string{"mtu: want at least 1280 with IPv6 ranges, got 1279"}},
		{"ring of nothing", object{"txQueueLen": 0}, "", codeConfig, []string{"txQueueLen: want at least 1"}},
		{"TAP name of 16 bytes", object{"tapName": "tap0123456789abc"}, "", codeConfig, []string{"tapName: want at most 15 bytes"}},
		{"TAP name with a slash", object{"tapName": "../tap"}, "", codeConfig, []string{"tapName: want a name without"}},
		{"TAP name of the veth", object{"tapName": "eth0"}, "", codeConfig, []string{"tapName: want a name that is not CNI_IFNAME"}},
		{"multicast MAC", object{"mac": "01:00:5e:00:00:01"}, "", codeConfig, []string{"mac: want a unicast MAC"}},
		{"the gateway's MAC", object{"mac": gatewayMAC.String()}, "", codeConfig, []string{"mac: want a MAC that is not the gateway's"}},
		{"no MAC", object{"mac": "guest"}, "", codeConfig, []string{"mac: want a MAC of six octets"}},
		{"negative owner", object{"owner": -1}, "", codeConfig, []string{"owner: want 0 to"}},
		{"no prefix", object{"nonMasqueradeCIDRs": []string{"10.0.0.0/8", "there"}}, "", codeConfig, []string{`nonMasqueradeCIDRs[1]: want a prefix`, `"there"`}},
		{"relative state directory", object{"stateDir": "tapir"}, "", codeConfig, []string{"stateDir: want an absolute path"}},
		{"subnet", object{"ipam": set(object{"subnet": "10.9.0.0/33"})}, "", codeConfig, []string{"ipam.ranges[0][0].subnet"}},
		{"range outside", object{"ipam": set(object{"subnet": "10.9.0.0/24", "rangeStart": "10.8.0.1"})}, "", codeConfig, []string{"ipam.ranges[0][0].rangeStart"}},
		{"no ranges", object{"ipam": object{"type": "tapir-ipam"}}, "", codeConfig, []string{"ipam.ranges: want at least one"}},
		{"no ipam", object{"ipam": nil}, "", codeConfig, []string{"ipam: is missing"}},
		{"Kata's own TAP", object{"vmm": "kata", "queues": 2}, "", codeConfig, []string{"queues: want 1", "Kata makes its own"}},
		{"a host end's name", object{"placement": "host", "tapName": "tpr0"}, "", codeConfig, []string{"tapName: want a name that does not start with"}},
		{"shortcut on the host", object{"placement": "host", "xdp": object{"mode": "native"}}, "", codeConfig, []string{"xdp.mode", `placement "host"`}},
		{"configuration by a server", object{"guestConfig": "slaac"}, "", codeConfig, []string{"guestConfig: want one of none, dhcp"}},
		{"DHCP, which is not built", object{"guestConfig": "dhcp"}, "", codeConfig, []string{`guestConfig: want "none"`, "guest-config"}},
		{"uplink of no shortcut", object{"xdp": object{"uplink": "up0"}}, "", codeConfig, []string{"xdp.uplink"}},
		{"bandwidth without a burst", object{"runtimeConfig": object{"bandwidth": object{"ingressRate": 1}}}, "", codeConfig, []string{"runtimeConfig.bandwidth.ingressBurst"}},
		{"not ours: portMappings", object{"runtimeConfig": object{"portMappings": []object{}}}, "", codeConfig, []string{"runtimeConfig.portMappings"}},
		{"args: unknown", nil, "TAP_QUEUE=2", codeEnvironment, []string{`TAP_QUEUE`, `did you mean "TAP_QUEUES"?`}},
		{"args: queues", nil, "TAP_QUEUES=many", codeEnvironment, []string{"CNI_ARGS.TAP_QUEUES: want a number"}},
		{"args: too many queues", nil, "TAP_QUEUES=300", codeEnvironment, []string{"CNI_ARGS.TAP_QUEUES: want 1 to 256, got 300"}},
		{"args: name", nil, "TAP_NAME=a/b", codeEnvironment, []string{"CNI_ARGS.TAP_NAME"}},
		{"args: MAC", nil, "MAC=ff:ff:ff:ff:ff:ff", codeEnvironment, []string{"CNI_ARGS.MAC: want a unicast MAC"}},
		{"args: no pair", nil, "TAP_OWNER", codeEnvironment, []string{`want NAME=VALUE`, "TAP_OWNER"}},
		{"requested address outside", nil, "IP=10.8.0.1", codeConfig, []string{`requested address "10.8.0.1"`}},
		{"requested gateway", nil, "IP=10.9.0.1", codeConfig, []string{"gateway"}},
	} {
		p.conf, p.args = conf(tt.over), tt.args
		text := p.fails("ADD", tt.code, nil)
		for _, w := range tt.want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: want %q in: %s", tt.name, w, text)
			}
		}
		// A requested address needs a look at what is leased; all else is refused before anything is touched.
		if !strings.HasPrefix(tt.name, "requested") && (exists(stateDir) || exists(pinDir)) {
			t.Fatalf("%s: a refused configuration made %s or %s", tt.name, stateDir, pinDir)
		}
	}
	if lines := without(n.snapshot(p.netns), "node-"); len(lines) > 0 {
		t.Errorf("refused configurations left %q", lines)
	}
}

func TestFaultsAreReportedAtOnce(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(object{"qeues": 2, "queues": 999, "vmm": "x", "mtu": 12, "mac": "zz", "txQueueLen": -1,
		"ipam": object{"type": "tapir-ipam", "ranges": [][]object{{{"subnet": "no"}, {"subnett": "10.9.0.0/24"}}}, "reuseDelay": "soon"}}))
	p.args = "TAP_QUEUES=x"
	wantText(t, p.fails("ADD", codeConfig, nil), `"qeues"`, "queues: want 1 to 256", "vmm:", "mtu:", "mac:", "txQueueLen:",
		"ipam.ranges[0][0].subnet", `ipam.ranges[0][1]: unknown key "subnett"; did you mean "subnet"?`, "ipam.reuseDelay", "CNI_ARGS.TAP_QUEUES")
}

// Control for the above: these are taken.
func TestUnusualButRightConfigurations(t *testing.T) {
	n := newNode(t)
	for i, tt := range []struct {
		over object
		args string
	}{
		{object{"capabilities": object{"mac": true, "ips": true}, "runtimeConfig": object{"mac": "02:00:00:00:07:07", "ips": []string{"10.9.0.77/24"}}}, ""},
		{object{"runtimeConfig": object{"ipRanges": [][]object{{{"subnet": "10.77.0.0/24"}}}}}, ""},
		{object{"args": object{"cni": object{"ips": []string{"10.9.0.78"}}}}, "K8S_POD_NAME=a;K8S_POD_NAMESPACE=b"},
		{object{"mtu": 68, "ipam": ranges("10.70.0.0/24")}, ""},
		{object{"runtimeConfig": object{"bandwidth": nil, "portMappings": nil}}, "IgnoreUnknown=1;whatever=x"},
		{object{"xdp": object{"mode": "off"}, "nonMasqueradeCIDRs": []string{}, "dns": object{}}, ""},
	} {
		p := n.pod("c"+string(rune('0'+i)), conf(tt.over))
		p.args = tt.args
		p.add()
		p.works("CHECK", nil)
		p.works("DEL", nil)
	}
}

func TestInputThatIsNoConfiguration(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	whole := string(marshal(t, p.conf))
	for name, stdin := range map[string]string{
		"empty": "", "blank": "\n", "cut": whole[:len(whole)-2], "two objects": whole + whole, "a list": "[" + whole + "]", "text": "queues=2",
	} {
		for _, verb := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
			out := n.run([]byte(stdin), p.env(verb), "tapir")
			var e struct{ Code uint }
			if err := json.Unmarshal(out.stdout, &e); err != nil || out.code == 0 {
				t.Errorf("%s with %s input: want a CNI error, got %s", verb, name, out)
			} else if e.Code != codeDecoding && e.Code != codeConfig {
				t.Errorf("%s with %s input: want code 6 or 7, got %s", verb, name, out)
			}
		}
	}
}

// A runtime may close what it does not use.
func TestClosedStandardInput(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	cmd := exec.Command("/bin/sh", "-c", `exec "$0" <&-`, filepath.Join(os.Getenv(binDirEnv), "tapir"))
	cmd.Env = p.env("ADD")
	out := n.runCmd(cmd)
	var e struct{ Code uint }
	if err := json.Unmarshal(out.stdout, &e); err != nil || e.Code == 0 || out.code != 1 {
		t.Errorf("ADD with standard input closed: want a CNI error, got %s", out)
	}
}

// Nothing of the environment but CNI's variables is needed.
func TestEmptyEnvironment(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(object{"ipMasq": true, "queues": 2}))
	env := slices.DeleteFunc(p.env("ADD"), func(v string) bool { return strings.HasPrefix(v, "PATH=") || strings.HasPrefix(v, "CNI_ARGS=") })
	if out := n.run(marshal(t, p.conf), env, "tapir"); out.code != 0 {
		t.Errorf("ADD: %s", out)
	}
	p.works("CHECK", nil)
}

// What a runtime must set is code 4 where it is missing.
func TestMissingRuntimeVariables(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	for _, name := range []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"} {
		env := slices.DeleteFunc(p.env("ADD"), func(v string) bool { return strings.HasPrefix(v, name+"=") })
		wantText(t, wantCode(t, n.run(marshal(t, p.conf), env, "tapir"), codeEnvironment), name)
	}
	p.ifName = "interface0123456"
	wantText(t, p.fails("ADD", codeEnvironment, nil), "interface name is too long")
	p.ifName, p.id = "eth0", "../c1"
	p.fails("ADD", codeEnvironment, nil)
	// The tag by which devices are found again holds 255 bytes.
	p.id = strings.Repeat("a", 250)
	wantText(t, p.fails("ADD", codeConfig, nil), "name, CNI_CONTAINERID and CNI_IFNAME together")
	if lines := without(n.snapshot(p.netns), "node-"); len(lines) > 0 {
		t.Errorf("left %q", lines)
	}
}
