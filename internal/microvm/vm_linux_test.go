package microvm_test

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tapir-cni/tapir/internal/guestconfig"
	"github.com/tapir-cni/tapir/internal/microvm"
	"github.com/tapir-cni/tapir/internal/microvm/stream"
	"github.com/tapir-cni/tapir/internal/microvm/vmtest"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
)

func TestMain(m *testing.M) { vmtest.Main(m) }

func image(t *testing.T) microvm.Image {
	t.Helper()
	img, _ := vmtest.Image(t)
	return img
}

const tapName = "tap-eth0"

// addTAP makes a TAP in a new netns with the gateway's addresses on it, as a node that is one hop from its guest.
func addTAP(t *testing.T, queues, mtu int) (netns string) {
	t.Helper()
	netns = testnode.NewNetns(t)
	testnode.In(t, netns, func() {
		flags := netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR
		if queues > 1 {
			flags |= netlink.TUNTAP_MULTI_QUEUE
		}
		tap := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: tapName}, Mode: netlink.TUNTAP_MODE_TAP, Flags: flags, Queues: queues,
		}
		check(t, netlink.LinkAdd(tap))
		for _, f := range tap.Fds {
			check(t, f.Close())
		}
		// Without ::1 Go's listeners would leave IPv6 out.
		check(t, netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}))
		check(t, netlink.LinkSetMTU(tap, mtu))
		check(t, netlink.LinkSetUp(tap))
		for _, s := range []string{"10.9.0.1/24", "fd00:9::1/64"} {
			a, err := netlink.ParseAddr(s)
			check(t, err)
			a.Flags = 2 // IFA_F_NODAD: nobody reads the TAP yet
			check(t, netlink.AddrAdd(tap, a))
		}
	})
	return netns
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func guest(netns string, queues, mtu int) guestconfig.Guest {
	return guestconfig.Guest{
		IfName: "eth0", MAC: "0a:58:0a:09:00:02", MTU: mtu, TAP: tapName, Queues: queues, Netns: netns,
		Addresses: []state.Address{
			{Prefix: netip.MustParsePrefix("10.9.0.2/24"), Gateway: netip.MustParseAddr("10.9.0.1")},
			{Prefix: netip.MustParsePrefix("fd00:9::2/64"), Gateway: netip.MustParseAddr("fd00:9::1")},
		},
		DNS: state.DNS{Nameservers: []string{"10.96.0.10", "fd00:53::1"}, Search: []string{"cluster.local"}},
	}
}

func start(t *testing.T, c microvm.Config) *microvm.VM {
	t.Helper()
	c.Timeout = 2 * time.Minute // the machine may be busy
	vm, err := microvm.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := vm.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	t.Logf("%s up after %s, %s inside", vm.Event.Source, vm.BootTime.Round(time.Millisecond), vm.Event.Info.Uptime.Round(time.Millisecond))
	return vm
}

func TestGuestIsConfiguredFromNetworkConfig(t *testing.T) {
	for _, tt := range []struct {
		machine     microvm.Machine
		queues, mtu int
	}{{microvm.MicroVM, 1, 1500}, {microvm.Q35, 2, 9000}} {
		t.Run(string(tt.machine), func(t *testing.T) {
			img := image(t)
			netns := addTAP(t, tt.queues, tt.mtu)
			vm := start(t, microvm.Config{Guest: guest(netns, tt.queues, tt.mtu), Image: img, Machine: tt.machine})
			i := vm.Event.Info
			if i.MAC != "0a:58:0a:09:00:02" || i.MTU != tt.mtu || i.Pairs != tt.queues || i.RxQueues != tt.queues || i.CPUs != tt.queues {
				t.Errorf("want MTU %d and %d queues and CPUs, got %+v", tt.mtu, tt.queues, i)
			}
			for _, want := range []string{"10.9.0.2/24", "fd00:9::2/64"} {
				if !slices.Contains(i.Addresses, want) {
					t.Errorf("want address %s, got %q", want, i.Addresses)
				}
			}
			if want := "search cluster.local\nnameserver 10.96.0.10\nnameserver fd00:53::1\n"; i.Resolv != want {
				t.Errorf("resolv.conf: want %q, got %q", want, i.Resolv)
			}
			for _, to := range []string{"10.9.0.1", "fd00:9::1"} {
				for _, size := range []int{56, 8000} {
					r, err := vm.Ping(t.Context(), netip.MustParseAddr(to), size, 3, 10*time.Second)
					if err != nil || r.Received != 3 || r.Sent != 3 {
						t.Errorf("ping %s with %d bytes: %v, %+v", to, size, err, r)
					}
				}
			}
			transfers(t, vm, netns)
			offloads(t, vm)
		})
	}
}

// transfers moves data between the guest and this node both ways, the guest being the client and the server.
func transfers(t *testing.T, vm *microvm.VM, netns string) {
	const n = 8 << 20
	testnode.In(t, netns, func() {
		l, err := net.Listen("tcp", net.JoinHostPort("", "7007"))
		check(t, err)
		done := make(chan error)
		go func() { done <- stream.Serve(l) }()
		up, err := vm.Upload(t.Context(), netip.MustParseAddr("10.9.0.1"), 1, n, time.Minute)
		report(t, "guest to node, IPv4", up, err, n)
		down, err := vm.Download(t.Context(), netip.MustParseAddr("fd00:9::1"), 2, n, time.Minute)
		report(t, "node to guest, IPv6", down, err, n)
		check(t, l.Close())
		check(t, <-done)

		c, err := net.Dial("tcp", "[fd00:9::2]:7007")
		check(t, err)
		defer c.Close()
		r, err := stream.Upload(c, 3, n)
		report(t, "node's client to guest's server", r, err, n)
	})
}

func report(t *testing.T, what string, r stream.Result, err error, n int64) {
	t.Helper()
	if err == nil {
		err = r.Err(n)
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	t.Logf("%s: %.0f Mbit/s, hash %016x, client %s", what, r.Mbps(), r.Received, r.Peer)
}

func offloads(t *testing.T, vm *microvm.VM) {
	const csum, tso = "tx-checksum-ip-generic", "tx-tcp-segmentation"
	on, err := vm.Offloads(t.Context(), nil)
	if err != nil || !on[csum] || !on[tso] {
		t.Errorf("want %s and %s on at first, got %v, %v", csum, tso, err, on)
	}
	off, err := vm.Offloads(t.Context(), map[string]bool{csum: false, tso: false})
	if err != nil || off[csum] || off[tso] {
		t.Errorf("want them off, got %v, %v", err, off)
	}
	if _, err := vm.Offloads(t.Context(), map[string]bool{"no-such-feature": true}); err == nil {
		t.Error("a feature that is not there: want an error")
	}
}

func TestGuestIsConfiguredFromTheKernelsIPLine(t *testing.T) {
	img := image(t)
	netns := addTAP(t, 1, 1500)
	vm := start(t, microvm.Config{Guest: guest(netns, 1, 1500), Image: img, Source: microvm.IPLine})
	i := vm.Event.Info
	if vm.Event.Source != "ip=" || !slices.Contains(i.Addresses, "10.9.0.2/24") || slices.Contains(i.Addresses, "fd00:9::2/64") {
		t.Errorf("want the IPv4 address from ip= and no more, got %q from %s", i.Addresses, vm.Event.Source)
	}
	if !slices.ContainsFunc(i.Routes, func(r string) bool { return strings.Contains(r, "Gw: 10.9.0.1") }) {
		t.Errorf("want a default route, got %q", i.Routes)
	}
	r, err := vm.Ping(t.Context(), netip.MustParseAddr("10.9.0.1"), 56, 1, 10*time.Second)
	if err != nil || r.Received != 1 {
		t.Errorf("ping: %v, %+v", err, r)
	}
	if err := vm.PowerOff(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := vm.Wait(ctx); err != nil {
		t.Error(err)
	}
}

// A VMM that asks for queues which the TAP was not made for must fail with the kernel's reason in the error.
func TestErrorHoldsWhatQEMUSaid(t *testing.T) {
	img := image(t)
	netns := addTAP(t, 1, 1500)
	_, err := microvm.Start(t.Context(), microvm.Config{Guest: guest(netns, 2, 1500), Image: img})
	if err == nil || !strings.Contains(err.Error(), "Invalid argument") {
		t.Errorf("want QEMU's own words, got %v", err)
	}
}

func TestChooseAccelGivesOneThatBoots(t *testing.T) {
	img := image(t)
	cache := t.TempDir()
	accel, why, err := microvm.ChooseAccel(t.Context(), img, cache)
	check(t, err)
	t.Logf("%s: %s", accel, why)
	before := time.Now()
	again, _, err := microvm.ChooseAccel(t.Context(), img, cache)
	if err != nil || again != accel || time.Since(before) > time.Second {
		t.Errorf("asked again: want %s from the cache, got %s after %s, %v", accel, again, time.Since(before), err)
	}
	netns := addTAP(t, 1, 1500)
	start(t, microvm.Config{Guest: guest(netns, 1, 1500), Image: img, Accel: accel})
}
