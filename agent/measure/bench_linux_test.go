package measure_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/xdp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// crowd makes attachments without ADD: each a netns with a TAP and a veth to this one, and a record.
func crowd(t testing.TB, count int) []state.Attachment {
	t.Helper()
	all := make([]state.Attachment, count)
	host, err := rtnl.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	progs, err := xdp.Ensure(xdp.DefaultDir)
	if err != nil {
		t.Fatal(err)
	}
	defer progs.Close()
	for i := range all {
		index := 1<<20 + 8*i
		a := state.Attachment{
			Key: state.Key{Network: "crowd", ContainerID: fmt.Sprintf("c%04d", i), IfName: "eth0"}, Status: state.Ready, Created: time.Now().UTC(),
			Netns: testnode.NewNetns(t), Placement: "pod", VMM: "generic", Queues: 1, TxQueue: 1000, MTU: 1500,
			TAP:  state.Device{Name: "tap-eth0", Index: index},
			Pod:  state.Device{Name: "eth0", Index: index + 1},
			Host: state.Device{Name: fmt.Sprintf("tpr%d", i), Index: index + 2}, Programs: progs.Digest(),
		}
		err = progs.Reserve(map[uint32]xdp.Endpoint{uint32(index): {Role: xdp.RoleGuest, Redirect: xdp.RedirectEgress, Peer: uint32(index + 1), Counters: uint32(index), GuestMAC: xdp.GatewayMAC, GatewayMAC: xdp.GatewayMAC}})
		if err != nil {
			t.Fatal(err)
		}
		furnish(t, host, a)
		all[i] = a
	}
	err = state.New(state.Config{}).Update(context.Background(), func(tx *state.Tx) error {
		for _, a := range all {
			if err := tx.Put(a); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func furnish(t testing.TB, host *rtnl.Conn, a state.Attachment) {
	t.Helper()
	ns, err := os.Open(a.Netns)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	mac := []byte{2, 0, 0, 0, byte(a.TAP.Index >> 8), byte(a.TAP.Index)}
	err = host.CreateVeth(rtnl.End{Name: a.Host.Name, Index: a.Host.Index, MAC: mac, MTU: 1500}, rtnl.End{Name: a.Pod.Name, Index: a.Pod.Index, MAC: mac, MTU: 1500}, int(ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Configure(a.Host.Index, rtnl.Settings{Alias: a.Alias(), Up: true}); err != nil {
		t.Fatal(err)
	}
	testnode.In(t, a.Netns, func() {
		if err := tap.Create(tap.Spec{Name: a.TAP.Name, Index: a.TAP.Index, Queues: a.Queues}); err != nil {
			t.Fatal(err)
		}
		pod, err := rtnl.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer pod.Close()
		for _, index := range []int{a.TAP.Index, a.Pod.Index} {
			if err := pod.Configure(index, rtnl.Settings{Alias: a.Alias(), Up: true}); err != nil {
				t.Fatal(err)
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil || netlink.LinkSetUp(lo) != nil {
			t.Fatal("set lo up", err)
		}
	})
}

// The goal is a sample of a thousand TAPs, each in its own netns, within 100 ms.
func BenchmarkSampleOfAThousand(b *testing.B) {
	requireNode(b)
	const taps = 1000
	crowd(b, taps)
	n := start(b, measure.Config{MaxAge: time.Nanosecond})
	first := n.sample()
	s := n.sample()
	if len(s.Attachments) != taps || len(s.Problems) > 0 {
		b.Fatalf("want %d attachments and no problems, got %d and %q", taps, len(s.Attachments), s.Problems)
	}
	for _, a := range s.Attachments {
		if a.TAP == nil || a.Pod == nil || a.Host == nil || a.NAPI.FlushTimeout == nil || a.Frames == nil {
			b.Fatalf("want all of %s read, got %+v", a.ContainerID, a)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		n.sample()
	}
	b.ReportMetric(float64(first.Took.Microseconds())/1000, "first-ms")
}

// What the links alone cost by one dump of each namespace, a request after the other: the way not taken.
func BenchmarkDumpsOfAThousand(b *testing.B) {
	requireNode(b)
	const taps = 1000
	all := crowd(b, taps)
	c, err := links.Open()
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Close() }() // of a socket that was read
	ids := make([]int, taps)
	for i, a := range all {
		var f *os.File
		if f, err = os.Open(a.Netns); err != nil {
			b.Fatal(err)
		}
		ids[i], err = c.NSID(int(f.Fd()))
		if err = errors.Join(err, f.Close()); err != nil {
			b.Fatal(err)
		}
	}
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		b.Fatal(err)
	}
	defer socket.Close()
	for b.Loop() {
		for _, id := range ids {
			req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
			req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
			req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
			req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(id))))
			req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(1<<3))) // RTEXT_FILTER_SKIP_STATS
			if got, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK); err != nil || len(got) < 3 {
				b.Fatalf("want three links, got %d, %v", len(got), err)
			}
		}
	}
}
