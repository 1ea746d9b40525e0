package cni_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostConf is a configuration that puts the TAP into the host's netns.
func hostConf(over object) object { return conf(object{"placement": "host"}).with(over) }

// derivedOnHost are the names that tapir gives to TAPs of the host's netns.
var derivedOnHost = regexp.MustCompile(`^tprt[0-9a-f]{11}$`)

// wantEmptySandbox wants nothing but lo in the sandbox.
func wantEmptySandbox(t *testing.T, p *pod) {
	t.Helper()
	testnode.In(t, p.netns, func() {
		if links := allLinks(t); len(links) != 1 {
			t.Errorf("the sandbox has %d links, want lo alone", len(links))
		}
	})
}

func TestTapOnHost(t *testing.T) {
	for _, tt := range []struct {
		name  string
		over  object
		args  string
		tap   string // empty: derived
		mtu   int
		owner string
	}{
		{"defaults", nil, "", "", uplinkMTU, "0 -1"},
		{"keys", object{"mtu": 9000, "txQueueLen": 512, "tapName": "vmtap0", "queues": 2, "owner": 1000, "group": 107}, "", "vmtap0", 9000, "1000 107"},
		{"arguments, tcx", object{"redirect": "tcx", "tapName": "vmtap0"}, "TAP_NAME=vmtap1;TAP_OWNER=1001;TAP_QUEUES=4", "vmtap1", uplinkMTU, "1001 -1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			p := n.pod("c1", hostConf(tt.over))
			p.args = tt.args
			before := n.snapshot(p.netns)
			r := p.add()
			l := n.list("c1")
			if l.Placement != "host" || l.Pod.Name != "" || l.Host.Name != "" {
				t.Errorf("tapirctl list: %+v, want placement host and no veth", l)
			}
			if name := l.TAP.Name; tt.tap != "" && name != tt.tap || tt.tap == "" && !derivedOnHost.MatchString(name) {
				t.Errorf("the TAP is %q, want %q or a derived name", name, tt.tap)
			}
			wantDevice(t, n.netns, l.TAP.Name, tt.mtu, "tapir:pods/c1/eth0")
			wantTapIn(t, n.netns, l.TAP.Name, tt.over)
			flags := uint16(qemuFlags)
			if l.Queues > 1 {
				flags = qemuMQFlags
			}
			const noise = unix.IFF_PERSIST | 0x0800 // IFF_NOFILTER
			if got := tunFlags(t, n.netns, l.TAP.Name, flags); got&^noise != flags {
				t.Errorf("flags %s, want %s", flagNames(got), flagNames(flags))
			}
			fd, err := openQueue(t, n.netns, l.TAP.Name, flags)
			mustDo(t, err)
			defer unix.Close(fd)
			n.in(func() { // with a reader, so that the kernel would make itself an address if it might
				if got := sysfs(t, l.TAP.Name, "owner") + " " + sysfs(t, l.TAP.Name, "group"); got != tt.owner {
					t.Errorf("owner and group %s, want %s", got, tt.owner)
				}
				if got := link(t, l.TAP.Name).Attrs().HardwareAddr; !bytes.Equal(got, gatewayMAC) {
					t.Errorf("MAC %s, want the gateway's", got)
				}
			})
			wantNodeEnd(t, n, l.TAP.Name, l.GuestMAC)
			wantEmptySandbox(t, p)
			p.works("CHECK", object{"prevResult": r})
			p.works("DEL", nil)
			wantEmptySandbox(t, p)
			if diff := cmp.Diff(without(before, "sysctl"), n.snapshot(p.netns)); diff != "" {
				t.Errorf("after DEL (-before +after):\n%s", diff)
			}
			p.works("DEL", nil)
		})
	}
}

// The result names no interface of the sandbox, since there is none; the SDK's layout gives it a netns that it can open.
func TestResultOfPlacementHost(t *testing.T) {
	n := newNode(t)
	for i, layout := range []string{"plain", "cri", "firecracker", "plain", "cri", "firecracker"} {
		version := []string{"1.1.0", "0.3.1"}[i/3]
		p := n.pod(layout+version, hostConf(object{"result": layout, "cniVersion": version}))
		r := p.add()
		l := n.list(layout + version)
		var got []string
		for _, i := range r.Interfaces {
			got = append(got, i.Name+" "+i.Mac+" "+i.Sandbox)
		}
		var want []string
		own := []string{"none " + l.address(t, true) + "/24 10.9.0.1", "none " + l.address(t, false) + "/64 fd00:9::1"}
		switch layout {
		case "cri":
			want = []string{l.TAP.Name + " " + gatewayMAC.String() + " "}
		case "firecracker":
			want = []string{l.TAP.Name + " " + gatewayMAC.String() + " /proc/1/ns/net", l.TAP.Name + " " + l.GuestMAC + " " + p.id}
			own = append(own, "1 "+l.address(t, true)+"/24 10.9.0.1")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: interfaces (-want +got):\n%s", layout, diff)
		}
		if diff := cmp.Diff(own, addressLines(r)); diff != "" {
			t.Errorf("%s: ips (-want +got):\n%s", layout, diff)
		}
		if len(r.Routes) != 2 {
			t.Errorf("%s: routes %v, want both defaults", layout, r.Routes)
		}
		if version != "0.3.1" { // which has no CHECK
			p.works("CHECK", object{"prevResult": r})
		}
		p.works("DEL", object{"prevResult": r})
	}
}

func TestAnotherIPAMServesGuestOnHost(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	p := n.delegated("c1", hostConf(object{"ipam": own.hostLocal(dir)}), t.TempDir())
	out := p.call("ADD", nil)
	if out.code != 0 {
		t.Fatal(out)
	}
	r := parseResult(t, out.stdout, "1.1.0")
	g := boot(p.pod, r)
	g.wantPing(g.gw[true], nodeIP4)
	p.works("CHECK", object{"prevResult": r})
	p.works("DEL", nil)
	if left := hostLocalLeases(t, dir, "pods"); len(left) > 0 {
		t.Errorf("leases after DEL: %q", left)
	}
}

// address is the attachment's address of a family.
func (l listing) address(t testing.TB, ipv4 bool) string {
	t.Helper()
	for _, a := range l.Addresses {
		if a.Prefix.Addr().Is4() == ipv4 {
			return a.Prefix.Addr().String()
		}
	}
	t.Fatalf("no such address in %v", l.Addresses)
	return ""
}

func TestGuestOnHostReachesGatewayNodePodsAndWorld(t *testing.T) {
	for _, method := range methods {
		t.Run(method, func(t *testing.T) {
			n := newNode(t)
			n.routePodsInWorld()
			a, b := n.pod("a", hostConf(object{"redirect": method})), n.pod("b", conf(object{"redirect": method}))
			c, plain := n.pod("c", hostConf(object{"redirect": method, "queues": 2})), n.pod("plain", annotated(nil))
			ga, gb, gc := boot(a, a.add()), boot(b, b.add()), boot(c, c.add())
			plain.addPlain()
			plain4, plain6 := netip.MustParseAddr("10.9.0.5"), netip.MustParseAddr("fd00:9::5")
			for _, g := range []*guest{ga, gc} {
				g.wantPing(g.gw[true], nodeIP4, gb.ip[true], plain4, worldIP4, g.gw[false], nodeIP6, gb.ip[false], plain6, worldIP6)
			}
			ga.wantPing(gc.ip[true], gc.ip[false])
			gb.wantPing(ga.ip[true], ga.ip[false], gc.ip[true], gc.ip[false])
			for _, to := range []netip.Addr{ga.ip[true], ga.ip[false]} {
				if !pingFrom(t, plain.netns, to) || !pingFrom(t, n.world, to) {
					t.Errorf("no answer from %s to the plain pod or to the world", to)
				}
				if source, ok := n.talk(to); !ok || source != map[bool]netip.Addr{true: nodeIP4, false: nodeIP6}[to.Is4()] {
					t.Errorf("the node talks to %s from %s (%t), want its own address", to, source, ok)
				}
			}
			for _, target := range []string{"10.9.0.77", "fd00:9::77"} {
				if got := ga.resolve(netip.MustParseAddr(target), patience); !bytes.Equal(got, gatewayMAC) {
					t.Errorf("who has %s? got %v, want the gateway's MAC", target, got)
				}
			}
			if got := ga.resolve(ga.ip[true], silence); got != nil {
				t.Errorf("who has the guest's own address? got %s, want no answer", got)
			}
			a.works("CHECK", nil)
			c.works("CHECK", nil)
		})
	}
}

// A node without an address of its own talks from the gateway's.
func TestBareNodeTalksToGuestOnHost(t *testing.T) {
	n := newBareNode(t)
	p := n.pod("c1", hostConf(nil))
	g := boot(p, p.add())
	for to, want := range map[netip.Addr]netip.Addr{g.ip[true]: g.gw[true], g.ip[false]: g.gw[false]} {
		if source, ok := n.talk(to); !ok || source != want {
			t.Errorf("the node talks to %s from %s (%t), want %s", to, source, ok, want)
		}
	}
	p.works("CHECK", nil)
}

func TestForgedFramesOfGuestOnHost(t *testing.T) {
	for _, tt := range []struct {
		name, redirect string
		check          bool
	}{{"checked, clsact", "clsact", true}, {"checked, tcx", "tcx", true}, {"not checked", "auto", false}} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			p := n.pod("attacker", hostConf(object{"redirect": tt.redirect, "spoofCheck": tt.check}))
			g := boot(p, p.add())
			world := tapWire(t, n.world, "up0")
			dropped := n.list("attacker").Dropped
			for _, f := range forgeries(sender{g.mac, g.ip[true], g.ip[false]}, gatewayMAC) {
				before := n.list("attacker").Counters[f.reason].Frames
				if tt.check || f.always {
					dropped++
				}
				g.write(f.bad)
				g.write(f.good)
				if after := n.waitDropped("attacker", dropped); tt.check && after.Counters[f.reason].Frames != before+1 {
					t.Errorf("%s: not counted under %s: %v", f.name, f.reason, after.Counters)
				}
				bad, good := parseFrame(f.bad), parseFrame(f.good)
				if good.to != worldIP4 && good.to != worldIP6 || good.from != g.ip[true] && good.from != g.ip[false] {
					continue // not routed
				}
				seen, ok := world.frames(patience, func(frame []byte) bool { return sameDatagram(parseFrame(frame), good) })
				if !ok {
					t.Errorf("%s: the legal twin did not get out", f.name)
				}
				forged := slices.ContainsFunc(seen, func(frame []byte) bool { return sameDatagram(parseFrame(frame), bad) })
				if bad.from != good.from && forged && tt.check {
					t.Errorf("%s: the forged frame got out", f.name)
				}
			}
			if got := n.list("attacker").Dropped; got != dropped {
				t.Errorf("dropped in all: %d, want %d: a legal twin is among them", got, dropped)
			}
		})
	}
}

func TestMasqueradeOfGuestOnHost(t *testing.T) {
	n := newNode(t)
	n.sourceServer(worldIP4)
	n.sourceServer(worldIP6)
	n.routePodsInWorld()
	for _, masq := range []bool{true, false} {
		p := n.pod("masq"+map[bool]string{true: "on", false: "off"}[masq], hostConf(object{"ipMasq": masq}))
		g := boot(p, p.add())
		for server, own := range map[netip.Addr]netip.Addr{worldIP4: nodeIP4, worldIP6: nodeIP6} {
			want := g.ip[server.Is4()]
			if masq {
				want = own
			}
			if got := g.sourceSeenBy(server); got != want.String() {
				t.Errorf("ipMasq %t: the world %s sees %s, want %s", masq, server, got, want)
			}
		}
		p.works("CHECK", nil)
	}
}

// A name that is taken on the node is an error with a code of its own, and leaves everything as it was.
func TestTakenNameOnHost(t *testing.T) {
	n := newNode(t)
	n.warm(hostConf(nil))
	first := n.pod("first", hostConf(object{"tapName": "vmtap0"}))
	first.add()
	n.in(func() { addTap(t, "foreign0") })
	second := n.pod("second", hostConf(nil))
	before := n.snapshot(second.netns)
	for _, name := range []string{"vmtap0", "up0", "foreign0"} {
		second.args = "TAP_NAME=" + name
		wantText(t, second.fails("ADD", codeBusy, nil), name, "in the host's netns", "exists")
		wantSame(t, "after ADD with the name "+name, before, n.snapshot(second.netns))
	}
	second.args = ""
	second.add()
	first.works("CHECK", nil)
}

// The sandbox must be one, though nothing is put into it.
func TestPlacementHostWantsASandbox(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", hostConf(nil))
	missing, own := *p, *p
	missing.netns, own.netns = "/run/netns/none", n.netns
	wantText(t, missing.fails("ADD", 8, nil), "/run/netns/none")
	wantText(t, own.fails("ADD", 8, nil), "own network namespace")
}

// Without the opt-in a pod gets a veth, whatever the placement.
func TestOptInWithPlacementHost(t *testing.T) {
	n := newNode(t)
	c := hostConf(object{"when": "annotated"})
	plain, host := n.pod("plain", c), n.pod("host", c)
	host.args = "TAP=1"
	plain.addPlain()
	wantPlainSandbox(t, plain)
	host.add()
	wantEmptySandbox(t, host)
	for _, p := range []*pod{plain, host} {
		p.works("CHECK", nil)
		p.works("DEL", nil)
	}
}

func TestCheckNamesDriftsOnHost(t *testing.T) {
	n := newNode(t)
	c := hostConf(object{"ipMasq": true, "queues": 2, "ipam": ranges("10.9.0.0/24", "fd00:9::/64").with(object{"reuseDelay": "0s"})})
	owner := func(t *testing.T, p *pod, tapName string) {
		fd, err := openQueue(t, p.n.netns, tapName, qemuMQFlags)
		mustDo(t, err)
		defer unix.Close(fd)
		mustDo(t, unix.IoctlSetInt(fd, unix.TUNSETOWNER, 1234))
	}
	for _, d := range []drift{
		{"MAC", onHost(setMAC), nil, []string{"MAC"}},
		{"MTU", onHost(setMTU(1300)), nil, []string{"mtu: want 1400, got 1300"}},
		{"address", onHost(delAddr("10.9.0.1/32")), nil, []string{"address 10.9.0.1/32 is missing"}},
		{"IPv6 address", onHost(delAddr("fd00:9::1/128")), nil, []string{"address fd00:9::1/128 is missing"}},
		{"route", onHost(delRoute("10.9.0.2/32")), nil, []string{"route to 10.9.0.2: does not lead to tprt"}},
		{"neighbour", onHost(changeNeighbour("fd00:9::2")), nil, []string{"neighbour fd00:9::2"}},
		{"program", onHost(detach), nil, []string{"its clsact program is not attached"}},
		{"qdisc", onHost(pfifo), nil, []string{"qdisc: want noqueue, got pfifo"}},
		{"ring", onHost(func(l netlink.Link) error { return netlink.LinkSetTxQLen(l, 77) }), nil, []string{"txQueueLen: want 1000, got 77"}},
		{"alias", onHost(func(l netlink.Link) error { return netlink.LinkSetAlias(l, "else") }), nil, []string{"alias"}},
		{"owner", owner, nil, []string{"owner: want 0, got 1234"}},
		{"entry", deleteEntry, nil, []string{"programs: entry of ifindex"}},
		{"lease", deleteLease, nil, []string{"lease: 10.9.0.2 is not leased"}},
		{"placement asked for now", nothing, object{"placement": "pod"}, []string{"placement: want pod, got host"}},
		{"queues asked for now", nothing, object{"queues": 4}, []string{"queues: want 4, got 2"}},
		{"gone", onHost(netlink.LinkDel), nil, []string{"tprt"}},
	} {
		p := n.pod("c1", c)
		p.args = "IP=10.9.0.2,fd00:9::2"
		p.add()
		p.works("CHECK", nil)
		tapName := n.list("c1").TAP.Name
		d.cause(t, p, tapName)
		wantText(t, wantCode(t, p.call("CHECK", d.over), codeDiffers), d.want...)
		if d.name == "alias" { // DEL takes no device that says it is another's
			n.in(func() { mustDo(t, netlink.LinkSetAlias(link(t, tapName), "tapir:pods/c1/eth0")) })
		}
		p.works("DEL", nil)
	}
}

// DEL finds the TAP in whatever state the rest is.
func TestDelOfTapOnHostInEveryState(t *testing.T) {
	n := newNode(t)
	warm := hostConf(object{"ipMasq": true})
	n.warm(warm)
	bystander := n.pod("bystander", conf(object{"ipMasq": true}))
	bystander.add()
	lostState := func(*pod) { mustDo(t, os.RemoveAll(stateDir)) }
	lostRecord := func(p *pod) { p.dropRecord() }
	for _, tt := range []struct {
		name  string
		over  object
		cause func(*pod)
		at    object // DEL's configuration on top; an empty netns by "netns"
		left  []string
	}{
		{"whole", nil, func(*pod) {}, nil, nil},
		{"unknown keys", nil, func(*pod) {}, object{"futureKey": 1, "placement": 7, "queues": "many", "vmm": "new"}, nil},
		{"sandbox gone", nil, func(p *pod) { removeNetns(t, p.netns) }, nil, nil},
		{"no netns given", nil, func(p *pod) { p.netns = "" }, nil, nil},
		{"record lost", object{"ipMasq": false}, lostRecord, object{"placement": nil}, []string{"endpoints of", "counters of"}},
		{"record lost, name of its user's", object{"ipMasq": false, "tapName": "vmtap0"}, lostRecord, object{"placement": nil, "tapName": nil}, []string{"endpoints of", "counters of"}},
		{"record lost, sandbox gone", object{"ipMasq": false}, func(p *pod) { lostRecord(p); removeNetns(t, p.netns) }, nil, []string{"endpoints of", "counters of"}},
		{"state lost", nil, lostState, nil, nil},
		{"state lost, name of its user's", object{"tapName": "vmtap0"}, lostState, object{"tapName": nil}, nil},
		{"TAP gone", nil, func(p *pod) { deleteLink(t, n.netns, n.list(p.id).TAP.Name) }, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := n.pod("c1", warm.with(tt.over))
			before := n.snapshot()
			p.add()
			tt.cause(p)
			p.works("DEL", tt.at)
			p.works("DEL", tt.at)
			if diff := cmp.Diff(without(before, append(tt.left, "attachment", "lease")...), without(n.snapshot(), append(tt.left, "attachment", "lease")...)); diff != "" {
				t.Errorf("after DEL (-before +after):\n%s", diff)
			}
			if ids := n.attachments(); !slices.Equal(ids, []string{"pods/bystander/eth0"}) {
				t.Errorf("attachments after DEL: %q", ids)
			}
			if tt.left != nil { // entries that no record names are the clean-up's
				if out := n.ctl("cleanup", "--yes"); out.code != 0 {
					t.Errorf("clean-up: %s", out)
				}
			}
		})
	}
	bystander.works("DEL", nil)
}

// A DEL in another network, or of another interface, takes nothing.
func TestDelOfOthersLeavesTapOnHost(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", hostConf(object{"tapName": "vmtap0"}))
	r := p.add()
	before := n.snapshot(p.netns)
	other, second := *p, *p
	second.ifName = "net1"
	other.works("DEL", object{"name": "others"})
	second.works("DEL", nil)
	wantSame(t, "after DEL of others", before, n.snapshot(p.netns))
	boot(p, r).wantPing(nodeIP4, nodeIP6)
}

// Lost state is rebuilt from the TAP: its addresses are nobody else's, and what is known of it is shown.
func TestLostStateOfTapOnHost(t *testing.T) {
	n := newNode(t)
	prev := map[*pod]object{}
	hash, named := n.pod("hash", hostConf(object{"txQueueLen": 200})), n.pod("named", hostConf(object{"tapName": "vmtap0", "queues": 2}))
	for _, p := range []*pod{hash, named} {
		out := p.call("ADD", nil)
		if out.code != 0 {
			t.Fatalf("ADD: %s", out)
		}
		prev[p] = object{"prevResult": json.RawMessage(out.stdout)}
	}
	old := map[*pod]listing{hash: n.list("hash"), named: n.list("named")}
	mustDo(t, os.RemoveAll(stateDir))
	newer := n.pod("newer", hostConf(nil))
	newer.add()
	if got := n.list("newer").address(t, true); got != "10.9.0.4" {
		t.Errorf("the newer pod has %s, want 10.9.0.4: those before are used", got)
	}
	for p, queues := range map[*pod]int{hash: 1, named: 0} {
		l := n.list(p.id)
		if l.Placement != "host" || l.TAP != old[p].TAP || l.GuestMAC != old[p].GuestMAC || l.Queues != queues || l.address(t, false) != old[p].address(t, false) {
			t.Errorf("rebuilt: %+v\nbefore: %+v", l, old[p])
		}
		p.works("CHECK", prev[p])
	}
	wantText(t, string(n.ctl("list", "named").stdout), "vmtap0", "host", "unknown")
	wantText(t, string(n.ctl("doctor", "hash").stdout), "was rebuilt from the kernel", "goes by DEL")
	deleteLink(t, n.netns, "vmtap0")
	wantText(t, named.fails("CHECK", codeDiffers, prev[named]), "vmtap0")
	hash.works("DEL", nil)
	named.works("DEL", nil)
	if ids := n.attachments(); !slices.Equal(ids, []string{"pods/newer/eth0"}) {
		t.Errorf("attachments after DEL: %q", ids)
	}
}

// Nobody takes the TAP away with its sandbox but tapir: GC, gc and the clean-up, the last one only where no VMM has it.
func TestDeadTapOnHostIsCollected(t *testing.T) {
	n := newNode(t)
	n.warm(hostConf(nil))
	start := n.snapshot()
	dead, used, live := n.pod("dead", hostConf(nil)), n.pod("used", hostConf(object{"tapName": "vmtap0"})), n.pod("live", hostConf(nil))
	dead.add()
	g := boot(used, used.add())
	live.add()
	removeNetns(t, dead.netns)
	removeNetns(t, used.netns)
	out := n.ctl("cleanup", "--yes")
	wantText(t, string(out.stdout), "pods/dead/eth0", "no VMM has its TAP")
	if ids := n.attachments(); !slices.Equal(ids, []string{"pods/live/eth0", "pods/used/eth0"}) {
		t.Errorf("attachments after the clean-up: %q", ids)
	}
	g.wantPing(nodeIP4, nodeIP6)
	live.works("CHECK", nil)
	caller := n.pod("", hostConf(nil))
	caller.netns, caller.ifName = "", ""
	caller.works("GC", object{"cni.dev/valid-attachments": valid(live)})
	if ids := n.attachments(); !slices.Equal(ids, []string{"pods/live/eth0"}) {
		t.Errorf("attachments after GC: %q", ids)
	}
	live.works("DEL", nil)
	wantSame(t, "when all are gone", start, n.snapshot())
}

// dropRecord takes record and lease out of the state, as nobody does.
func (p *pod) dropRecord() {
	t := p.n.t
	t.Helper()
	key := state.Key{Network: "pods", ContainerID: p.id, IfName: p.ifName}
	p.n.in(func() {
		mustDo(t, state.New(state.Config{Dir: stateDir}).Update(t.Context(), func(tx *state.Tx) error {
			_, _, err := tx.ReleaseLease(key)
			return errors.Join(err, tx.Delete(key))
		}))
	})
}

// An operator's commands find the TAP in the host's netns, and know no other.
func TestCommandsOnTapOfHost(t *testing.T) {
	testnode.Require(t, "btf")
	n := newNode(t)
	p := n.pod("c1", hostConf(object{"queues": 2, "vmm": "qemu"}))
	p.add()
	l := n.list("c1")
	wantText(t, string(n.ctl("doctor", "c1").stdout), "the kernel has all that was asked for", "no VMM has opened "+l.TAP.Name)
	all := string(n.ctl("guest-config", "c1").stdout)
	wantText(t, all, "ifname="+l.TAP.Name, "queues=2", "in the host's network namespace", "tapirctl fds --attachment c1/eth0 -- qemu-system-x86_64", "fds={fds}",
		"tapirctl fds --attachment c1/eth0 -- cloud-hypervisor --net 'id=net0,fd={fd},mac="+l.GuestMAC+",num_queues=4'")
	if strings.Contains(all, "nsenter") {
		t.Errorf("guest-config enters a netns: %s", all)
	}

	fd, err := openQueue(t, n.netns, l.TAP.Name, qemuMQFlags)
	mustDo(t, err)
	n.wantNAPI("c1", "no", 1)
	wantText(t, string(n.ctl("doctor", "c1").stdout), "no NAPI: it opened the TAP by name", "tapirctl fds --attachment c1/eth0 -- VMM")
	mustDo(t, unix.Close(fd))
	t.Run("fds without tapird", func(t *testing.T) { n.handOver(t, "--direct") })
	socket := filepath.Join(t.TempDir(), "tapird.sock")
	daemon := exec.Command(filepath.Join(os.Getenv(binDirEnv), "tapird"), "--socket", socket)
	n.start(daemon)
	defer kill(daemon)
	t.Run("fds by tapird", func(t *testing.T) { n.handOver(t, "--wait=20s", "--socket="+socket) })
}

// handOver has a process be given both queues of c1.
func (n *node) handOver(t *testing.T, how ...string) {
	t.Helper()
	args := slices.Concat([]string{"fds", "--attachment", "c1/eth0"}, how, []string{"--", "/bin/sh", "-c", "exec sleep 60", "{fds}"})
	vmm := exec.Command(filepath.Join(os.Getenv(binDirEnv), "tapirctl"), args...)
	vmm.Stderr = os.Stderr
	n.start(vmm)
	defer kill(vmm)
	n.wantNAPI("c1", "yes", 2)
}

// wantNAPI waits until that many queues of an attachment are open, all with NAPI or all without.
func (n *node) wantNAPI(id, want string, queues int) {
	n.t.Helper()
	var rows []struct{ State, NAPI, Netns string }
	for deadline := time.Now().Add(callPatience); ; time.Sleep(20 * time.Millisecond) {
		n.ctlJSON(&rows, "queues", id)
		open := 0
		for _, r := range rows {
			if r.NAPI == want && r.State == "enabled" && r.Netns == "" {
				open++
			}
		}
		if open == queues && len(rows) == queues {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("%s: want %d queues with NAPI %s, got %+v", id, queues, want, rows)
		}
	}
}
