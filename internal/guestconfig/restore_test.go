package guestconfig_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tapir-cni/tapir/internal/guestconfig"
	"github.com/tapir-cni/tapir/state"
)

// clone is the attachment of a clone whose TAP has one queue.
func clone() state.Attachment {
	a := dual()
	a.Queues, a.FixedMAC = 1, true
	a.Guest = []state.Address{
		{Prefix: netip.MustParsePrefix("172.16.0.2/30"), Gateway: netip.MustParseAddr("172.16.0.1")},
		{Prefix: netip.MustParsePrefix("fd00:172::2/126"), Gateway: netip.MustParseAddr("fd00:172::1")},
	}
	return a
}

func restoreOf(t *testing.T, a state.Attachment, o guestconfig.RestoreOptions) guestconfig.Restore {
	t.Helper()
	g, err := guestconfig.FromAttachment(a)
	if err != nil {
		t.Fatal(err)
	}
	r, err := g.Restore(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRestoreOfAClone(t *testing.T) {
	r := restoreOf(t, clone(), guestconfig.RestoreOptions{Snapshot: "/srv/vm s"})
	if len(r.Warnings)+len(r.Refused) > 0 {
		t.Errorf("warnings %v, refused %v", r.Warnings, r.Refused)
	}
	var body map[string]any
	if err := json.Unmarshal([]byte(r.Firecracker.JSON()), &body); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"snapshot_path": "/srv/vm s/vmstate", "mem_backend": map[string]any{"backend_type": "File", "backend_path": "/srv/vm s/memory"}, "resume_vm": true,
		"network_overrides": []any{map[string]any{"iface_id": "eth0", "host_dev_name": "tap-eth0"}},
	}
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("Firecracker (-want +got):\n%s", diff)
	}
	for what, tt := range map[string]struct {
		got  []string
		want string
	}{
		"Cloud Hypervisor":             {r.CloudHypervisor, "nsenter --net=/run/netns/s1 -- cloud-hypervisor --api-socket ch.sock --restore 'source_url=file:///srv/vm s'"},
		"Cloud Hypervisor with fds":    {r.CloudHypervisorFDs, "tapirctl fds --attachment c1/eth0 -- cloud-hypervisor --api-socket ch.sock --restore 'source_url=file:///srv/vm s,net_fds=[net0@{fd}]'"},
		"QEMU with fds, on -M microvm": {r.QEMUMicroVMFDs, `tapirctl fds --attachment c1/eth0 -- qemu-system-x86_64 -netdev 'tap,id=net0,fds={fds},vhost=off' -device virtio-net-device,netdev=net0,mac=0a:58:0a:09:00:02,host_mtu=1450 -incoming 'exec:cat '\''/srv/vm s'\'''`},
	} {
		if got := guestconfig.ShellJoin(tt.got); got != tt.want {
			t.Errorf("%s:\nwant %s\ngot  %s", what, tt.want, got)
		}
	}
	// A restored card must be the one that was saved: the same arguments, and where the state comes from.
	g, _ := guestconfig.FromAttachment(clone())
	for bus, got := range map[guestconfig.Bus][]string{guestconfig.BusPCI: r.QEMU, guestconfig.BusMMIO: r.QEMUMicroVM} {
		saved, err := g.QEMU(guestconfig.QEMUOptions{Bus: bus})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(append(saved, "-incoming", "exec:cat '/srv/vm s'"), got); diff != "" {
			t.Errorf("QEMU on %s (-want +got):\n%s", bus, diff)
		}
	}
}

// The id by which Cloud Hypervisor's restore finds the card is that of its boot.
func TestTheCardToRestoreIsTheOneThatWasBooted(t *testing.T) {
	g, _ := guestconfig.FromAttachment(clone())
	boot, err := g.CloudHypervisor()
	if err != nil {
		t.Fatal(err)
	}
	fds, _, err := g.Starts(guestconfig.QEMUOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{boot, fds["cloud-hypervisor"]} {
		if !strings.Contains(strings.Join(argv, " "), "id=net0,") {
			t.Errorf("want a card net0, got %v", argv)
		}
	}
	fc, err := g.Firecracker(guestconfig.FirecrackerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := restoreOf(t, clone(), guestconfig.RestoreOptions{}).Firecracker.NetworkOverrides[0].IfaceID; got != fc.NetworkInterfaces[0].IfaceID {
		t.Errorf("Firecracker: want %q, got %q", fc.NetworkInterfaces[0].IfaceID, got)
	}
}

func TestRestoreSaysWhatCannotBe(t *testing.T) {
	several := clone()
	several.Queues = 2
	noNAPI := clone()
	noNAPI.NoNAPI = true
	half := clone()
	half.Guest = half.Guest[:1]
	ownMAC := clone()
	ownMAC.FixedMAC = false
	for name, tt := range map[string]struct {
		a       state.Attachment
		refused []string
		warns   bool
	}{
		"several queues":   {several, []string{"firecracker"}, false},
		"no NAPI":          {noNAPI, []string{"cloudHypervisorFDs", "qemuFDs", "qemuMicroVMFDs"}, false},
		"one family":       {half, nil, true},
		"a MAC of its own": {ownMAC, nil, true},
		"no clone":         {dual(), []string{"firecracker"}, true},
	} {
		r := restoreOf(t, tt.a, guestconfig.RestoreOptions{})
		var refused []string
		for form, why := range r.Refused {
			if why == "" {
				t.Errorf("%s: %s is refused without a reason", name, form)
			}
			refused = append(refused, form)
		}
		if diff := cmp.Diff(tt.refused, refused, cmpopts.SortSlices(func(a, b string) bool { return a < b }), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: refused (-want +got):\n%s", name, diff)
		}
		if (len(r.Warnings) > 0) != tt.warns {
			t.Errorf("%s: warnings: want %t, got %q", name, tt.warns, r.Warnings)
		}
	}
}
