package cni_test

import (
	"fmt"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
)

// What a runtime asks for, by which way ever, is what the pod gets.
func TestArgumentsOfTheRuntime(t *testing.T) {
	n := newNode(t)
	for _, tt := range []struct {
		name string
		args string
		over object
		want func(t *testing.T, p *pod, r *types100.Result)
	}{
		{"capability mac", "", object{"capabilities": object{"mac": true}, "runtimeConfig": object{"mac": "02:00:00:00:aa:01"}}, wantMAC("02:00:00:00:aa:01")},
		{"CNI_ARGS MAC", "MAC=02:00:00:00:aa:02", nil, wantMAC("02:00:00:00:aa:02")},
		{"args.cni.mac", "", object{"args": object{"cni": object{"mac": "02:00:00:00:aa:03"}}}, wantMAC("02:00:00:00:aa:03")},
		{"capability before CNI_ARGS", "MAC=02:00:00:00:aa:05", object{"runtimeConfig": object{"mac": "02:00:00:00:aa:04"}}, wantMAC("02:00:00:00:aa:04")},
		{"capability ips", "", object{"runtimeConfig": object{"ips": []string{"10.9.0.44/24", "fd00:9::44"}}}, wantIPs("10.9.0.44", "fd00:9::44")},
		{"CNI_ARGS IP", "IP=10.9.0.45,fd00:9::45", nil, wantIPs("10.9.0.45", "fd00:9::45")},
		{"args.cni.ips", "", object{"args": object{"cni": object{"ips": []string{"10.9.0.46", "fd00:9::46"}}}}, wantIPs("10.9.0.46", "fd00:9::46")},
		{"capability ipRanges", "", object{"runtimeConfig": object{"ipRanges": [][]object{{{"subnet": "10.8.0.0/24", "rangeStart": "10.8.0.7"}}}}, "ipam": object{"type": "tapir-ipam", "ranges": [][]object{{{"subnet": "fd00:9::/64", "rangeStart": "fd00:9::7", "rangeEnd": "fd00:9::7"}}}}},
			wantIPs("10.8.0.7", "fd00:9::7")},
		{"capability dns", "", object{"runtimeConfig": object{"dns": object{"servers": []string{"10.9.0.53"}, "searches": []string{"a.test"}, "options": []string{"ndots:5"}}}},
			func(t *testing.T, _ *pod, r *types100.Result) {
				if got := fmt.Sprint(r.DNS.Nameservers, r.DNS.Search, r.DNS.Options); got != "[10.9.0.53] [a.test] [ndots:5]" {
					t.Errorf("dns: got %s", got)
				}
			}},
		{"TAP_NAME, TAP_QUEUES, TAP_OWNER, TAP_GROUP", "TAP_NAME=vm0;TAP_QUEUES=4;TAP_OWNER=1000;TAP_GROUP=1001", nil, wantTapOf("vm0", 4, 1000, 1001)},
		{"as for tc-redirect-tap", "IgnoreUnknown=1;TC_REDIRECT_TAP_NAME=fc0;TC_REDIRECT_TAP_UID=1002;TC_REDIRECT_TAP_GID=1003", nil, wantTapOf("fc0", 1, 1002, 1003)},
		{"own names before tc-redirect-tap's", "TC_REDIRECT_TAP_NAME=fc0;TAP_NAME=vm1;TC_REDIRECT_TAP_UID=1;TAP_OWNER=1004;TAP_GROUP=1005", nil, wantTapOf("vm1", 1, 1004, 1005)},
		{"TC_REDIRECT_TAP_NAME of the configuration", "TC_REDIRECT_TAP_NAME=fc1", object{"tapName": "conf0", "owner": 7, "group": 8}, wantTapOf("fc1", 1, 7, 8)},
		{"of Kubernetes", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u", nil, wantTapOf("tap-eth0", 1, 0, -1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := n.pod("c1", conf(object{"ipam": ranges("10.9.0.0/24", "fd00:9::/64").with(object{"reuseDelay": "0s"})}).with(tt.over))
			if ipam, ok := tt.over["ipam"].(object); ok {
				p.conf["ipam"] = ipam.with(object{"reuseDelay": "0s"})
			}
			p.args = tt.args
			r := p.add()
			tt.want(t, p, r)
			p.works("CHECK", object{"prevResult": r})
			p.works("DEL", nil)
		})
	}
}

func wantMAC(mac string) func(*testing.T, *pod, *types100.Result) {
	return func(t *testing.T, p *pod, r *types100.Result) {
		t.Helper()
		if got := r.Interfaces[1].Mac; got != mac || ifaceMAC(t, p.netns, "eth0") != mac {
			t.Errorf("MAC: want %s, got %s in the result", mac, got)
		}
	}
}

func wantIPs(ips ...string) func(*testing.T, *pod, *types100.Result) {
	return func(t *testing.T, _ *pod, r *types100.Result) {
		t.Helper()
		var got []string
		for _, a := range resultAddrs(r) {
			got = append(got, a.String())
		}
		if diff := cmp.Diff(ips, got); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
	}
}

// wantTapOf wants a TAP of that name, number of queues, owner and group; -1 is none.
func wantTapOf(name string, queues, owner, group int) func(*testing.T, *pod, *types100.Result) {
	return func(t *testing.T, p *pod, r *types100.Result) {
		t.Helper()
		if got := r.Interfaces[2].Name; got != name {
			t.Errorf("the TAP in the result: want %s, got %s", name, got)
		}
		testnode.In(t, p.netns, func() {
			l, err := netlink.LinkByName(name)
			if err != nil {
				t.Fatal(err)
			}
			tap, ok := l.(*netlink.Tuntap)
			if !ok {
				t.Fatalf("%s is a %s", name, l.Type())
			}
			if multi := tap.Flags&netlink.TUNTAP_MULTI_QUEUE != 0; multi != (queues > 1) {
				t.Errorf("%s: multi-queue is %t with %d queues", name, multi, queues)
			}
			want, got := fmt.Sprint(uint32(owner), uint32(group)), fmt.Sprint(tap.Owner, tap.Group)
			if group == -1 {
				want, got = fmt.Sprint(uint32(owner)), fmt.Sprint(tap.Owner)
			}
			if got != want {
				t.Errorf("%s: owner and group: want %s, got %s", name, want, got)
			}
		})
	}
}

func TestArgumentsThatAreWrong(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	before := n.snapshot(p.netns)
	for _, tt := range []struct {
		args string
		over object
		code uint
		want []string
	}{
		{"TAP_QUEUE=2", nil, 4, []string{`"TAP_QUEUE"`, `"TAP_QUEUES"`}},
		{"TAP_QUEUES=two", nil, 4, []string{"CNI_ARGS.TAP_QUEUES", `"two"`}},
		{"TAP_QUEUES=257", nil, 4, []string{"1 to 256", "257"}},
		{"TAP_QUEUES=2", object{"vmm": "firecracker"}, 4, []string{"Firecracker", `"queues": 1`}},
		{"TC_REDIRECT_TAP_NAME=a-name-that-is-too-long", nil, 4, []string{"15", "a-name-that-is-too-long"}},
		{"MAC=01:00:00:00:00:01", nil, 4, []string{"CNI_ARGS.MAC", "unicast"}},
		{"nonsense", nil, 4, []string{`"nonsense"`, "NAME=VALUE"}},
		{"TAP=maybe", nil, 4, []string{"CNI_ARGS.TAP", `"maybe"`}},
		{"TC_REDIRECT_TAP_UID=root", nil, 4, []string{"TC_REDIRECT_TAP_UID", `"root"`}},
		{"IP=10.99.0.1", nil, 7, []string{"10.99.0.1"}},
		{"", object{"runtimeConfig": object{"ips": []string{"ten"}}}, 7, []string{`"ten"`}},
	} {
		p.args = tt.args
		wantText(t, p.fails("ADD", tt.code, tt.over), tt.want...)
		wantSame(t, "after ADD with "+tt.args, before, n.snapshot(p.netns))
	}
}

// One pod in two networks, and each network with any name of the interface.
func TestSeveralInterfacesOfOnePod(t *testing.T) {
	n := newNode(t)
	first := n.pod("c1", conf(object{"result": "firecracker"}))
	second := *first
	second.ifName, second.conf = "net1", conf(object{"name": "storage", "result": "firecracker", "ipam": ranges("10.11.0.0/24", "fd00:11::/64").with(object{"routes": nil})})
	third := *first
	third.ifName = "net2" // the first network again
	long := *first
	long.ifName = "interface-of-15" // whose TAP's name is a hash
	pods := []*pod{first, &second, &third, &long}
	taps := map[string]bool{}
	var guests []*guest
	for _, p := range pods {
		r := p.add()
		taps[r.Interfaces[2].Name] = true
		guests = append(guests, bootSDK(p, r))
	}
	if len(taps) != len(pods) {
		t.Errorf("the TAPs' names: want %d different ones, got %v", len(pods), taps)
	}
	for i, g := range guests {
		g.wantPing(g.gw[true], nodeIP4)
		g.wantPingBy(g.gw[false], nodeIP6)
		pods[i].works("CHECK", nil)
	}
	// DEL of one leaves the others working.
	for i, p := range pods {
		p.works("DEL", nil)
		for j := i + 1; j < len(pods); j++ {
			guests[j].wantPing(guests[j].gw[true])
			pods[j].works("CHECK", nil)
		}
	}
}

// Two sandboxes of a runtime can share a netns (CASES B24).
func TestTwoContainersInOneNetns(t *testing.T) {
	for _, chained := range []bool{false, true} {
		t.Run(fmt.Sprint("chained ", chained), func(t *testing.T) {
			n := newNode(t)
			first := n.pod("c1", conf(object{"result": "firecracker"}))
			second := *first
			second.id, second.ifName = "c2", "eth1"
			if chained {
				for i, p := range []*pod{first, &second} {
					ptp := neighbours[1]
					if p == &second {
						ptp.v4, ptp.v6, ptp.gw4, ptp.gw6 = "10.24.0.0/24", "fd00:24::/64", "10.24.0.1", "fd00:24::1"
					}
					c := ptp.conf.with(object{"cniVersion": "1.1.0", "name": "pods", "ipam": ptp.static(byte(60 + i)).with(object{"routes": nil})})
					testnode.In(t, p.netns, func() { n.sysctl("net/ipv6/conf/default/accept_dad", "0") })
					out := p.plugin("ptp", "ADD", c)
					if out.code != 0 {
						t.Fatal(out)
					}
					p.conf = chainConf(object{"result": "firecracker", "prevResult": parseResult(t, out.stdout, "1.1.0")})
				}
			}
			rest := n.snapshot(first.netns)
			g1, g2 := bootSDK(first, first.add()), bootSDK(&second, second.add())
			if g1.tap == g2.tap {
				t.Fatalf("both have the TAP %s", g1.tap)
			}
			for _, g := range []*guest{g1, g2} {
				g.wantPing(g.gw[true], nodeIP4)
			}
			// The same interface again, under either id: a clear error, and its DEL touches nothing.
			before := n.snapshot(first.netns)
			for _, id := range []string{"c1", "c2", "c3"} {
				again := *first
				again.id = id
				wantText(t, again.fails("ADD", 102, nil), map[bool]string{true: "exists since", false: ""}[id == "c1"])
				if id != "c1" {
					again.works("DEL", nil)
				}
				wantSame(t, "after ADD of eth0 again by "+id, before, n.snapshot(first.netns))
			}
			first.works("CHECK", nil)
			first.works("DEL", nil)
			g2.wantPing(g2.gw[true], nodeIP4)
			g2.wantPingBy(g2.gw[false], nodeIP6)
			second.works("CHECK", nil)
			second.works("DEL", nil)
			wantSame(t, "when both are gone", without(rest, "table ", "route 0.0.0.0"), without(n.snapshot(first.netns), "table ", "route 0.0.0.0"))
		})
	}
}
