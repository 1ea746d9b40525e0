package vm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/tapir-cni/tapir/internal/guestconfig"
	"github.com/tapir-cni/tapir/internal/microvm"
	"github.com/tapir-cni/tapir/internal/microvm/stream"
	"github.com/tapir-cni/tapir/internal/microvm/vmtest"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/plugin"
	"github.com/tapir-cni/tapir/xdp"
)

// The node's own addresses. It has no uplink; guests reach it by these.
var nodeAddrs = []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}

// pod is one sandbox with a TAP, and with a guest where one was booted.
type pod struct {
	id, netns string
	result    *types100.Result
	guest     guestconfig.Guest
	tapIndex  int
	vm        *microvm.VM
	source    microvm.GuestSource // what the guest is configured from; default: network-config
}

// addr is the guest's address of that family: 0 for IPv4, 1 for IPv6.
func (p *pod) addr(family int) netip.Addr { return p.guest.Addresses[family].Prefix.Addr() }

// config is a network configuration of one plugin.
func config(t *testing.T, queues, mtu int, layout string) *libcni.NetworkConfigList {
	t.Helper()
	b, err := json.Marshal(map[string]any{
		"cniVersion": "1.1.0", "name": "vmtest", "plugins": []any{map[string]any{
			"type": "tapir", "queues": queues, "mtu": mtu, "result": layout,
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
	return list
}

// addPods has the plugin attach n sandboxes. They are detached when the test ends, and then nothing must be left.
func addPods(t *testing.T, queues, mtu, n int) (microvm.Image, []*pod) {
	t.Helper()
	testnode.Require(t, "bpf")
	img, binDir := vmtest.Image(t)
	nodeAddresses(t)
	cni := libcni.NewCNIConfigWithCacheDir([]string{binDir}, t.TempDir(), nil)
	list := config(t, queues, mtu, "cri")
	t.Cleanup(func() { cleanUp(t) })
	var pods []*pod
	for i := range n {
		p := attach(t, cni, list, fmt.Sprintf("vm-%d", i+1))
		var err error
		p.guest, err = guestconfig.FromResult(p.result, guestconfig.Query{ContainerID: p.id, IfName: "eth0", Queues: queues})
		check(t, err)
		testnode.In(t, p.netns, func() {
			l, err := netlink.LinkByName(p.guest.TAP)
			check(t, err)
			p.tapIndex = l.Attrs().Index
		})
		pods = append(pods, p)
	}
	return img, pods
}

// attach has the plugins of the list attach a new sandbox, with these CNI_ARGS. It is detached when the test ends, and
// then nothing must be left in it.
func attach(t *testing.T, cni libcni.CNI, list *libcni.NetworkConfigList, id string, args ...[2]string) *pod {
	t.Helper()
	p := &pod{id: id, netns: testnode.NewNetns(t)}
	t.Cleanup(func() {
		testnode.In(t, p.netns, func() {
			if names := linkNames(t); !slices.Equal(names, []string{"lo"}) {
				t.Errorf("DEL of %s left devices in the sandbox: %q", p.id, names)
			}
		})
	})
	rt := &libcni.RuntimeConf{ContainerID: p.id, NetNS: p.netns, IfName: "eth0", Args: args}
	start := time.Now()
	r, err := cni.AddNetworkList(t.Context(), list, rt)
	check(t, err)
	t.Cleanup(func() { // t.Context is done by then
		if err := cni.DelNetworkList(context.Background(), list, rt); err != nil {
			t.Errorf("DEL of %s: %v", p.id, err)
		}
	})
	t.Logf("ADD of %s: %s", p.id, time.Since(start).Round(time.Millisecond))
	p.result, err = types100.NewResultFromResult(r)
	check(t, err)
	return p
}

// linkNames are the devices in the netns of the calling thread, sorted.
func linkNames(t *testing.T) (names []string) {
	t.Helper()
	links, err := netlink.LinkList()
	check(t, err)
	for _, l := range links {
		names = append(names, l.Attrs().Name)
	}
	slices.Sort(names)
	return names
}

// boot starts the guests of all pods at once.
func boot(t *testing.T, img microvm.Image, pods []*pod) {
	t.Helper()
	errs := make([]error, len(pods))
	var wg sync.WaitGroup
	for i, p := range pods {
		wg.Go(func() {
			p.vm, errs[i] = microvm.Start(t.Context(), microvm.Config{
				Name: p.id, Guest: p.guest, Image: img, Source: p.source, Timeout: 2 * time.Minute, // the machine may be busy
			})
		})
	}
	wg.Wait()
	for i, p := range pods {
		if errs[i] != nil {
			t.Error(errs[i])
			continue
		}
		t.Cleanup(func() { check(t, p.vm.Stop()) })
		t.Logf("guest %s up after %s: %v, %d queue pairs", p.id, p.vm.BootTime.Round(time.Millisecond), p.vm.Event.Info.Addresses, p.vm.Event.Info.Pairs)
	}
	if t.Failed() {
		t.FailNow()
	}
}

// nodeAddresses gives the node its own addresses, on lo, for the test's time.
func nodeAddresses(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	check(t, err)
	for _, a := range nodeAddrs {
		n := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
		check(t, netlink.AddrAdd(lo, n))
		t.Cleanup(func() { check(t, netlink.AddrDel(lo, n)) })
	}
}

// serve answers transfers on the node for the test's time.
func serve(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort("::", strconv.Itoa(stream.Port)))
	check(t, err)
	done := make(chan error, 1)
	go func() { done <- stream.Serve(l) }()
	t.Cleanup(func() {
		check(t, l.Close())
		check(t, <-done)
	})
}

// cleanUp removes what all attachments share and wants nothing of an attachment to be there any more.
func cleanUp(t *testing.T) {
	t.Helper()
	r, err := plugin.Cleaner{StateDirs: []string{plugin.DefaultStateDir}, BPFFS: xdp.DefaultDir}.Run(context.Background())
	if err != nil || len(r.Kept) > 0 {
		t.Errorf("clean up: kept %v, %v", r.Kept, err)
	}
	for _, l := range r.Removed {
		if l.Kind == "attachment" || l.Kind == "entry" {
			t.Errorf("DEL left %s %s: %s", l.Kind, l.Name, l.Why)
		}
	}
}

// counters are those of the pod's TAP.
func (p *pod) counters(t *testing.T) map[xdp.Reason]xdp.Counter {
	t.Helper()
	programs, err := xdp.Open(xdp.DefaultDir)
	check(t, err)
	defer programs.Close()
	c, err := programs.Counters(uint32(p.tapIndex))
	check(t, err)
	return c
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
