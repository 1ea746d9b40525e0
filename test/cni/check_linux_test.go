package cni_test

import (
	"encoding/json"
	"net"
	"net/netip"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// drift is a change behind tapir's back that CHECK must name.
type drift struct {
	name string
	// cause changes something; host is the host end's name.
	cause func(t *testing.T, p *pod, host string)
	over  object // of the configuration at CHECK
	want  []string
}

// inPod and onHost make a cause that acts on a device in the sandbox, or on the host end.
func inPod(dev string, act func(netlink.Link) error) func(*testing.T, *pod, string) {
	return func(t *testing.T, p *pod, _ string) {
		testnode.In(t, p.netns, func() { mustDo(t, act(link(t, dev))) })
	}
}

func onHost(act func(netlink.Link) error) func(*testing.T, *pod, string) {
	return func(t *testing.T, p *pod, host string) {
		p.n.in(func() { mustDo(t, act(link(t, host))) })
	}
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func nothing(*testing.T, *pod, string) {}

// setMTU, setMAC and the like are actions on a device.
func setMTU(mtu int) func(netlink.Link) error {
	return func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) }
}

func setMAC(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, strangeMAC) }

func delAddr(p string) func(netlink.Link) error {
	return func(l netlink.Link) error {
		return netlink.AddrDel(l, &netlink.Addr{IPNet: ipNet(netip.MustParsePrefix(p))})
	}
}

func delRoute(p string) func(netlink.Link) error {
	return func(l netlink.Link) error {
		return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(netip.MustParsePrefix(p)), Scope: unix.RT_SCOPE_NOWHERE})
	}
}

func delNeighbour(a string) func(netlink.Link) error {
	return func(l netlink.Link) error {
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: net.ParseIP(a)})
	}
}

// changeNeighbour gives an address another MAC.
func changeNeighbour(a string) func(netlink.Link) error {
	return func(l netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: net.ParseIP(a), HardwareAddr: strangeMAC, State: unix.NUD_PERMANENT})
	}
}

// detach takes the redirect program off a device.
func detach(l netlink.Link) error {
	return netlink.QdiscDel(&netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	})
}

// pfifo replaces the root qdisc.
func pfifo(l netlink.Link) error {
	return netlink.QdiscReplace(&netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}, QdiscType: "pfifo",
	})
}

// tunIoctl changes a property of the TAP through one of its queues.
func tunIoctl(request uint, value int) func(*testing.T, *pod, string) {
	return func(t *testing.T, p *pod, _ string) {
		fd, err := openQueue(t, p.netns, "tap-eth0", qemuMQFlags)
		mustDo(t, err)
		defer unix.Close(fd)
		mustDo(t, unix.IoctlSetInt(fd, request, value))
	}
}

// deleteEntry takes the TAP's entry out of the pinned map.
func deleteEntry(t *testing.T, p *pod, _ string) {
	m := pinnedMap(t, "endpoints")
	mustDo(t, m.Delete(uint32(p.n.list(p.id).TAP.Index)))
}

// deleteLease releases the addresses in the state.
func deleteLease(t *testing.T, p *pod, _ string) {
	p.n.in(func() {
		mustDo(t, state.New(state.Config{Dir: stateDir}).Update(t.Context(), func(tx *state.Tx) error {
			_, _, err := tx.ReleaseLease(state.Key{Network: "pods", ContainerID: p.id, IfName: p.ifName})
			return err
		}))
	})
}

// removeMasquerade empties the set of the node whose name starts so.
func (n *node) removeMasquerade(prefix string) {
	n.t.Helper()
	for _, line := range n.nftables() {
		if name, ok := strings.CutPrefix(line, "table tapir set "+prefix); ok {
			n.tool("nft", "flush", "set", "inet", "tapir", prefix+strings.Fields(name)[0])
		}
	}
}

// drifts are the changes to an attachment whose addresses are 10.9.0.2 and fd00:9::2.
var drifts = []drift{
	{"mtu of the TAP", inPod("tap-eth0", setMTU(1300)), nil, []string{"tap-eth0: mtu: want 1400, got 1300"}},
	{"mtu of the pod end", inPod("eth0", setMTU(1300)), nil, []string{"eth0: mtu: want 1400, got 1300"}},
	{"mtu of the host end", onHost(setMTU(1300)), nil, []string{"mtu: want 1400, got 1300"}},
	{"MAC of the TAP", inPod("tap-eth0", setMAC), nil, []string{"tap-eth0: MAC: want " + gatewayMAC.String() + ", got " + strangeMAC.String()}},
	{"MAC of the pod end", inPod("eth0", setMAC), nil, []string{"eth0: MAC: want", "got " + strangeMAC.String()}},
	{"MAC of the host end", onHost(setMAC), nil, []string{"MAC: want " + gatewayMAC.String()}},
	{"TAP down", inPod("tap-eth0", netlink.LinkSetDown), nil, []string{"tap-eth0: is down"}},
	{"pod end down", inPod("eth0", netlink.LinkSetDown), nil, []string{"eth0: is down"}},
	{"tag", inPod("tap-eth0", func(l netlink.Link) error { return netlink.LinkSetAlias(l, "mine") }), nil, []string{"tap-eth0: alias"}},
	{"ring", inPod("tap-eth0", func(l netlink.Link) error { return netlink.LinkSetTxQLen(l, 3) }), nil, []string{"tap-eth0: txQueueLen: want 1000, got 3"}},
	{"qdisc", inPod("tap-eth0", pfifo), nil, []string{"tap-eth0: qdisc: want noqueue, got pfifo"}},
	{"program of the TAP", inPod("tap-eth0", detach), nil, []string{"tap-eth0: its clsact program is not attached"}},
	{"program of the pod end", inPod("eth0", detach), nil, []string{"eth0: its clsact program is not attached"}},
	{"owner", tunIoctl(unix.TUNSETOWNER, 77), nil, []string{"tap-eth0: owner: want 0, got 77"}},
	{"group", tunIoctl(unix.TUNSETGROUP, 78), nil, []string{"tap-eth0: group: want none, got 78"}},
	{"gateway address, IPv4", onHost(delAddr("10.9.0.1/32")), nil, []string{"address 10.9.0.1/32 is missing"}},
	{"gateway address, IPv6", onHost(delAddr("fd00:9::1/128")), nil, []string{"address fd00:9::1/128 is missing"}},
	{"route, IPv4", onHost(delRoute("10.9.0.2/32")), nil, []string{"route to 10.9.0.2: does not lead to tpr"}},
	{"route, IPv6", onHost(delRoute("fd00:9::2/128")), nil, []string{"route to fd00:9::2: does not lead to tpr"}},
	{"neighbour gone, IPv4", onHost(delNeighbour("10.9.0.2")), nil, []string{"neighbour 10.9.0.2"}},
	{"neighbour gone, IPv6", onHost(delNeighbour("fd00:9::2")), nil, []string{"neighbour fd00:9::2"}},
	{"neighbour's MAC", onHost(changeNeighbour("10.9.0.2")), nil, []string{"neighbour 10.9.0.2: want", "got " + strangeMAC.String()}},
	{"map entry", deleteEntry, nil, []string{"programs: entry of ifindex"}},
	{"lease", deleteLease, nil, []string{"lease: 10.9.0.2 is not leased", "lease: fd00:9::2 is not leased"}},
	{"masquerade, IPv4", func(_ *testing.T, p *pod, _ string) { p.n.removeMasquerade("pods4-") }, nil, []string{"masquerade: 10.9.0.2 is missing"}},
	{"masquerade, all", func(_ *testing.T, p *pod, _ string) { p.n.tool("nft", "delete", "table", "inet", "tapir") }, nil,
		[]string{"masquerade: 10.9.0.2 is missing", "masquerade: fd00:9::2 is missing"}},
	{"TAP gone", func(t *testing.T, p *pod, _ string) { deleteLink(t, p.netns, "tap-eth0") }, nil, []string{"tap-eth0: Link not found"}},
	{"veth gone", func(t *testing.T, p *pod, _ string) { deleteLink(t, p.netns, "eth0") }, nil, []string{"eth0: Link not found", "tpr"}},
	{"queues asked for now", nothing, object{"queues": 4}, []string{"queues: want 4, got 2"}},
	{"ring asked for now", nothing, object{"txQueueLen": 500}, []string{"txQueueLen: want 500, got 1000"}},
	{"masquerade asked for now", nothing, object{"ipMasq": false}, []string{"ipMasq: want false, got true"}},
	{"redirect asked for now", nothing, object{"redirect": "tcx"}, []string{"redirect: want tcx, got clsact"}},
	{"MTU asked for now", nothing, object{"mtu": 9000}, []string{"mtu: want 9000, got 1400"}},
	{"spoofCheck asked for now", nothing, object{"spoofCheck": false}, []string{"spoofCheck: want false, got true"}},
	{"owner asked for now", nothing, object{"owner": 5}, []string{"owner: want 5, got 0"}},
	{"MAC asked for now", nothing, object{"mac": strangeMAC.String()}, []string{"guest MAC: want " + strangeMAC.String()}},
	{"TAP name asked for now", nothing, object{"tapName": "other"}, []string{"tapName: want other, got tap-eth0"}},
}

func TestCheckNamesEachDrift(t *testing.T) {
	n := newNode(t)
	c := conf(object{"queues": 2, "ipMasq": true, "ipam": ranges("10.9.0.0/24", "fd00:9::/64").with(object{"reuseDelay": "0s"})})
	for _, d := range drifts {
		p := n.pod("c1", c)
		p.args = "IP=10.9.0.2,fd00:9::2"
		host := hostEnd(t, p.add())
		p.works("CHECK", nil) // else what follows shows nothing
		d.cause(t, p, host)
		text := wantCode(t, p.call("CHECK", d.over), codeDiffers)
		t.Log(d.name + ": " + text)
		wantText(t, text, d.want...)
		p.works("DEL", nil)
		if t.Failed() {
			t.Fatalf("at the drift %q", d.name)
		}
	}
}

func TestCheckReadsPrevResultOfAnyVersion(t *testing.T) {
	n := newNode(t)
	for _, version := range specVersions[1:] { // 0.3.1 has no CHECK
		p := n.pod("v"+version, conf(object{"cniVersion": version}))
		var prev any
		mustDo(t, json.Unmarshal(p.call("ADD", nil).stdout, &prev))
		p.works("CHECK", object{"prevResult": prev})
		p.works("CHECK", object{"prevResult": prev, "cniVersion": "1.1.0"})
		p.works("CHECK", object{"prevResult": nil})
		old, err := types100.NewResult(marshal(t, prev.(map[string]any)))
		if version == "1.1.0" {
			mustDo(t, err)
			r := old.(*types100.Result)
			r.IPs[0].Address.IP = net.IPv4(10, 9, 0, 99)
			wantText(t, p.fails("CHECK", codeDiffers, object{"prevResult": r}), "prevResult: 10.9.0.99/24 is not this attachment's", "is missing")
			r.IPs[0].Address.IP = net.IPv4(10, 9, 0, 4)
			r.Interfaces[1].Mac = strangeMAC.String()
			wantText(t, p.fails("CHECK", codeDiffers, object{"prevResult": r}), "prevResult: MAC of eth0", strangeMAC.String())
		}
	}
}

func TestCheckWithoutAttachment(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	wantText(t, p.fails("CHECK", codeDiffers, nil), "no finished ADD")
	p.add()
	p.works("DEL", nil)
	wantText(t, p.fails("CHECK", codeDiffers, nil), "no finished ADD")
	p.add()
	removeNetns(t, p.netns)
	wantText(t, p.fails("CHECK", codeNetns, nil), p.netns)
}
