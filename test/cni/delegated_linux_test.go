package cni_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
)

// own is the network that delegated IPAM plugins give addresses of.
var own = neighbour{v4: "10.40.0.0/24", v6: "fd00:40::/64", gw4: "10.40.0.1", gw6: "fd00:40::1", conf: object{}}

func TestDelegatedIPAMServesGuest(t *testing.T) {
	for _, version := range []string{"1.1.0", "0.3.1"} {
		for _, kind := range []string{"host-local", "static", "stand-in"} {
			if version == "0.3.1" && kind == "static" {
				continue
			}
			t.Run(kind+" "+version, func(t *testing.T) {
				n := newNode(t)
				dir, fake := t.TempDir(), newFake(t, "works")
				ipam := map[string]object{"host-local": own.hostLocal(dir), "static": own.static(50), "stand-in": {"type": fake.name}}[kind]
				p := n.delegated("c1", conf(object{"cniVersion": version, "ipam": ipam, "result": "firecracker"}), fake.dir)
				out := p.call("ADD", nil)
				if out.code != 0 {
					t.Fatal(out)
				}
				r := parseResult(t, out.stdout, version)
				var got []string
				for _, ip := range r.IPs {
					got = append(got, fmt.Sprint(*ip.Interface, " ", ip.Address.IP, " ", ip.Gateway))
				}
				ip4, ip6 := "10.40.0.50", "fd00:40::32"
				if kind == "stand-in" {
					ip4, ip6 = "10.40.0.9", "fd00:40::9"
				}
				want := []string{"1 " + ip4 + " 10.40.0.1", "1 " + ip6 + " fd00:40::1", "3 " + ip4 + " 10.40.0.1"}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("ips (-want +got):\n%s", diff)
				}
				if kind == "stand-in" && (len(r.DNS.Nameservers) != 1 || r.DNS.Nameservers[0] != "10.40.0.53") {
					t.Errorf("dns: want that of the IPAM plugin, got %v", r.DNS)
				}
				g := bootSDK(p.pod, r)
				g.wantPing(g.gw[true], nodeIP4)
				g.wantPingBy(g.gw[false], nodeIP6)
				if version != "0.3.1" {
					p.works("CHECK", object{"prevResult": r})
				}
				p.works("DEL", object{"prevResult": r})
				if left := append(hostLocalLeases(t, dir, "pods"), fake.leases()...); len(left) > 0 {
					t.Errorf("leases after DEL: %q", left)
				}
			})
		}
	}
}

func (p *delegatedPod) works(verb string, over object) {
	p.n.t.Helper()
	if out := p.call(verb, over); out.code != 0 || len(out.stdout) > 0 {
		p.n.t.Errorf("%s of %s: want success and no output, got %s", verb, p.id, out)
	}
}

func (p *delegatedPod) fails(verb string, code uint, over object) string {
	p.n.t.Helper()
	return wantCode(p.n.t, p.call(verb, over), code)
}

// The IPAM plugin gets what tapir got: every key and every variable but CNI_COMMAND.
func TestDelegatedIPAMGetsWhatTapirGot(t *testing.T) {
	n := newNode(t)
	fake := newFake(t, "works")
	p := n.delegated("c1", conf(object{"ipam": object{"type": fake.name, "odd": "key"}, "runtimeConfig": object{"ips": []string{"10.40.0.9"}}}), fake.dir)
	p.args = "IP=10.40.0.9;K8S_POD_NAME=web"
	r := parseResult(t, p.call("ADD", nil).stdout, "1.1.0")
	p.works("CHECK", object{"prevResult": r})
	p.works("STATUS", nil)
	p.works("GC", object{"cni.dev/valid-attachments": []object{{"containerID": "c1", "ifname": "eth0"}}})
	p.works("DEL", object{"prevResult": r})
	if got, want := fake.verbs(), "ADD CHECK STATUS GC DEL"; got != want {
		t.Fatalf("calls: want %s, got %s", want, got)
	}
	for _, c := range fake.calls() {
		for _, want := range []string{"CNI_COMMAND=" + c.Verb, "CNI_CONTAINERID=c1", "CNI_NETNS=" + p.netns, "CNI_IFNAME=eth0", "CNI_ARGS=" + p.args} {
			if !slices.Contains(c.Env, want) {
				t.Errorf("%s: want %s in %q", c.Verb, want, c.Env)
			}
		}
		wantText(t, string(c.Config), `"odd":"key"`, `"ips":["10.40.0.9"]`, `"name":"pods"`)
	}
	wantText(t, string(fake.calls()[3].Config), `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`)
}

// A lease does not outlive an ADD that fails, whoever failed it and when.
func TestDelegatedLeaseIsReleasedWhenAddFails(t *testing.T) {
	for _, tt := range []struct {
		how  string // of the stand-in
		code uint
		want []string
		in   func(t *testing.T, p *delegatedPod) // the way
		over object
	}{
		{"fails", 77, []string{"the stand-in has a bad day", "no lease today"}, nil, nil},
		{"dies", 999, []string{"fake-ipam-dies", "killed"}, nil, nil},
		{"babbles", 999, []string{"fake-ipam-babbles"}, nil, nil},
		{"is-silent", 999, []string{"fake-ipam-is-silent"}, nil, nil},
		{"has-no-address", 999, []string{"fake-ipam-has-no-address", "no address"}, nil, nil},
		{"works", 102, []string{`"tap-eth0"`}, func(t *testing.T, p *delegatedPod) { occupy(t, p.netns, "tap-eth0") }, nil},
		{"works", 102, []string{`"eth0"`}, func(t *testing.T, p *delegatedPod) { occupy(t, p.netns, "eth0") }, nil},
		{"works", 7, []string{"mtu", "1280"}, nil, object{"mtu": 900}},
	} {
		t.Run(tt.how+" "+strings.Join(tt.want, " "), func(t *testing.T) {
			n := newNode(t)
			n.warm(conf(object{"ipMasq": true}))
			fake := newFake(t, tt.how)
			p := n.delegated("c1", conf(object{"ipam": object{"type": fake.name}, "ipMasq": true}), fake.dir)
			if tt.in != nil {
				tt.in(t, p)
			}
			before := n.snapshot(p.netns)
			wantText(t, p.fails("ADD", tt.code, tt.over), tt.want...)
			wantSame(t, "after the failed ADD", before, n.snapshot(p.netns))
			if left := fake.leases(); len(left) > 0 {
				t.Errorf("the failed ADD left the lease %q; calls: %s", left, fake.verbs())
			}
			if got := fake.verbs(); got != "ADD DEL" {
				t.Errorf("calls: want ADD DEL, got %s", got)
			}
		})
	}
}

// occupy makes a device of that name in a sandbox.
func occupy(t testing.TB, netns, name string) {
	t.Helper()
	testnode.In(t, netns, func() {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
			t.Fatal(err)
		}
	})
}

// A second ADD must not release what the first one leased.
func TestDelegatedSecondAddKeepsFirstLease(t *testing.T) {
	n := newNode(t)
	fake, dir := newFake(t, "works"), t.TempDir()
	for _, ipam := range []object{{"type": fake.name}, own.hostLocal(dir)} {
		p := n.delegated(fmt.Sprint("c-", ipam["type"]), conf(object{"ipam": ipam}), fake.dir)
		if out := p.call("ADD", nil); out.code != 0 {
			t.Fatal(out)
		}
		leases := func() []string { return append(hostLocalLeases(t, dir, "pods"), fake.leases()...) }
		had := leases()
		before := n.snapshot(p.netns)
		wantText(t, p.fails("ADD", 102, nil), "exists since")
		wantSame(t, "after the second ADD", before, n.snapshot(p.netns))
		if diff := cmp.Diff(had, leases()); diff != "" {
			t.Errorf("leases (-before +after the second ADD):\n%s", diff)
		}
		p.works("CHECK", nil)
		p.works("DEL", nil)
		if left := leases(); len(left) > 0 {
			t.Errorf("leases after DEL: %q", left)
		}
	}
}

func TestDelegatedIPAMThatIsNotThere(t *testing.T) {
	n := newNode(t)
	for _, tt := range []struct {
		plugin string
		want   []string
	}{
		{"nobody", []string{`"nobody"`, "CNI_PATH", os.Getenv(binDirEnv)}},
		{"../host-local", []string{"ipam.type", "../host-local"}},
		{"/bin/true", []string{"ipam.type", "/bin/true"}},
		{"..", []string{"ipam.type"}},
		{".", []string{"ipam.type"}},
	} {
		p := n.delegated("c1", conf(object{"ipam": object{"type": tt.plugin}}))
		before := n.snapshot(p.netns)
		wantText(t, p.fails("ADD", 7, nil), tt.want...)
		wantText(t, p.fails("STATUS", 50, nil), tt.want...)
		wantSame(t, "after ADD with "+tt.plugin, without(before, "counters"), without(n.snapshot(p.netns), "counters"))
	}
	// One that has gone since ADD does not keep DEL from removing the devices.
	fake := newFake(t, "works")
	p := n.delegated("c2", conf(object{"ipam": object{"type": fake.name}}), fake.dir)
	before := n.snapshot(p.netns)
	if out := p.call("ADD", nil); out.code != 0 {
		t.Fatal(out)
	}
	p.dirs = nil
	wantText(t, p.fails("DEL", 7, nil), fake.name)
	wantSame(t, "after a DEL without the IPAM plugin", without(before, "table "), without(n.snapshot(p.netns), "table "))
	p.dirs = []string{fake.dir}
	p.works("DEL", nil)
	if left := fake.leases(); len(left) > 0 {
		t.Errorf("the DEL with the plugin back again left %q", left)
	}
}

// dhcp without its daemon fails in words of its own.
func TestDelegatedDHCPWithoutDaemon(t *testing.T) {
	n := newNode(t)
	n.warm(conf(nil))
	p := n.delegated("c1", conf(object{"ipam": object{"type": "dhcp"}}))
	before := n.snapshot(p.netns)
	wantText(t, p.fails("ADD", 999, nil), `"dhcp"`, "dhcp.sock", "no such file")
	wantSame(t, "after the failed ADD", before, n.snapshot(p.netns))
}

// Verbs that the IPAM plugin fails fail with its code and text.
func TestDelegatedIPAMFailsAVerb(t *testing.T) {
	n := newNode(t)
	for _, verb := range []string{"CHECK", "DEL", "GC", "STATUS"} {
		fake := newFake(t, verb)
		p := n.delegated("c-"+verb, conf(object{"ipam": object{"type": fake.name}}), fake.dir)
		if out := p.call("ADD", nil); out.code != 0 {
			t.Fatal(out)
		}
		code := uint(77)
		if verb == "STATUS" {
			code = 50
		}
		text := p.fails(verb, code, object{"cni.dev/valid-attachments": []object{{"containerID": p.id, "ifname": "eth0"}}})
		wantText(t, text, fake.name, "the stand-in has a bad day")
		p.call("DEL", nil)
	}
}

func TestDelegatedLeaseThatIsGoneFailsCheck(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	p := n.delegated("c1", conf(object{"ipam": own.hostLocal(dir)}))
	out := p.call("ADD", nil)
	r := parseResult(t, out.stdout, "1.1.0")
	p.works("CHECK", object{"prevResult": r})
	for _, ip := range hostLocalLeases(t, dir, "pods") {
		if err := os.Remove(filepath.Join(dir, "pods", ip)); err != nil {
			t.Fatal(err)
		}
	}
	if out := p.call("CHECK", object{"prevResult": r}); out.code != 1 {
		t.Errorf("CHECK without the lease: want an error, got %s", out)
	}
	p.works("DEL", nil)
}

// An IPAM plugin can give out an address that a pod of this node has: the second one must not take the first one's frames.
func TestDelegatedAddressThatIsTaken(t *testing.T) {
	n := newNode(t)
	first := n.delegated("first", conf(object{"ipam": own.static(50), "result": "firecracker"}))
	g := bootSDK(first.pod, parseResult(t, first.call("ADD", nil).stdout, "1.1.0"))
	for _, name := range []string{"pods", "others"} {
		second := n.delegated("second", conf(object{"ipam": own.static(50), "name": name}))
		before := n.snapshot(first.netns, second.netns)
		wantText(t, second.fails("ADD", 102, nil), "10.40.0.50", "routes that address already")
		second.works("DEL", nil)
		wantSame(t, "after a second pod with the same address", before, n.snapshot(first.netns, second.netns))
		g.wantPing(g.gw[true], nodeIP4)
		for _, ip := range g.ip {
			if _, ok := n.talk(ip); !ok {
				t.Errorf("the node does not reach %s of the first pod any more", ip)
			}
		}
	}
	alone := n.pod("alone", conf(object{"ipam": ranges("10.40.0.0/24")}))
	alone.args = "IP=10.40.0.50"
	wantText(t, alone.fails("ADD", 102, nil), "10.40.0.50", "routes that address already")
}
