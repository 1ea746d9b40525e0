package vm_test

import (
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/tapir-cni/tapir/internal/microvm"
	"github.com/tapir-cni/tapir/internal/microvm/agentapi"
	"github.com/tapir-cni/tapir/internal/microvm/ping"
	"github.com/tapir-cni/tapir/internal/microvm/stream"
	"github.com/tapir-cni/tapir/internal/microvm/vmtest"
	"github.com/tapir-cni/tapir/internal/testnode"
)

const testMTU = 1450 // no default of anybody's

const bridgeName = "vmbr0"

// bridged is the conflist of docs/chaining.md: microVMs and plain containers on one bridge.
func bridged(t *testing.T, dataDir string) *libcni.NetworkConfigList {
	t.Helper()
	b, err := json.Marshal(map[string]any{
		"cniVersion": "1.1.0", "name": "bridged", "plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": bridgeName, "isGateway": true, "hairpinMode": true, "mtu": testMTU,
				"ipam": map[string]any{
					"type": "host-local", "dataDir": dataDir,
					"ranges": [][]map[string]string{{{"subnet": "10.22.0.0/24"}}, {{"subnet": "fd00:22::/64"}}},
					"routes": []map[string]string{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
				},
			},
			map[string]any{"type": "tapir", "when": "annotated", "result": "firecracker"},
		},
	})
	check(t, err)
	list, err := libcni.NetworkConfFromBytes(b)
	check(t, err)
	return list
}

// TestConsumers boots a microVM behind bridge, host-local and tapir in one list, and one behind tapir alone for each layout
// of the result, each configured from that result by the rules of who reads it. The Firecracker SDK has IPv4 only, by the
// kernel's ip=: its guests boot once with just that, and once more with what cloud-init makes of the same result's IPv6.
func TestConsumers(t *testing.T) {
	testnode.Require(t, "bpf")
	img, binDir := vmtest.Image(t)
	refplugins := vmtest.RefPlugins(t)
	linksBefore := linkNames(t)
	t.Cleanup(func() {
		if diff := cmp.Diff(linksBefore, linkNames(t)); diff != "" {
			t.Errorf("devices of the node after the last DEL (-before +after):\n%s", diff)
		}
	})
	nodeAddresses(t)
	t.Cleanup(func() { cleanUp(t) })
	cni := libcni.NewCNIConfigWithCacheDir([]string{refplugins, binDir}, t.TempDir(), nil)

	dataDir := t.TempDir()
	t.Cleanup(func() { testBridgeEmpty(t, dataDir) })
	list := bridged(t, dataDir)
	ignore := [2]string{"IgnoreUnknown", "1"} // host-local refuses arguments that it does not know
	chained := attach(t, cni, list, "chained", ignore, [2]string{"TAP", "1"})
	container := attach(t, cni, list, "container", ignore)
	alone := map[string]*pod{}
	for _, layout := range []string{"cri", "plain", "firecracker"} {
		alone[layout] = attach(t, cni, config(t, 1, testMTU, layout), layout)
	}
	vms := []*pod{chained, alone["firecracker"], alone["cri"], alone["plain"]}
	sdk := vms[:2]

	var err error
	for _, p := range sdk {
		p.guest, err = readSDK(t, p)
		check(t, err)
		p.source = microvm.IPLine
	}
	alone["cri"].guest, err = readCRI(alone["cri"])
	check(t, err)
	alone["plain"].guest, err = readPlain(alone["plain"])
	check(t, err)
	boot(t, img, vms)
	for _, p := range vms {
		t.Run(p.id, func(t *testing.T) { testReached(t, p, container, chained) })
	}
	for _, p := range sdk {
		check(t, p.vm.Stop())
		g, err := fromResult(p.result, p.id)
		check(t, err)
		if g.TAP != p.guest.TAP || g.MAC != p.guest.MAC || g.MTU != p.guest.MTU {
			t.Errorf("%s: cloud-init's card is %s %s %d, the SDK's %s %s %d", p.id, g.TAP, g.MAC, g.MTU, p.guest.TAP, p.guest.MAC, p.guest.MTU)
		}
		p.guest, p.source = only6(g), microvm.NetworkConfig
	}
	boot(t, img, sdk)
	for _, p := range sdk {
		t.Run(p.id+", IPv6", func(t *testing.T) { testReached(t, p, container, chained) })
	}
}

// testReached reaches the guest by each address that it has: from the node, from the container where both are on the bridge,
// and has it reach the node behind its gateway.
func testReached(t *testing.T, p, container, chained *pod) {
	if len(p.guest.Addresses) == 0 {
		t.Fatal("the guest has no address")
	}
	testAsBooted(t, p)
	for _, a := range p.guest.Addresses {
		to := a.Prefix.Addr()
		if p == chained {
			reach(t, "the node", a.Gateway, to)
			testnode.In(t, container.netns, func() { reach(t, "the container", container.address(t, to.Is4()), to) })
		} else {
			reach(t, "the node", netip.Addr{}, to)
		}
		node := nodeAddrs[1]
		if to.Is4() {
			node = nodeAddrs[0]
		}
		if r, err := p.vm.Ping(t.Context(), node, 56, 3, 15*time.Second); err != nil || r.Received != 3 {
			t.Errorf("from the guest to %s: %d of %d answered, %v", node, r.Received, r.Sent, err)
		}
	}
}

// address is the pod's first address of that family.
func (p *pod) address(t *testing.T, is4 bool) netip.Addr {
	t.Helper()
	for _, ip := range p.result.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok && a.Unmap().Is4() == is4 {
			return a.Unmap()
		}
	}
	t.Fatalf("%s has no address with IPv4 %v", p.id, is4)
	return netip.Addr{}
}

// reach pings the guest from the netns of the calling thread, with payloads of one frame and of several, and moves 1 MB of
// TCP each way. The guest must see the address from as the client's, where there is one.
func reach(t *testing.T, who string, from, to netip.Addr) {
	t.Helper()
	for _, size := range []int{56, 8000} {
		r, err := ping.Run(t.Context(), agentapi.PingArgs{Addr: to.String(), Size: size, Count: 3, Timeout: 15 * time.Second})
		if err != nil || r.Sent != 3 || r.Received != 3 {
			t.Errorf("%s to %s, %d bytes: %d of %d answered, %v", who, to, size, r.Received, r.Sent, err)
		}
	}
	const n = 1e6
	for what, move := range map[string]func(net.Conn, uint64, int64) (stream.Result, error){"upload": stream.Upload, "download": stream.Download} {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(to.String(), strconv.Itoa(stream.Port)), 15*time.Second)
		if err != nil {
			t.Errorf("%s to %s: %v", who, to, err)
			continue
		}
		check(t, c.SetDeadline(time.Now().Add(30*time.Second)))
		r, err := move(c, 7, n)
		check(t, c.Close())
		if err == nil {
			err = r.Err(n)
		}
		if err != nil {
			t.Errorf("%s to %s, %s: %v", who, to, what, err)
			continue
		}
		if peer, err := netip.ParseAddrPort(r.Peer); err != nil || from.IsValid() && peer.Addr().Unmap() != from {
			t.Errorf("%s to %s, %s: want the client %s, the guest saw %s", who, to, what, from, r.Peer)
		}
	}
}

// testBridgeEmpty wants no port on the bridge and no lease of host-local's any more, and removes the bridge: its plugin
// keeps that.
func testBridgeEmpty(t *testing.T, dataDir string) {
	t.Helper()
	br, err := netlink.LinkByName(bridgeName)
	check(t, err)
	links, err := netlink.LinkList()
	check(t, err)
	for _, l := range links {
		if l.Attrs().MasterIndex == br.Attrs().Index {
			t.Errorf("port %s is left on the bridge", l.Attrs().Name)
		}
	}
	files, err := os.ReadDir(dataDir + "/bridged")
	check(t, err)
	leases := slices.DeleteFunc(files, func(f os.DirEntry) bool {
		return f.Name() == "lock" || strings.HasPrefix(f.Name(), "last_reserved_ip.")
	})
	if len(leases) > 0 {
		t.Errorf("leases of host-local are left: %v", leases)
	}
	check(t, netlink.LinkDel(br))
}
