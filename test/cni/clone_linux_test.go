package cni_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
)

// The identity that a snapshot has, in each of its clones.
var (
	snapshotMAC = "06:00:ac:10:00:02"
	snapshot    = object{"mac": snapshotMAC, "ip": "172.16.0.2/30", "gateway": "172.16.0.1", "ip6": "fd00:172::2/126", "gateway6": "fd00:172::1"}
	insideIP4   = netip.MustParseAddr("172.16.0.2")
	insideIP6   = netip.MustParseAddr("fd00:172::2")
	insideNet   = []string{"172.16.0.2/30", "fd00:172::2/126"}
	insideGWs   = []string{"172.16.0.1", "fd00:172::1"}
	cloneInside = map[bool]netip.Addr{true: insideIP4, false: insideIP6}
)

// inside is the result as the guest is told of it: its own addresses in the place of the pod's.
func inside(t testing.TB, r *types100.Result) *types100.Result {
	t.Helper()
	told := *r
	told.IPs = nil
	for i, s := range insideNet {
		ip, ipNet, err := net.ParseCIDR(s)
		mustDo(t, err)
		told.IPs = append(told.IPs, &types100.IPConfig{Interface: types100.Int(1), Address: net.IPNet{IP: ip, Mask: ipNet.Mask}, Gateway: net.ParseIP(insideGWs[i])})
	}
	return &told
}

// outside are the pod's addresses by family; true is IPv4.
func outside(r *types100.Result) map[bool]netip.Addr {
	out := map[bool]netip.Addr{}
	for _, a := range resultAddrs(r) {
		out[a.Is4()] = a
	}
	return out
}

// wantStream sends random bytes both ways over TCP to an address by which whoever listens at another one is known, and wants them
// unchanged, and the client known by the address seen.
func wantStream(t testing.TB, from, to string, listen, dial, seen netip.Addr) {
	t.Helper()
	payload := make([]byte, 1<<20)
	_, err := rand.Read(payload)
	mustDo(t, err)
	var l net.Listener
	testnode.In(t, to, func() { l, err = net.Listen("tcp", netip.AddrPortFrom(listen, 0).String()) })
	mustDo(t, err)
	defer l.Close()
	peer := make(chan string, 1)
	go func() {
		c, acceptErr := l.Accept()
		if acceptErr != nil {
			peer <- acceptErr.Error()
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * patience))
		_, copyErr := io.CopyN(c, c, int64(len(payload)))
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		if copyErr != nil {
			host += ": " + copyErr.Error()
		}
		peer <- host
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	var c net.Conn
	testnode.In(t, from, func() { c, err = net.DialTimeout("tcp", net.JoinHostPort(dial.String(), port), 3*patience) })
	if err != nil {
		t.Errorf("connect to %s: %v", dial, err)
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * patience))
	go func() { _, _ = c.Write(payload) }() // what is missing is seen below
	got := make([]byte, len(payload))
	if n, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, payload) {
		t.Errorf("stream to %s: %d bytes came back, %v; the same: %t", dial, n, err, bytes.Equal(got, payload))
	}
	if who := <-peer; who != seen.String() {
		t.Errorf("the server at %s sees %s, want %s", dial, who, seen)
	}
}

// Clones of one snapshot, with the same MAC and the same addresses, talk to each other, to other pods and to the node by the
// addresses of their pods.
func TestClonesOfOneSnapshot(t *testing.T) {
	for _, mode := range []string{"off", "generic"} {
		t.Run("shortcut "+mode, func(t *testing.T) {
			n := newNode(t)
			c := conf(object{"guest": snapshot, "xdp": object{"mode": mode}})
			a, b := n.pod("a", c), n.pod("b", c)
			other := n.pod("other", conf(object{"xdp": object{"mode": mode}}))
			ra, rb, ro := a.add(), b.add(), other.add()
			sa, sb, so := bootStack(a, inside(t, ra), offloadTSO), bootStack(b, inside(t, rb), offloadTSO), bootStack(other, ro, offloadTSO)
			oa, ob, oo := outside(ra), outside(rb), outside(ro)
			if ra.Interfaces[1].Mac != snapshotMAC || rb.Interfaces[1].Mac != snapshotMAC || oa[true] == ob[true] {
				t.Fatalf("want one MAC and two addresses, got %v and %v", ra, rb)
			}
			for _, is4 := range []bool{true, false} {
				in := cloneInside[is4]
				wantStream(t, sa.netns, sb.netns, in, ob[is4], oa[is4])
				wantStream(t, sb.netns, so.netns, so.ip[is4], oo[is4], ob[is4])
				wantStream(t, so.netns, sa.netns, in, oa[is4], oo[is4])
				node := map[bool]netip.Addr{true: nodeIP4, false: nodeIP6}[is4]
				wantStream(t, sa.netns, n.netns, node, node, oa[is4])
				if !pingFrom(t, n.netns, ob[is4]) {
					t.Errorf("no answer from %s to the node", ob[is4])
				}
			}
			n.wantTaken(t, a, mode != "off", mode != "off")
			for p, r := range map[*pod]*types100.Result{a: ra, b: rb, other: ro} {
				p.works("CHECK", object{"prevResult": r})
			}
			a.works("DEL", nil)
			wantStream(t, so.netns, sb.netns, cloneInside[true], ob[true], oo[true])
			b.works("CHECK", nil)
			b.works("DEL", nil)
		})
	}
}

// The gateway that a clone remembers answers at once, with the one MAC of all nodes, and the guest's own name is the inside one.
func TestACloneKnowsItsInsideAlone(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(object{"guest": snapshot}))
	r := p.add()
	g := boot(p, inside(t, r))
	for _, gw := range insideGWs {
		if mac := g.resolve(netip.MustParseAddr(gw), patience); !bytes.Equal(mac, gatewayMAC) {
			t.Errorf("gateway %s: want %s, got %s", gw, gatewayMAC, mac)
		}
	}
	g.wantPing(nodeIP4, nodeIP6)
	// In the pod's name outside the guest may not speak: that is its name for others.
	forged := *g
	forged.ip = outside(r)
	if forged.ping(nodeIP4) {
		t.Error("the node answered what the guest sent in the pod's name")
	}
	l := n.list("c1")
	if l.Dropped == 0 {
		t.Errorf("no drop was counted: %+v", l)
	}
	// The record, and what is printed for people and VMMs.
	if got := p.record(); len(got.Guest) != 2 || !got.FixedMAC || got.Guest[0].Prefix.String() != insideNet[0] || got.Guest[1].Gateway.String() != insideGWs[1] {
		t.Errorf("record: got %+v, fixed MAC %t", got.Guest, got.FixedMAC)
	}
	for form, want := range map[string][]string{
		"ip":             {"ip=172.16.0.2::172.16.0.1:255.255.255.252:"},
		"network-config": {insideNet[0], insideNet[1], insideGWs[0], insideGWs[1], snapshotMAC},
		"firecracker":    {snapshotMAC},
	} {
		out := n.ctl("guest-config", "c1", "--format", form)
		wantText(t, string(out.stdout), want...)
		if strings.Contains(string(out.stdout), resultAddrs(r)[0].String()) {
			t.Errorf("guest-config --format %s speaks of the pod's address: %s", form, out)
		}
	}
	wantText(t, string(n.ctl("inspect", "c1").stdout), insideNet[0], resultAddrs(r)[0].String())
}

// The Firecracker SDK makes the guest's boot argument of the result: of the address inside. All else of it is the pod's.
func TestResultOfAClone(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(object{"guest": snapshot, "result": "firecracker"}))
	r := p.add()
	c, err := readAsFirecrackerSDK(t, r, "c1")
	mustDo(t, err)
	if want := "ip=172.16.0.2::172.16.0.1:255.255.255.252:"; !strings.HasPrefix(c.bootArg, want) || c.mac != snapshotMAC {
		t.Errorf("boot argument: want %s…, got %s, MAC %s", want, c.bootArg, c.mac)
	}
	var lines []string
	for _, ip := range r.IPs {
		lines = append(lines, join3(ip))
	}
	for _, route := range r.Routes {
		lines = append(lines, route.Dst.String()+" by "+route.GW.String())
	}
	if diff := cmp.Diff([]string{"1 10.9.0.2/24 10.9.0.1", "1 fd00:9::2/64 fd00:9::1", "3 172.16.0.2/30 172.16.0.1", "0.0.0.0/0 by 172.16.0.1", "::/0 by fd00:172::1"}, lines); diff != "" {
		t.Errorf("ips and routes (-want +got):\n%s", diff)
	}
	p.works("CHECK", object{"prevResult": r})
	// In the other layouts nothing of it is said: they are for who reaches the pod.
	p.works("DEL", nil)
	for _, layout := range []string{"cri", "plain"} {
		p.conf = p.conf.with(object{"result": layout})
		if out := string(marshal(t, p.add())); strings.Contains(out, "172.16") || strings.Contains(out, "fd00:172") {
			t.Errorf("layout %s: %s", layout, out)
		}
		p.works("DEL", nil)
	}
}

// One family may be the guest's own and the other the pod's; a MAC alone may be.
func TestPartOfAnIdentity(t *testing.T) {
	n := newNode(t)
	for i, identity := range []object{
		{"ip": "172.16.0.2/30", "gateway": "172.16.0.1"},
		{"ip6": "fd00:172::2/126", "gateway6": "fe80::1"},
		{"mac": snapshotMAC},
		{"ip": "169.254.0.21/32", "gateway": "169.254.1.1", "mac": snapshotMAC},
	} {
		p := n.pod("c"+itoa(i), conf(object{"guest": identity}))
		r := p.add()
		told := *r
		told.IPs = nil
		for _, ip := range r.IPs {
			key, gw := "ip", "gateway"
			if ip.Address.IP.To4() == nil {
				key, gw = "ip6", "gateway6"
			}
			if s, ok := identity[key].(string); ok {
				addr, ipNet, err := net.ParseCIDR(s)
				mustDo(t, err)
				ip = &types100.IPConfig{Interface: ip.Interface, Address: net.IPNet{IP: addr, Mask: ipNet.Mask}, Gateway: net.ParseIP(identity[gw].(string))}
			}
			told.IPs = append(told.IPs, ip)
		}
		g := boot(p, &told)
		g.wantPing(nodeIP4, nodeIP6)
		for _, a := range resultAddrs(r) {
			if !pingFrom(t, n.netns, a) {
				t.Errorf("%v: no answer from %s", identity, a)
			}
		}
		p.works("CHECK", nil)
	}
}

// The state is lost: a clone's MAC is no reason to take it for another one, and CHECK knows what the programs know.
func TestClonesInARebuiltState(t *testing.T) {
	n := newNode(t)
	c := conf(object{"guest": snapshot})
	var pods []*pod
	for i := range 3 {
		p := n.pod("c"+itoa(i), c)
		p.add()
		pods = append(pods, p)
	}
	mustDo(t, os.Remove(filepath.Join(stateDir, "state.db")))
	for _, p := range pods {
		p.works("CHECK", nil)
		if got := p.record(); !got.Rebuilt || got.GuestMAC != snapshotMAC {
			t.Errorf("%s: want a rebuilt record with the clone's MAC, got %+v", p.id, got)
		}
	}
	wantText(t, pods[1].fails("CHECK", codeDiffers, object{"guest": snapshot.with(object{"ip": "172.16.0.1/30", "gateway": "172.16.0.2"})}), "guest: want 172.16.0.1/30 by 172.16.0.2", "got 172.16.0.2/30 by 172.16.0.1")
	wantText(t, pods[1].fails("CHECK", codeDiffers, object{"guest": nil, "mac": snapshotMAC}), "guest: want none")
	fourth := n.pod("c3", c)
	fourth.add()
	for _, p := range append(pods, fourth) {
		p.works("DEL", nil)
	}
}

// orNull is a value that [object.with] takes for one that is to go, where there is none.
func orNull(o object) any {
	if o == nil {
		return nil
	}
	return o
}

func TestCheckOfAClone(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(object{"guest": snapshot}))
	p.add()
	p.works("CHECK", nil)
	for _, over := range []object{
		nil, snapshot.with(object{"ip": "172.16.0.6/30", "gateway": "172.16.0.5"}), snapshot.with(object{"gateway6": "fe80::1"}), snapshot.with(object{"ip6": nil, "gateway6": nil}),
	} {
		wantText(t, p.fails("CHECK", codeDiffers, object{"guest": orNull(over), "mac": snapshotMAC}), "guest: want")
	}
	// A network's pods may not have one MAC by chance: only clones may.
	other := n.pod("c2", conf(object{"mac": "02:00:00:00:07:01"}))
	other.add()
	twice := n.pod("c3", conf(object{"mac": "02:00:00:00:07:01"}))
	wantText(t, twice.fails("ADD", codeBusy, nil), "02:00:00:00:07:01")
}

// By whichever way an identity is given, it is taken whole: CNI_ARGS, then the annotation, then the configuration.
func TestWhereAnIdentityComesFrom(t *testing.T) {
	n := newNode(t)
	annotation := object{"podAnnotations": []string{"guest"}, "runtimeConfig": object{"io.kubernetes.cri.pod-annotations": object{"tapir.dev/guest": `{"ip": "172.17.0.2/30", "gateway": "172.17.0.1"}`}}}
	args := "TAP_GUEST_IP=172.18.9.2/30;TAP_GUEST_GATEWAY=172.18.9.1"
	for i, tt := range []struct {
		over object
		args string
		want string
	}{
		{nil, "", "[]"},
		{object{"guest": snapshot}, "", "[172.16.0.2/30 fd00:172::2/126]"},
		{annotation.with(object{"guest": snapshot}), "", "[172.17.0.2/30]"},
		{annotation.with(object{"guest": snapshot}), args, "[172.18.9.2/30]"},
		{nil, "TAP_GUEST_MAC=" + snapshotMAC + ";TAP_GUEST_IP6=fd00:172::2/126;TAP_GUEST_GATEWAY6=fd00:172::1", "[fd00:172::2/126]"},
		{object{"guest": snapshot, "when": "annotated"}, "", "[]"},
		{object{"guest": snapshot, "when": "annotated"}, "TAP=1", "[172.16.0.2/30 fd00:172::2/126]"},
	} {
		p := n.pod("c"+itoa(i), conf(tt.over))
		p.args = tt.args
		p.add()
		var got []string
		for _, a := range p.record().Guest {
			got = append(got, a.Prefix.String())
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%v with args %q: want %s, got %v", tt.over, tt.args, tt.want, got)
		}
		p.works("CHECK", nil)
		p.works("DEL", nil)
	}
}

// What cannot work, or is not well said, is refused with its place.
func TestIdentitiesThatAreRefused(t *testing.T) {
	n := newNode(t)
	before := n.snapshot()
	with := func(over object) object { return object{"guest": snapshot.with(over)} }
	for _, tt := range []struct {
		name string
		over object
		args string
		code uint
		want []string
	}{
		{"nothing", object{"guest": object{}}, "", codeConfig, []string{"guest: want a mac, an ip or an ip6"}},
		{"a typo", object{"guest": object{"ipp": "172.16.0.2/30"}}, "", codeConfig, []string{`guest: unknown key "ipp"; did you mean "ip"?`}},
		{"all at once", object{"guest": object{"mac": "01:00:00:00:00:01", "ip": "172.16.0.2", "gateway": "x", "ip6": "172.16.0.2/30", "gateway6": "fd00::1"}}, "", codeConfig,
			[]string{"guest.mac: want a unicast MAC", "guest.ip: want an IPv4 address with its prefix length", "guest.ip6: want an IPv6 address"}},
		{"the gateway's MAC", with(object{"mac": gatewayMAC.String()}), "", codeConfig, []string{"guest.mac: want a MAC that is not the gateway's"}},
		{"no gateway", with(object{"gateway": nil}), "", codeConfig, []string{"guest.gateway: want an IPv4 address"}},
		{"a gateway elsewhere", with(object{"gateway": "172.16.1.1"}), "", codeConfig, []string{"guest.gateway: want an address in 172.16.0.0/30"}},
		{"itself for a gateway", with(object{"gateway": "172.16.0.2"}), "", codeConfig, []string{"guest.gateway: want another address"}},
		{"broadcast for a gateway", with(object{"gateway": "172.16.0.3"}), "", codeConfig, []string{"guest.gateway: want an address in 172.16.0.0/30 that a gateway can have"}},
		{"the subnet's own", with(object{"ip": "172.16.0.0/30"}), "", codeConfig, []string{"guest.ip: want an address that a guest can have"}},
		{"the broadcast address", with(object{"ip": "172.16.0.3/30"}), "", codeConfig, []string{"guest.ip: want an address that a guest can have"}},
		{"multicast", with(object{"ip": "224.0.0.5/24"}), "", codeConfig, []string{"guest.ip"}},
		{"link-local IPv6", with(object{"ip6": "fe80::2/64"}), "", codeConfig, []string{"guest.ip6: want an address that a guest can have"}},
		{"a gateway alone", object{"guest": object{"mac": snapshotMAC, "gateway": "172.16.0.1"}}, "", codeConfig, []string{`guest.gateway: want none without "ip"`}},
		{"a family that IPAM does not give", object{"guest": snapshot, "ipam": ranges("10.9.0.0/24")}, "", codeConfig, []string{"guest: fd00:172::2/126 takes the place", "IPAM gives 0"}},
		{"two for one", object{"guest": snapshot, "ipam": ranges("10.9.0.0/24", "10.10.0.0/24", "fd00:9::/64")}, "", codeConfig, []string{"guest: 172.16.0.2/30", "IPAM gives 2"}},
		{"another MAC", object{"guest": snapshot, "mac": "02:00:00:00:00:09"}, "", codeConfig, []string{"guest.mac: want that of mac too"}},
		{"placement host", object{"guest": snapshot, "placement": "host"}, "", codeConfig, []string{"guest: want none", `placement "host"`}},
		{"Kata's scan", object{"guest": snapshot, "vmm": "kata"}, "", codeConfig, []string{"guest: want none", `"vmm": "kata"`}},
		{"after another plugin", object{"guest": snapshot, "ipam": nil, "prevResult": object{"cniVersion": "1.1.0"}}, "", codeConfig, []string{"guest: want none after another plugin"}},
		{"a plain pod's", object{"when": "annotated"}, "TAP_GUEST_MAC=" + snapshotMAC, codeEnvironment, []string{"CNI_ARGS.TAP_GUEST_MAC: want none without a TAP"}},
		{"args", nil, "TAP_GUEST_IP=172.16.0.2/30;TAP_GUEST_GATEWAY=172.16.0.2", codeEnvironment, []string{"CNI_ARGS.TAP_GUEST_GATEWAY: want another address"}},
		{"a typo in args", nil, "TAP_GUEST_IPP=x", codeEnvironment, []string{`did you mean "TAP_GUEST_IP`}},
		{"annotation", chosen(object{"tapir.dev/guest": `{"ipp": 1}`}).with(object{"podAnnotations": []string{"guest"}}), "", codeConfig, []string{`annotation tapir.dev/guest: unknown key "ipp"`}},
		{"annotation that is no JSON", chosen(object{"tapir.dev/guest": `172.16.0.2`}).with(object{"podAnnotations": []string{"guest"}}), "", codeConfig, []string{"annotation tapir.dev/guest: want JSON"}},
		{"annotation's own faults", chosen(object{"tapir.dev/guest": `{"ip": "172.16.0.2/30"}`}).with(object{"podAnnotations": []string{"guest"}}), "", codeConfig, []string{"annotation tapir.dev/guest.gateway: want an IPv4"}},
		{"annotation without leave", chosen(object{"tapir.dev/guest": `{"ip": "172.16.0.2/30"}`}), "", codeConfig, []string{"annotation tapir.dev/guest: the pod may not choose that"}},
	} {
		p := n.pod("c1", conf(tt.over))
		p.args = tt.args
		text := p.fails("ADD", tt.code, nil)
		for _, w := range tt.want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: want %q in: %s", tt.name, w, text)
			}
		}
		p.works("DEL", object{"ipam": conf(nil)["ipam"]})
	}
	wantSame(t, "after all", before, n.snapshot())
}

// Another IPAM plugin's addresses are known only when it has given them: then the guest's must fit.
func TestIdentityWithAnotherIPAM(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	c := conf(object{"guest": snapshot, "ipam": own.hostLocal(dir)})
	p := n.delegated("c1", c)
	out := p.call("ADD", nil)
	if out.code != 0 {
		t.Fatal(out)
	}
	if got := p.record().Guest; len(got) != 2 {
		t.Errorf("guest: want both addresses, got %v", got)
	}
	p.works("CHECK", object{"prevResult": parseResult(t, out.stdout, "1.1.0")})
	p.works("DEL", nil)
	single := object{"type": "host-local", "dataDir": dir, "ranges": [][]object{{{"subnet": "10.40.0.0/24"}}}}
	before := n.snapshot(p.netns)
	wantText(t, wantCode(t, p.call("ADD", object{"ipam": single}), codeConfig), "fd00:172::2/126 takes the place", "IPAM gives 0")
	wantSame(t, "after the refusal", before, n.snapshot(p.netns))
	if l := hostLocalLeases(t, dir, "pods"); len(l) > 0 {
		t.Errorf("host-local still leases %q", l)
	}
}

func TestGuestConfigOfARestore(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(object{"guest": snapshot}))
	p.add()
	n.pod("c2", conf(nil)).add()
	out := n.ctl("guest-config", "c1", "--restore", "--snapshot", "/srv/s1")
	wantText(t, string(out.stdout), `"iface_id": "eth0"`, `"host_dev_name": "tap-eth0"`, "/srv/s1/vmstate", "net_fds=[net0@{fd}]", "nsenter --net="+p.netns, "mac="+snapshotMAC, "-incoming")
	if len(out.stderr) > 0 || out.code != 0 {
		t.Errorf("a clone: want no warning, got %s", out)
	}
	var r struct {
		Firecracker struct {
			Overrides []struct {
				Name string `json:"host_dev_name"`
			} `json:"network_overrides"`
		}
	}
	n.ctlJSON(&r, "guest-config", "c1", "--restore")
	if len(r.Firecracker.Overrides) != 1 || r.Firecracker.Overrides[0].Name != "tap-eth0" {
		t.Errorf("JSON: got %+v", r)
	}
	wantText(t, string(n.ctl("guest-config", "c2", "--restore").stderr), `give the network's configuration a "guest"`)
	for _, args := range [][]string{
		{"--snapshot", "/srv/s1"}, {"--restore", "--format", "kata"}, {"--restore", "--snapshot", "s1"}, {"--restore", "--snapshot", "/srv/a,b"},
	} {
		if out := n.ctl(append([]string{"guest-config", "c1"}, args...)...); out.code != 2 {
			t.Errorf("%v: want a usage error, got %s", args, out)
		}
	}
}

// A clone's part in the shortcut is taken and given while it runs, and its translation goes along.
func TestTheShortcutOfACloneIsTurnedOffAndOn(t *testing.T) {
	n := newNode(t)
	c := conf(object{"guest": snapshot, "xdp": object{"mode": "generic"}})
	a, b := n.pod("a", c), n.pod("b", c)
	ra, rb := a.add(), b.add()
	sa, sb := bootStack(a, inside(t, ra), offloadNone), bootStack(b, inside(t, rb), offloadNone)
	oa, ob := outside(ra), outside(rb)
	for _, way := range []string{"off", "on"} {
		if out := n.ctl("xdp", way, "a"); out.code != 0 {
			t.Fatal(out)
		}
		if on := a.record().XDP.Mode != ""; on != (way == "on") {
			t.Errorf("turned %s: has a part: %t", way, on)
		}
		for _, is4 := range []bool{true, false} {
			wantStream(t, sa.netns, sb.netns, cloneInside[is4], ob[is4], oa[is4])
			wantStream(t, sb.netns, sa.netns, cloneInside[is4], oa[is4], ob[is4])
		}
	}
	n.wantTaken(t, a, true, true)
	for p, r := range map[*pod]*types100.Result{a: ra, b: rb} {
		p.works("CHECK", object{"prevResult": r})
		p.works("DEL", nil)
	}
}
