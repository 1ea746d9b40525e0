package cni_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
)

// specVersions are those that a runtime may speak.
var specVersions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

func TestResultOfEachVersionAndLayout(t *testing.T) {
	n := newNode(t)
	dns := object{"nameservers": []string{"10.9.0.53"}, "search": []string{"example.org"}}
	for _, version := range specVersions {
		for _, layout := range []string{"cri", "plain", "firecracker"} {
			t.Run(version+" "+layout, func(t *testing.T) {
				p := n.pod("c1", conf(object{"cniVersion": version, "result": layout, "dns": dns}))
				p.conf["ipam"] = ranges("10.9.0.0/24", "fd00:9::/64").with(object{"reuseDelay": "0s"})
				p.args = "IP=10.9.0.2,fd00:9::2"
				r := p.add()
				wantEntries(t, p, r, layout, version)
				wantKernelValues(t, p, r, version)
				wantAddresses(t, r, layout)
				if err := readAsGoCNI(r); err != nil {
					t.Errorf("go-cni could not use it: %v", err)
				}
				_, err := readAsFirecrackerSDK(t, r, p.id)
				if sdk := layout == "firecracker"; sdk != (err == nil) {
					t.Errorf("layout %s read by the Firecracker SDK's rules: %v", layout, err)
				}
				if diff := cmp.Diff(types.DNS{Nameservers: []string{"10.9.0.53"}, Search: []string{"example.org"}}, r.DNS); diff != "" {
					t.Errorf("dns (-want +got):\n%s", diff)
				}
				if version != "0.3.1" { // which knows no CHECK
					p.works("CHECK", object{"prevResult": r})
				}
				p.works("DEL", object{"prevResult": r})
			})
		}
	}
}

// entry is an interface of a result, without MAC and MTU.
type entry struct{ Name, Sandbox string }

// wantEntries wants just the interfaces of the layout, in their order.
func wantEntries(t *testing.T, p *pod, r *types100.Result, layout, version string) {
	t.Helper()
	want := []entry{{hostEnd(t, r), ""}, {"eth0", p.netns}}
	if layout != "plain" {
		want = append(want, entry{"tap-eth0", p.netns})
	}
	if layout == "firecracker" {
		want = append(want, entry{"tap-eth0", p.id})
	}
	var got []entry
	for _, i := range r.Interfaces {
		got = append(got, entry{i.Name, i.Sandbox})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("interfaces (-want +got):\n%s", diff)
	}
	routes := map[string]string{}
	for _, route := range r.Routes {
		routes[route.Dst.String()] = route.GW.String()
	}
	if diff := cmp.Diff(map[string]string{"0.0.0.0/0": "10.9.0.1", "::/0": "fd00:9::1"}, routes); diff != "" {
		t.Errorf("routes of %s (-want +got):\n%s", version, diff)
	}
}

// wantKernelValues compares MACs and MTUs with those of the devices; the pseudo entry has the guest's.
func wantKernelValues(t *testing.T, p *pod, r *types100.Result, version string) {
	t.Helper()
	for _, i := range r.Interfaces {
		netns, name := i.Sandbox, i.Name
		switch i.Sandbox {
		case "":
			netns = p.n.netns
		case p.id:
			netns, name = p.netns, "eth0"
		}
		testnode.In(t, netns, func() {
			dev := link(t, name).Attrs()
			if i.Mac != dev.HardwareAddr.String() {
				t.Errorf("%s in %q: result has MAC %s, the kernel %s", i.Name, i.Sandbox, i.Mac, dev.HardwareAddr)
			}
			if dev.MTU != uplinkMTU || version == "1.1.0" && i.Mtu != dev.MTU {
				t.Errorf("%s in %q: result has MTU %d, the kernel %d, want %d", i.Name, i.Sandbox, i.Mtu, dev.MTU, uplinkMTU)
			}
		})
	}
}

// wantAddresses wants both families on the pod end, IPv4 first, and in layout firecracker one copy of the IPv4 address.
func wantAddresses(t *testing.T, r *types100.Result, layout string) {
	t.Helper()
	want := []string{"1 10.9.0.2/24 10.9.0.1", "1 fd00:9::2/64 fd00:9::1"}
	if layout == "firecracker" {
		want = append(want, "3 10.9.0.2/24 10.9.0.1")
	}
	var got []string
	for _, ip := range r.IPs {
		if ip.Interface == nil {
			t.Fatalf("%s has no interface index", &ip.Address)
		}
		got = append(got, fmt.Sprintf("%d %s %s", *ip.Interface, &ip.Address, ip.Gateway))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ips (-want +got):\n%s", diff)
	}
}

func TestFirecrackerSDKGetsWhatItNeeds(t *testing.T) {
	n := newNode(t)
	p := n.pod("vm-1", conf(object{"result": "firecracker", "vmm": "firecracker"}))
	p.works("DEL", nil) // 10: the SDK calls DEL first
	r := p.add()
	got, err := readAsFirecrackerSDK(t, r, "vm-1")
	if err != nil {
		t.Fatal(err)
	}
	want := sdkConf{tap: "tap-eth0", mac: r.Interfaces[1].Mac, bootArg: "ip=10.9.0.2::10.9.0.1:255.255.255.0:::off:", mtu: uplinkMTU}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(sdkConf{})); diff != "" {
		t.Errorf("what the SDK reads (-want +got):\n%s", diff)
	}
}

// The SDK wants one address, whatever the pod has.
func TestFirecrackerSDKGetsOneAddressOfMany(t *testing.T) {
	n := newNode(t)
	p := n.pod("vm-1", conf(object{"result": "firecracker", "ipam": ranges("fd00:9::/64", "10.9.0.0/24", "10.8.0.0/24")}))
	r := p.add()
	got, err := readAsFirecrackerSDK(t, r, "vm-1")
	if err != nil || got.bootArg != "ip=10.9.0.2::10.9.0.1:255.255.255.0:::off:" {
		t.Errorf("the SDK reads %+v (%v), want the first IPv4 address", got, err)
	}
	if len(r.IPs) != 4 {
		t.Errorf("ips: want the three addresses and one copy, got %v", r.IPs)
	}
	g := boot(p, r)
	g.wantPing(g.gw[true], g.gw[false])
}

// The checker must refuse what the SDK refuses, or the test above shows nothing.
func TestSDKCheckerRefusesBrokenResults(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(object{"result": "firecracker"}))
	whole := marshal(t, p.add())
	for name, spoil := range map[string]func(*types100.Result){
		"no pseudo entry":     func(r *types100.Result) { r.Interfaces[3].Sandbox = "other" },
		"two pseudo entries":  func(r *types100.Result) { r.Interfaces[0].Sandbox = "c1" },
		"no TAP":              func(r *types100.Result) { r.Interfaces[2].Name = "other" },
		"host veth so called": func(r *types100.Result) { r.Interfaces[0].Name = "tap-eth0" },
		"IPv6 there too":      func(r *types100.Result) { r.IPs[1].Interface = types100.Int(3) },
		"no address there":    func(r *types100.Result) { r.IPs[2].Interface = nil },
		"no gateway":          func(r *types100.Result) { r.IPs[2].Gateway = nil },
	} {
		var r types100.Result
		if err := json.Unmarshal(whole, &r); err != nil {
			t.Fatal(err)
		}
		spoil(&r)
		if got, err := readAsFirecrackerSDK(t, &r, "c1"); err == nil {
			t.Errorf("%s: the checker took it for %+v", name, got)
		}
	}
}

func TestResultWithOneFamily(t *testing.T) {
	for _, subnet := range []string{"10.7.0.0/24", "fd00:7::/64"} {
		t.Run(subnet, func(t *testing.T) {
			n := newNode(t)
			p := n.pod("c1", conf(object{"ipam": ranges(subnet), "result": "firecracker"}))
			r := p.add()
			first := netip.MustParsePrefix(subnet).Addr().Next().Next()
			want := 1
			if first.Is4() {
				want = 2 // and the pseudo entry's copy
			}
			if len(r.IPs) != want || r.IPs[0].Address.IP.String() != first.String() {
				t.Errorf("ips: want %d, the first %s, got %v", want, first, r.IPs)
			}
			if len(r.Routes) != 1 {
				t.Errorf("routes: want that of the one family, got %v", r.Routes)
			}
			boot(p, r).wantPing(netip.MustParsePrefix(subnet).Addr().Next())
			p.works("CHECK", object{"prevResult": r})
		})
	}
}

func TestVersionVerbNamesAllVersions(t *testing.T) {
	n := newNode(t)
	out := n.run([]byte(`{"cniVersion":"1.1.0"}`), []string{"CNI_COMMAND=VERSION"}, "tapir")
	var got struct{ SupportedVersions []string }
	if err := json.Unmarshal(out.stdout, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if diff := cmp.Diff(specVersions, got.SupportedVersions); diff != "" {
		t.Errorf("supported versions (-want +got):\n%s", diff)
	}
}
