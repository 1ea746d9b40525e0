package consumers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	gocni "github.com/containerd/go-cni"
	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

type object map[string]any

// containerd makes go-cni as containerd's CRI does: with loopback and one conflist, the interface of which is eth0.
func containerd(t *testing.T, plugins ...object) gocni.CNI {
	t.Helper()
	coverVarLib(t)
	list, err := json.Marshal(object{"cniVersion": "1.1.0", "name": "pods", "plugins": plugins})
	if err != nil {
		t.Fatal(err)
	}
	confDir := t.TempDir()
	if err := os.WriteFile(filepath.Join(confDir, "10-pods.conflist"), list, 0o600); err != nil {
		t.Fatal(err)
	}
	cni, err := gocni.New(gocni.WithMinNetworkCount(2), gocni.WithPluginConfDir(confDir), gocni.WithPluginMaxConfNum(1),
		gocni.WithPluginDir([]string{os.Getenv(binEnv), os.Getenv(refpluginsEnv)}))
	if err == nil {
		err = cni.Load(gocni.WithLoNetwork, gocni.WithDefaultConf)
	}
	if err != nil {
		t.Fatal(err)
	}
	return cni
}

// coverVarLib gives the test a /var/lib of its own: libcni keeps its cache there.
func coverVarLib(t *testing.T) {
	t.Helper()
	if err := unix.Mount("tapir-test", "/var/lib", "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("/var/lib", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// cleanNode removes what tapir and bridge leave on the node on purpose.
func cleanNode(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if br, err := netlink.LinkByName("br0"); err == nil {
			if err := netlink.LinkDel(br); err != nil {
				t.Error(err)
			}
		}
		for _, path := range []string{"/run/tapir", "/sys/fs/bpf/tapir"} {
			if err := os.RemoveAll(path); err != nil {
				t.Error(err)
			}
		}
	})
}

func tapir(over object) object {
	c := object{"type": "tapir", "capabilities": object{"io.kubernetes.cri.pod-annotations": true},
		"ipam": object{"type": "tapir-ipam", "ranges": [][]object{{{"subnet": "10.9.0.0/24"}}, {{"subnet": "fd00:9::/64"}}}}}
	for k, v := range over {
		if c[k] = v; v == nil {
			delete(c, k)
		}
	}
	return c
}

func bridge() object {
	return object{"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipam": object{
		"type": "host-local", "ranges": [][]object{{{"subnet": "10.9.0.0/24"}}, {{"subnet": "fd00:9::/64"}}},
	}}
}

// podIPs are the addresses that containerd's CRI gives kubelet: eth0's, of which there is at most one a family
// (internal/cri/server/sandbox_run.go, selectPodIPs).
func podIPs(t *testing.T, r *gocni.Result) []string {
	t.Helper()
	eth0, ok := r.Interfaces["eth0"]
	if !ok || len(eth0.IPConfigs) == 0 {
		t.Fatalf("failed to find network info for sandbox: %v", r.Interfaces)
	}
	var ips []string
	for _, c := range eth0.IPConfigs {
		ips = append(ips, c.IP.String())
	}
	slices.Sort(ips)
	return ips
}

// containerd gets pod addresses, sandbox and MAC right from every layout, alone and after another plugin.
func TestContainerdReadsEveryLayout(t *testing.T) {
	testnode.Require(t, "root", "bpf", "tun", "ipv6")
	for _, layout := range []string{"cri", "firecracker", "plain"} {
		for name, plugins := range map[string][]object{
			"alone":        {tapir(object{"result": layout})},
			"after bridge": {bridge(), tapir(object{"result": layout, "ipam": nil})},
		} {
			t.Run(layout+" "+name, func(t *testing.T) {
				cni := containerd(t, plugins...)
				cleanNode(t)
				ctx, id, netns := context.Background(), "vm-1", testnode.NewNetns(t)
				if err := cni.Status(); err != nil {
					t.Errorf("status: %v", err)
				}
				r, err := cni.Setup(ctx, id, netns)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff([]string{"10.9.0.2", "fd00:9::2"}, podIPs(t, r)); diff != "" {
					t.Errorf("pod addresses (-want +got):\n%s", diff)
				}
				var mac, tap string
				testnode.In(t, netns, func() { mac, tap = hardware(t, "eth0"), hardware(t, "tap-eth0") })
				if eth0 := r.Interfaces["eth0"]; eth0.Sandbox != netns || eth0.Mac != mac {
					t.Errorf("eth0: want sandbox %s and MAC %s, got %+v", netns, mac, eth0)
				}
				wantTAP(t, r, layout, id, netns, mac, tap)
				if err := cni.Remove(ctx, id, netns); err != nil {
					t.Errorf("remove: %v", err)
				}
				if err := cni.Remove(ctx, id, ""); err != nil {
					t.Errorf("remove again without the netns: %v", err)
				}
				testnode.In(t, netns, func() {
					if links, err := net.Interfaces(); err != nil || len(links) != 1 {
						t.Errorf("the sandbox has %v (%v), want lo alone", links, err)
					}
				})
			})
		}
	}
}

// wantTAP wants go-cni's view of the TAP: of two entries with one name the last wins, which is the pseudo entry.
func wantTAP(t *testing.T, r *gocni.Result, layout, id, netns, guest, tap string) {
	t.Helper()
	got, ok := r.Interfaces["tap-eth0"]
	switch layout {
	case "plain":
		if ok {
			t.Errorf("layout plain has a TAP: %+v", got)
		}
	case "cri":
		if !ok || got.Sandbox != netns || got.Mac != tap || len(got.IPConfigs) != 0 {
			t.Errorf("the TAP: want sandbox %s, MAC %s and no address, got %+v", netns, tap, got)
		}
	case "firecracker":
		if !ok || got.Sandbox != id || got.Mac != guest || len(got.IPConfigs) != 1 {
			t.Errorf("the TAP: want the pseudo entry with sandbox %s, MAC %s and one address, got %+v", id, guest, got)
		}
	}
}

func hardware(t *testing.T, name string) string {
	t.Helper()
	i, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return i.HardwareAddr.String()
}

// containerd hands the pod's annotations over as a capability. Only a pod that asks for a TAP has one.
func TestContainerdPassesTheOptIn(t *testing.T) {
	testnode.Require(t, "root", "bpf", "tun", "ipv6")
	for _, plugins := range [][]object{
		{tapir(object{"when": "annotated"})},
		{bridge(), tapir(object{"when": "annotated", "ipam": nil})},
	} {
		for annotations, want := range map[string]bool{"": false, "true": true, "false": false} {
			t.Run(fmt.Sprint(plugins[0]["type"], " ", annotations), func(t *testing.T) {
				cni := containerd(t, plugins...)
				cleanNode(t)
				ctx, netns := context.Background(), testnode.NewNetns(t)
				opts := []gocni.NamespaceOpts{
					gocni.WithLabels(map[string]string{"K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": "web", "K8S_POD_INFRA_CONTAINER_ID": "c1", "IgnoreUnknown": "1"}),
					gocni.WithCapability("io.kubernetes.cri.pod-annotations", map[string]string{"tapir.dev/tap": annotations, "other": "x"}),
				}
				r, err := cni.Setup(ctx, "c1", netns, opts...)
				if err != nil {
					t.Fatal(err)
				}
				if ips := podIPs(t, r); len(ips) != 2 {
					t.Errorf("pod addresses: want one a family, got %v", ips)
				}
				if _, got := r.Interfaces["tap-eth0"]; got != want {
					t.Errorf("annotation %q: a TAP is there: %t", annotations, got)
				}
				if err := cni.Remove(ctx, "c1", netns, opts...); err != nil {
					t.Errorf("remove: %v", err)
				}
			})
		}
	}
}
