package cni_test

import (
	"net"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// mac is the guest's MAC of an attachment that is added and removed.
func (p *pod) mac() string {
	p.n.t.Helper()
	r := p.add()
	var kernel string
	testnode.In(p.n.t, p.netns, func() { kernel = link(p.n.t, p.ifName).Attrs().HardwareAddr.String() })
	p.works("DEL", nil)
	if got := r.Interfaces[1].Mac; got != kernel {
		p.n.t.Errorf("result has MAC %s, the kernel %s", got, kernel)
	}
	return kernel
}

func TestMACIsDerivedFromAttachmentAlone(t *testing.T) {
	n := newNode(t)
	first := n.pod("c1", conf(nil)).mac()
	hw, err := net.ParseMAC(first)
	if err != nil || hw[0]&1 != 0 || hw[0]&2 == 0 {
		t.Errorf("MAC %s: want a unicast, locally administered one", first)
	}
	for _, same := range []*pod{
		n.pod("c1", conf(nil)),
		n.pod("c1", conf(object{"queues": 4, "mtu": 1300, "ipam": ranges("10.55.0.0/24")})),
		n.pod("c1", conf(object{"result": "firecracker", "vmm": "firecracker", "spoofCheck": false})),
	} {
		if got := same.mac(); got != first {
			t.Errorf("the same attachment has the MAC %s, then %s", first, got)
		}
	}
	seen := map[string]string{first: "c1"}
	other := n.pod("c1", conf(nil))
	other.ifName = "eth1"
	for name, p := range map[string]*pod{
		"another id": n.pod("c2", conf(nil)), "another network": n.pod("c1", conf(object{"name": "storage"})), "another ifname": other,
		"a longer id": n.pod("c1"+"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0", conf(nil)),
		"its twin":    n.pod("c1"+"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef1", conf(nil)),
	} {
		mac := p.mac()
		if before, taken := seen[mac]; taken {
			t.Errorf("%s has the MAC %s of %s", name, mac, before)
		}
		seen[mac] = name
	}
}

func TestMACAsGiven(t *testing.T) {
	n := newNode(t)
	const a, b, c, d = "02:00:00:00:00:0a", "02:00:00:00:00:0b", "02:00:00:00:00:0c", "00:16:3e:00:00:0d"
	for _, tt := range []struct {
		name string
		over object
		args string
		want string
	}{
		{"configuration", object{"mac": a}, "", a},
		{"CNI_ARGS", nil, "MAC=" + b, b},
		{"CNI_ARGS over the configuration", object{"mac": a}, "MAC=" + b, b},
		{"runtimeConfig", object{"runtimeConfig": object{"mac": c}}, "", c},
		{"runtimeConfig over all", object{"mac": a, "runtimeConfig": object{"mac": c}}, "MAC=" + b, c},
		{"args.cni", object{"args": object{"cni": object{"mac": d}}}, "", d},
		{"upper case and dashes", object{"mac": "02-00-00-00-00-0A"}, "", a},
	} {
		p := n.pod("c1", conf(tt.over))
		p.args = tt.args
		if got := p.mac(); got != tt.want {
			t.Errorf("%s: MAC %s, want %s", tt.name, got, tt.want)
		}
	}
}

// Two guests of one MAC in a network cut each other off.
func TestMACTwiceInNetworkIsRefused(t *testing.T) {
	n := newNode(t)
	const mac = "02:00:00:00:00:0a"
	first := n.pod("first", conf(object{"mac": mac}))
	first.add()
	second := n.pod("second", conf(object{"mac": mac}))
	wantText(t, second.fails("ADD", codeBusy, nil), mac, "first")
	n.pod("other", conf(object{"mac": mac, "name": "storage", "ipam": ranges("10.8.0.0/24")})).add() // another network
	first.works("DEL", nil)
	second.add()
}
