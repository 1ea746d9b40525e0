package guestconfig_test

import (
	"encoding/json"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/tapir-cni/tapir/internal/guestconfig"
	"github.com/tapir-cni/tapir/state"
)

// lines are the commands of a guest as one types them.
func lines(t *testing.T, a state.Attachment) (out map[string]string) {
	t.Helper()
	g, err := guestconfig.FromAttachment(a)
	if err != nil {
		t.Fatal(err)
	}
	fds, exec, err := g.Starts(guestconfig.QEMUOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out = map[string]string{}
	for _, by := range []map[string][]string{fds, exec} {
		for vmm, argv := range by {
			if out[vmm] != "" {
				t.Errorf("%s is started in two ways", vmm)
			}
			out[vmm] = guestconfig.ShellJoin(argv)
		}
	}
	return out
}

// Who takes open queues is started by fds, in whatever netns; who does not by exec, in the TAP's.
func TestCommandsThatGiveNAPI(t *testing.T) {
	two, one, host := dual(), single(), single()
	two.ContainerID, one.ContainerID, host.ContainerID = "c1", "c1", "c1"
	two.Netns, one.Netns, host.Netns = "/run/netns/s1", "/run/netns/s1", "/run/netns/s1"
	host.Placement, host.TAP.Name = state.PlacementHost, "tprt0123456789a"
	card := func(a state.Attachment) string { return ",mac=" + a.GuestMAC }
	for name, tc := range map[string]struct {
		a    state.Attachment
		want map[string]string
	}{
		"two queues": {two, map[string]string{
			"qemu":             "tapirctl fds --attachment c1/eth0 -- qemu-system-x86_64 -netdev 'tap,id=net0,fds={fds},vhost=off' -device virtio-net-pci,netdev=net0" + card(two) + ",mq=on,vectors=6,host_mtu=1450",
			"cloud-hypervisor": "tapirctl fds --attachment c1/eth0 -- cloud-hypervisor --net 'id=net0,fd={fd}" + card(two) + ",num_queues=4'",
		}},
		"one queue": {one, map[string]string{
			"qemu":             "tapirctl fds --attachment c1/eth0 -- qemu-system-x86_64 -netdev 'tap,id=net0,fds={fds},vhost=off' -device virtio-net-pci,netdev=net0" + card(one) + ",host_mtu=9000",
			"cloud-hypervisor": "tapirctl fds --attachment c1/eth0 -- cloud-hypervisor --net 'id=net0,fd={fd}" + card(one) + ",num_queues=2'",
			"firecracker":      "nsenter --net=/run/netns/s1 -- tapirctl exec --attachment c1/eth0 -- firecracker --config-file vm.json",
		}},
		"on the host": {host, map[string]string{
			"qemu":             "tapirctl fds --attachment c1/eth0 -- qemu-system-x86_64 -netdev 'tap,id=net0,fds={fds},vhost=off' -device virtio-net-pci,netdev=net0" + card(host) + ",host_mtu=9000",
			"cloud-hypervisor": "tapirctl fds --attachment c1/eth0 -- cloud-hypervisor --net 'id=net0,fd={fd}" + card(host) + ",num_queues=2'",
			"firecracker":      "tapirctl exec --attachment c1/eth0 -- firecracker --config-file vm.json",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, lines(t, tc.a)); diff != "" {
				t.Errorf("commands (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoCommandsWithoutNAPI(t *testing.T) {
	a := dual()
	a.NoNAPI = true
	g, err := guestconfig.FromAttachment(a)
	if err != nil {
		t.Fatal(err)
	}
	all, err := g.All(guestconfig.AllOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if all.FDs != nil || all.Exec != nil || !strings.Contains(all.Refused["fds"], `"napi": false`) {
		t.Errorf("commands %v and %v, refused %q", all.FDs, all.Exec, all.Refused["fds"])
	}
}

func TestGuestOnHost(t *testing.T) {
	a := single()
	a.Placement, a.VMM, a.TAP.Name, a.Netns, a.DAN = state.PlacementHost, "kata", "tprt0123456789a", "/run/netns/s1", "/dans/c1.json"
	g, err := guestconfig.FromAttachment(a)
	if err != nil || g.Netns != "" || !g.OnHost {
		t.Fatalf("want a guest in the host's netns, got %+v, %v", g, err)
	}
	all, err := g.All(guestconfig.AllOptions{})
	if err != nil || all.DAN != "/dans/c1.json" {
		t.Errorf("DAN file %q, %v", all.DAN, err)
	}
	a.TAP, a.Placement, a.DAN = state.Device{}, state.PlacementPod, ""
	if _, err := guestconfig.FromAttachment(a); err == nil || !strings.Contains(err.Error(), "Kata makes its own") {
		t.Errorf("a pod that Kata scans: %v", err)
	}
}

// Of placement host only the layout "firecracker" tells all.
func TestGuestOnHostFromResult(t *testing.T) {
	const text = `{"cniVersion": "1.1.0",
	 "interfaces": [{"name": "tprt0123456789a", "mac": "02:74:61:70:69:72", "mtu": 1450, "sandbox": "/proc/1/ns/net"},
	                {"name": "tprt0123456789a", "mac": "06:00:0a:55:00:05", "mtu": 1450, "sandbox": "c1"}],
	 "ips": [{"address": "10.85.0.5/24", "gateway": "10.85.0.1"}, {"address": "fd00:85::5/64", "gateway": "fd00:85::1"},
	         {"interface": 1, "address": "10.85.0.5/24", "gateway": "10.85.0.1"}],
	 "routes": [{"dst": "0.0.0.0/0", "gw": "10.85.0.1"}]}`
	var r types100.Result
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	q := guestconfig.Query{ContainerID: "c1", IfName: "eth0"}
	g, err := guestconfig.FromResult(&r, q)
	if err != nil {
		t.Fatal(err)
	}
	if g.TAP != "tprt0123456789a" || g.MAC != "06:00:0a:55:00:05" || g.Netns != "" || !g.OnHost || len(g.Addresses) != 2 || g.MTU != 1450 {
		t.Errorf("guest: %+v", g)
	}
	r.Interfaces, r.IPs = r.Interfaces[:1], r.IPs[:2]
	r.Interfaces[0].Sandbox = ""
	if _, err := guestconfig.FromResult(&r, q); err == nil || !strings.Contains(err.Error(), "does not tell the guest's MAC") {
		t.Errorf("layout cri: %v", err)
	}
}

// QEMU counts queues as its profile says, and not where there is one.
func TestQEMUQueuesFollowProfile(t *testing.T) {
	for queues, want := range map[int]string{1: "", 2: "queues=2", 256: "queues=256"} {
		a := dual()
		a.Queues = queues
		g, err := guestconfig.FromAttachment(a)
		if err != nil {
			t.Fatal(err)
		}
		args, err := g.QEMU(guestconfig.QEMUOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, o := range strings.Split(args[1], ",") {
			if strings.HasPrefix(o, "queues=") {
				got = o
			}
		}
		if got != want {
			t.Errorf("%d queues: got %q, want %q", queues, got, want)
		}
	}
}
