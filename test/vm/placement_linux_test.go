package vm_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"

	"github.com/tapir-cni/tapir/internal/guestconfig"
	"github.com/tapir-cni/tapir/internal/microvm/vmtest"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/plugin"
	"github.com/tapir-cni/tapir/state"
)

// A guest on a TAP in the host's netns, and one on a TAP in its pod's, under tapirctl exec: each reaches the other, the gateway and the
// node, by ping and by TCP with and without offloads.
func TestGuestOnHost(t *testing.T) {
	const queues, mtu = 2, 1500
	testnode.Require(t, "bpf")
	img, binDir := vmtest.Image(t)
	nodeAddresses(t)
	t.Cleanup(func() { cleanUp(t) })
	cni := libcni.NewCNIConfigWithCacheDir([]string{binDir}, t.TempDir(), nil)
	var pods []*pod
	for id, placement := range []string{plugin.PlacementHost, plugin.PlacementPod} {
		pods = append(pods, attachPlaced(t, cni, placement, []string{"on-host", "in-pod"}[id], queues, mtu))
	}
	supervise(t)
	serve(t)
	boot(t, img, pods)
	for _, p := range pods {
		wantNAPI(t, p, queues)
	}
	t.Run("cards", func(t *testing.T) { testCards(t, pods, queues, mtu) })
	t.Run("pings", func(t *testing.T) { testPings(t, pods, mtu) })
	t.Run("TCP with offloads", func(t *testing.T) { testStreams(t, pods, mtu, 10e6, true) })
	t.Run("TCP without offloads", func(t *testing.T) { testStreams(t, pods, mtu, 10e6, false) })
}

// attachPlaced attaches a sandbox. Its guest comes from the record, since layout "cri" of placement host does not tell its MAC.
func attachPlaced(t *testing.T, cni libcni.CNI, placement, id string, queues, mtu int) *pod {
	t.Helper()
	b, err := json.Marshal(map[string]any{
		"cniVersion": "1.1.0", "name": "vmtest", "plugins": []any{map[string]any{
			"type": "tapir", "vmm": "qemu", "placement": placement, "queues": queues, "mtu": mtu,
			"ipam": map[string]any{
				"type":   "tapir-ipam",
				"ranges": [][]map[string]string{{{"subnet": "10.9.0.0/24"}}, {{"subnet": "fd00:9::/64"}}},
				"routes": []map[string]string{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
			},
		}},
	})
	check(t, err)
	list, err := libcni.NetworkConfFromBytes(b)
	check(t, err)
	p := attach(t, cni, list, id)
	p.guest, p.tapIndex = recordedGuest(t, state.Key{Network: "vmtest", ContainerID: id, IfName: "eth0"})
	if placement == plugin.PlacementHost {
		l, err := netlink.LinkByName(p.guest.TAP)
		check(t, err)
		if l.Attrs().Index != p.tapIndex {
			t.Errorf("%q has ifindex %d, recorded is %d", p.guest.TAP, l.Attrs().Index, p.tapIndex)
		}
	}
	return p
}

func recordedGuest(t *testing.T, key state.Key) (g guestconfig.Guest, tapIndex int) {
	t.Helper()
	check(t, state.New(state.Config{Dir: plugin.DefaultStateDir}).View(context.Background(), func(tx *state.Tx) error {
		a, _, err := tx.Attachment(key)
		if err == nil {
			tapIndex = a.TAP.Index
			g, err = guestconfig.FromAttachment(a)
		}
		return err
	}))
	return g, tapIndex
}
