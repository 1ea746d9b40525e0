package queueiter_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/tap/queueiter"
)

// qemu starts an unmodified QEMU with a machine that has nothing but a netdev, and lets no CPU run.
func qemu(t *testing.T, fds []int, netdev string) *process {
	t.Helper()
	return start(t, fds, "qemu-system-x86_64", "-M", "none", "-accel", "tcg", "-nodefaults", "-display", "none", "-S", "-serial", "null",
		"-monitor", "stdio", "-netdev", "tap,id=n0,vhost=off,"+netdev)
}

func TestQEMUByNameRunsWithoutNAPIAndOnOpenQueuesWithIt(t *testing.T) {
	require(t)
	testnode.Require(t, "qemu")
	profile, err := tap.ProfileOf(tap.QEMU)
	if err != nil {
		t.Fatal(err)
	}
	it := iterator(t)
	for _, queues := range []int{1, 2, 4} {
		for _, way := range []queueiter.Opened{queueiter.ByName, queueiter.HandedOver} {
			t.Run(fmt.Sprintf("queues=%d %s", queues, way), func(t *testing.T) {
				ns, inode := newTAP(t, "tap-eth0", queues)
				var vm *process
				if way == queueiter.ByName {
					netdev := "ifname=tap-eth0,script=no,downscript=no"
					if queues > 1 {
						netdev += fmt.Sprintf(",%s=%d", profile.CountKey, profile.Count(queues))
					}
					testnode.In(t, ns, func() { vm = qemu(t, nil, netdev) })
				} else {
					q := openQueues(t, tap.QueueOptions{Netns: ns, Name: "tap-eth0", Count: queues, NAPI: true})
					var fds []int
					for i := range queues {
						fds = append(fds, 3+i)
					}
					option, err := profile.FDOption(fds)
					if err != nil {
						t.Fatal(err)
					}
					vm = qemu(t, q.FDs(), option)
					if _, err := vm.out.ReadString(' '); err != nil { // its monitor's greeting
						t.Fatal(err)
					}
					if err := q.Close(); err != nil {
						t.Fatal(err)
					}
				}
				pid := vm.Process.Pid
				var got []queueiter.Queue
				eventually(t, "QEMU opens its queues", func() bool {
					got = of(t, it, inode)
					return len(got) == queues
				})
				for i, q := range got {
					isQEMU := func(h queueiter.Holder) bool {
						return h.PID == pid && h.Comm == "qemu-system-x86" && h.Opened == way && (way == queueiter.ByName) == (h.Opener == pid)
					}
					if q.Index != i || q.NAPI != (way == queueiter.HandedOver) || len(q.Holders) != 1 || !slices.ContainsFunc(q.Holders, isQEMU) {
						t.Errorf("queue %d: want NAPI %t, opened %s by %d or the test %d, got %+v", i, way == queueiter.HandedOver, way, pid, os.Getpid(), q)
					}
					if q.Device.VnetHdr() == 0 {
						t.Errorf("queue %d: want a vnet header, got none", i)
					}
				}
			})
		}
	}
}
