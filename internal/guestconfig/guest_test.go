package guestconfig_test

import (
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"

	"github.com/tapir-cni/tapir/internal/guestconfig"
	"github.com/tapir-cni/tapir/state"
)

var update = flag.Bool("update", false, "rewrite testdata/*.golden")

var compareAddr = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

// dual is a pod of two queue pairs and both families, as ADD records it.
func dual() state.Attachment {
	return state.Attachment{
		Key:    state.Key{Network: "tapir", ContainerID: "c1", IfName: "eth0"},
		Status: state.Ready, Netns: "/run/netns/s1",
		TAP: state.Device{Name: "tap-eth0", Index: 1048577, MAC: "fe:74:61:70:00:01"},
		Pod: state.Device{Name: "eth0", Index: 1048578, MAC: "0a:58:0a:09:00:02"},
		VMM: "generic", Queues: 2, MTU: 1450, GuestMAC: "0a:58:0a:09:00:02",
		Addresses: []state.Address{
			{Prefix: prefix("10.9.0.2/24"), Gateway: addr("10.9.0.1")},
			{Prefix: prefix("fd00:9::2/64"), Gateway: addr("fd00:9::1")},
		},
		Routes: []state.Route{
			{Dst: prefix("0.0.0.0/0"), GW: addr("10.9.0.1")},
			{Dst: prefix("::/0"), GW: addr("fd00:9::1")},
			{Dst: prefix("198.51.100.0/24")},
		},
		DNS: state.DNS{
			Nameservers: []string{"fd00:53::1", "10.96.0.10", "10.96.0.11", "10.96.0.12"},
			Domain:      "cluster.local", Search: []string{"default.svc.cluster.local", "svc.cluster.local"},
		},
	}
}

func single() state.Attachment {
	a := dual()
	a.VMM, a.Queues, a.MTU = "firecracker", 1, 9000
	a.Routes, a.DNS = nil, state.DNS{}
	return a
}

// hostRoute is the way of Calico and of placement host: a /32 and a gateway beside it.
func hostRoute() state.Attachment {
	a := single()
	a.Addresses = []state.Address{
		{Prefix: prefix("10.9.0.2/32"), Gateway: addr("169.254.1.1")},
		{Prefix: prefix("fd00:9::2/128"), Gateway: addr("fe80::1")},
	}
	return a
}

func TestEveryFormMatchesItsGolden(t *testing.T) {
	for name, a := range map[string]state.Attachment{"dual": dual(), "single": single(), "hostroute": hostRoute()} {
		t.Run(name, func(t *testing.T) {
			g, err := guestconfig.FromAttachment(a)
			if err != nil {
				t.Fatal(err)
			}
			all, err := g.All(guestconfig.AllOptions{Firecracker: guestconfig.FirecrackerOptions{MTU: name == "hostroute"}})
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".golden", text(all))
			var back guestconfig.All
			b, err := json.Marshal(all)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(b, &back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(all, back, compareAddr); diff != "" {
				t.Errorf("JSON form does not read back (-want +got):\n%s", diff)
			}
		})
	}
}

func text(all guestconfig.All) string {
	var b strings.Builder
	b.WriteString("# qemu, pci\n" + guestconfig.ShellJoin(all.QEMU))
	b.WriteString("\n# qemu, microvm\n" + guestconfig.ShellJoin(all.QEMUMicroVM))
	b.WriteString("\n# firecracker\n")
	if all.Firecracker != nil {
		b.WriteString(all.Firecracker.JSON())
	}
	b.WriteString("# cloud-hypervisor\n" + guestconfig.ShellJoin(all.CloudHypervisor))
	b.WriteString("\n# ip=\n" + all.IPLine + "\n# network-config\n" + all.NetworkConfig)
	for _, form := range []string{"qemu", "firecracker", "cloudHypervisor", "ipLine", "networkConfig"} {
		if why := all.Refused[form]; why != "" {
			b.WriteString("# refused " + form + ": " + why + "\n")
		}
	}
	return b.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestNetworkConfigIsYAMLWithEachAddressRouteAndName(t *testing.T) {
	g, err := guestconfig.FromAttachment(dual())
	if err != nil {
		t.Fatal(err)
	}
	s, err := g.NetworkConfig()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := yaml.Unmarshal([]byte(s), &got); err != nil {
		t.Fatalf("%v in\n%s", err, s)
	}
	want := map[string]any{"version": 2, "ethernets": map[string]any{"eth0": map[string]any{
		"match":    map[string]any{"macaddress": "0a:58:0a:09:00:02"},
		"set-name": "eth0", "mtu": 1450, "dhcp4": false, "dhcp6": false,
		"addresses": []any{"10.9.0.2/24", "fd00:9::2/64"},
		"gateway6":  "fd00:9::1",
		"routes": []any{
			map[string]any{"to": "0.0.0.0/0", "via": "10.9.0.1"},
			map[string]any{"to": "198.51.100.0/24", "via": "10.9.0.1"},
		},
		"nameservers": map[string]any{
			"addresses": []any{"fd00:53::1", "10.96.0.10", "10.96.0.11", "10.96.0.12"},
			"search":    []any{"default.svc.cluster.local", "svc.cluster.local"},
		},
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A MAC of digits alone, such as 02:00:00:00:00:10, is a base 60 number to a YAML 1.1 reader unless it is quoted.
func TestNetworkConfigQuotesWhatYAMLWouldRead(t *testing.T) {
	a := dual()
	a.GuestMAC, a.IfName = "02:00:00:00:00:10", "0x1f"
	g, err := guestconfig.FromAttachment(a)
	if err != nil {
		t.Fatal(err)
	}
	s, err := g.NetworkConfig()
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Ethernets map[string]struct {
			Match   struct{ MACAddress string }
			SetName string `yaml:"set-name"`
		}
	}
	if err := yaml.Unmarshal([]byte(s), &got); err != nil {
		t.Fatal(err)
	}
	if e := got.Ethernets["0x1f"]; e.Match.MACAddress != a.GuestMAC || e.SetName != "0x1f" {
		t.Errorf("want MAC %s and name 0x1f, got %+v", a.GuestMAC, got)
	}
}

func TestQueueUnitsOfEachVMM(t *testing.T) {
	for _, tt := range []struct {
		queues                    int
		qemuQueues, vectors, chIs string
	}{
		{1, "", "", "num_queues=2"},
		{2, "queues=2", "vectors=6", "num_queues=4"},
		{16, "queues=16", "vectors=34", "num_queues=32"},
		{256, "queues=256", "vectors=514", "num_queues=512"},
	} {
		a := dual()
		a.Queues = tt.queues
		g, err := guestconfig.FromAttachment(a)
		if err != nil {
			t.Fatal(err)
		}
		pci, err := g.QEMU(guestconfig.QEMUOptions{})
		if err != nil {
			t.Fatal(err)
		}
		mmio, err := g.QEMU(guestconfig.QEMUOptions{Bus: guestconfig.BusMMIO})
		if err != nil {
			t.Fatal(err)
		}
		ch, err := g.CloudHypervisor()
		if err != nil {
			t.Fatal(err)
		}
		if got := option(pci[1], "queues"); got != tt.qemuQueues {
			t.Errorf("%d pairs: QEMU queues: want %q, got %q", tt.queues, tt.qemuQueues, got)
		}
		if got := option(pci[3], "vectors"); got != tt.vectors {
			t.Errorf("%d pairs: QEMU vectors: want %q, got %q", tt.queues, tt.vectors, got)
		}
		if got := option(mmio[3], "vectors"); got != "" {
			t.Errorf("%d pairs: virtio-net-device has no vectors, got %q", tt.queues, got)
		}
		if pciMQ, mmioMQ := option(pci[3], "mq") != "", option(mmio[3], "mq") != ""; pciMQ != (tt.queues > 1) || mmioMQ != pciMQ {
			t.Errorf("%d pairs: mq=on: got %v on PCI and %v on MMIO", tt.queues, pciMQ, mmioMQ)
		}
		if got := option(ch[1], "num_queues"); got != tt.chIs {
			t.Errorf("%d pairs: Cloud Hypervisor: want %q, got %q", tt.queues, tt.chIs, got)
		}
		if _, err := g.Firecracker(guestconfig.FirecrackerOptions{}); (err != nil) != (tt.queues > 1) {
			t.Errorf("%d pairs: Firecracker: got error %v", tt.queues, err)
		}
	}
}

// option gives the element of a comma list that starts with key=, whole.
func option(list, key string) string {
	for _, o := range strings.Split(list, ",") {
		if strings.HasPrefix(o, key+"=") {
			return o
		}
	}
	return ""
}

func TestIPLine(t *testing.T) {
	type change func(*state.Attachment)
	for _, tt := range []struct {
		name    string
		change  change
		options guestconfig.IPLineOptions
		want    string // an error where it does not start with ip=
	}{
		{"two IPv4 nameservers and no more", func(*state.Attachment) {}, guestconfig.IPLineOptions{},
			"ip=10.9.0.2::10.9.0.1:255.255.255.0::eth0:off:10.96.0.10:10.96.0.11"},
		{"host and device", func(a *state.Attachment) { a.IfName = "net1" },
			guestconfig.IPLineOptions{Hostname: "vm1", Device: "eth1"},
			"ip=10.9.0.2::10.9.0.1:255.255.255.0:vm1:eth1:off:10.96.0.10:10.96.0.11"},
		{"a name that no kernel gives", func(a *state.Attachment) { a.IfName = "net1" }, guestconfig.IPLineOptions{},
			`"net1" is not a name that the guest's kernel gives`},
		{"no gateway", func(a *state.Attachment) { a.Addresses[0].Gateway = netip.Addr{}; a.DNS = state.DNS{} },
			guestconfig.IPLineOptions{}, "ip=10.9.0.2:::255.255.255.0::eth0:off"},
		{"/31", func(a *state.Attachment) {
			a.Addresses[0] = state.Address{Prefix: prefix("10.9.0.3/31"), Gateway: addr("10.9.0.2")}
			a.DNS = state.DNS{}
		}, guestconfig.IPLineOptions{}, "ip=10.9.0.3::10.9.0.2:255.255.255.254::eth0:off"},
		{"/32 with a gateway beside it", func(a *state.Attachment) { a.Addresses[0].Prefix = prefix("10.9.0.2/32") },
			guestconfig.IPLineOptions{}, "gateway 10.9.0.1 is not inside 10.9.0.2/32"},
		{"/32 that needs no gateway", func(a *state.Attachment) {
			a.Addresses[0] = state.Address{Prefix: prefix("10.9.0.2/32")}
			a.DNS = state.DNS{}
		}, guestconfig.IPLineOptions{}, "ip=10.9.0.2:::255.255.255.255::eth0:off"},
		{"IPv6 only", func(a *state.Attachment) { a.Addresses = a.Addresses[1:] }, guestconfig.IPLineOptions{},
			"the guest has no IPv4 address"},
		{"a colon in the host name", func(*state.Attachment) {}, guestconfig.IPLineOptions{Hostname: "a:b"},
			"without colons"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := dual()
			tt.change(&a)
			g, err := guestconfig.FromAttachment(a)
			if err != nil {
				t.Fatal(err)
			}
			got, err := g.IPLine(tt.options)
			if !strings.HasPrefix(tt.want, "ip=") {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("want an error with %q, got %q and %v", tt.want, got, err)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("want %s\ngot  %s, %v", tt.want, got, err)
			}
		})
	}
}

func TestPlainPodAndUnfinishedADDHaveNoGuest(t *testing.T) {
	plain, pending := dual(), dual()
	plain.TAP, plain.Queues = state.Device{}, 0
	pending.Status = state.Pending
	for want, a := range map[string]state.Attachment{"has no TAP": plain, "ADD has not ended": pending} {
		if _, err := guestconfig.FromAttachment(a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

func TestValidateReportsEveryFault(t *testing.T) {
	err := guestconfig.Guest{MAC: "01:00:5e:00:00:01", Queues: 257, MTU: 67}.Validate()
	if err == nil {
		t.Fatal("want errors, got none")
	}
	for _, want := range []string{"tap:", "mac: want a unicast", "queues: want 1 to 256, got 257", "mtu: want 68 to 65521, got 67"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in\n%v", want, err)
		}
	}
}

const criResult = `{"cniVersion": "1.1.0",
 "interfaces": [{"name": "tpr3f9a1c20b", "mac": "02:74:61:70:69:72", "mtu": 1450},
                {"name": "eth0", "mac": "0a:58:0a:09:00:02", "mtu": 1450, "sandbox": "/run/netns/s1"},
                {"name": "tap-eth0", "mac": "fe:74:61:70:00:01", "mtu": 1450, "sandbox": "/run/netns/s1"}],
 "ips": [{"interface": 1, "address": "10.9.0.2/24", "gateway": "10.9.0.1"},
         {"interface": 1, "address": "fd00:9::2/64", "gateway": "fd00:9::1"}],
 "routes": [{"dst": "0.0.0.0/0", "gw": "10.9.0.1"}, {"dst": "::/0", "gw": "fd00:9::1"}, {"dst": "198.51.100.0/24"}],
 "dns": {"nameservers": ["fd00:53::1", "10.96.0.10", "10.96.0.11", "10.96.0.12"], "domain": "cluster.local",
         "search": ["default.svc.cluster.local", "svc.cluster.local"]}}`

func parseResult(t *testing.T, s string) *types100.Result {
	t.Helper()
	r, err := types100.NewResult([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return r.(*types100.Result)
}

func TestResultAndAttachmentGiveTheSameGuest(t *testing.T) {
	want, err := guestconfig.FromAttachment(dual())
	if err != nil {
		t.Fatal(err)
	}
	pseudo := strings.Replace(criResult, `"sandbox": "/run/netns/s1"}],`, `"sandbox": "/run/netns/s1"},
	  {"name": "tap-eth0", "mac": "0a:58:0a:09:00:02", "mtu": 1450, "sandbox": "c1"}],`, 1)
	pseudo = strings.Replace(pseudo, `"gateway": "fd00:9::1"}],`, `"gateway": "fd00:9::1"},
	  {"interface": 3, "address": "10.9.0.2/24", "gateway": "10.9.0.1"}],`, 1)
	for layout, s := range map[string]string{"cri": criResult, "firecracker": pseudo} {
		got, err := guestconfig.FromResult(parseResult(t, s),
			guestconfig.Query{ContainerID: "c1", IfName: "eth0", Queues: 2, VMM: "generic"})
		if err != nil {
			t.Errorf("%s: %v", layout, err)
			continue
		}
		if diff := cmp.Diff(want, got, compareAddr, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-attachment +result):\n%s", layout, diff)
		}
	}
}

func TestResultWithoutTAPIsAnErrorThatSaysWhy(t *testing.T) {
	plain := strings.Replace(criResult, `,
                {"name": "tap-eth0", "mac": "fe:74:61:70:00:01", "mtu": 1450, "sandbox": "/run/netns/s1"}`, "", 1)
	for _, tt := range []struct{ result, ifName, want string }{
		{plain, "eth0", `"plain" names none`},
		{criResult, "net1", `no interface is named "net1"`},
	} {
		_, err := guestconfig.FromResult(parseResult(t, tt.result), guestconfig.Query{ContainerID: "c1", IfName: tt.ifName})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("want an error with %q, got %v", tt.want, err)
		}
	}
}

func TestShellJoinSurvivesAShell(t *testing.T) {
	got := guestconfig.ShellJoin([]string{"a=b,c:d", "", "it's", "$x y", "tap~"})
	if want := `a=b,c:d '' 'it'\''s' '$x y' 'tap~'`; got != want {
		t.Errorf("want %s, got %s", want, got)
	}
}

// Where the guest brings an address of its own, the record and layout "firecracker" tell it, and no form speaks of the pod's.
func TestGuestWithAnAddressOfItsOwn(t *testing.T) {
	a := dual()
	a.Guest = []state.Address{
		{Prefix: netip.MustParsePrefix("172.16.0.2/30"), Gateway: netip.MustParseAddr("172.16.0.1")},
		{Prefix: netip.MustParsePrefix("fd00:172::2/126"), Gateway: netip.MustParseAddr("fd00:172::1")},
	}
	g, err := guestconfig.FromAttachment(a)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a.Guest, g.Addresses, compareAddr); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	all, err := g.All(guestconfig.AllOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pods := range []string{"10.9.0.2", "10.9.0.1", "fd00:9::2", "fd00:9::1"} {
		if strings.Contains(all.IPLine+all.NetworkConfig, pods) {
			t.Errorf("the guest is told of %s:\n%s\n%s", pods, all.IPLine, all.NetworkConfig)
		}
	}
	pseudo := strings.Replace(criResult, `"sandbox": "/run/netns/s1"}],`, `"sandbox": "/run/netns/s1"},
	  {"name": "tap-eth0", "mac": "0a:58:0a:09:00:02", "mtu": 1450, "sandbox": "c1"}],`, 1)
	pseudo = strings.Replace(pseudo, `"gateway": "fd00:9::1"}],`, `"gateway": "fd00:9::1"},
	  {"interface": 3, "address": "172.16.0.2/30", "gateway": "172.16.0.1"}],`, 1)
	got, err := guestconfig.FromResult(parseResult(t, pseudo), guestconfig.Query{ContainerID: "c1", IfName: "eth0"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a.Guest[:1], got.Addresses, compareAddr); diff != "" {
		t.Errorf("addresses of the result (-want +got):\n%s", diff)
	}
}
