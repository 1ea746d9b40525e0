package cni_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
)

// TestManySandboxesAtOnce adds 300 sandboxes by 20 processes at a time, and removes them the same way.
func TestManySandboxesAtOnce(t *testing.T) {
	const sandboxes, atOnce = 300, 20
	n := newNode(t)
	c := conf(object{"ipMasq": true, "queues": 4, "ipam": ranges("10.9.0.0/16", "fd00:9::/64")})
	n.warm(c)
	before := n.snapshot()
	pods := make([]*pod, sandboxes)
	for i := range pods {
		pods[i] = n.pod(fmt.Sprint("c", i), c)
	}
	atATime := func(verb string) (took time.Duration) {
		start := time.Now()
		next := make(chan *pod)
		var wg sync.WaitGroup
		for range atOnce {
			wg.Go(func() {
				for p := range next {
					if out := p.call(verb, nil); out.code != 0 {
						t.Errorf("%s of %s: %s", verb, p.id, out)
					}
				}
			})
		}
		for _, p := range pods {
			next <- p
		}
		close(next)
		wg.Wait()
		return time.Since(start)
	}
	adds := atATime("ADD")
	if t.Failed() {
		return
	}
	var all []struct {
		ContainerID, GuestMAC string
		TAP, Pod, Host        struct{ Index int }
		Addresses             []struct{ Prefix string }
	}
	n.ctlJSON(&all, "list")
	if len(all) != sandboxes {
		t.Errorf("attachments: want %d, got %d", sandboxes, len(all))
	}
	owner := map[string]string{}
	take := func(what, who string) {
		if other, taken := owner[what]; taken {
			t.Errorf("%s is of %s and of %s", what, other, who)
		}
		owner[what] = who
	}
	for _, a := range all {
		take("MAC "+a.GuestMAC, a.ContainerID)
		for _, index := range []int{a.TAP.Index, a.Pod.Index, a.Host.Index} {
			take(fmt.Sprint("ifindex ", index), a.ContainerID)
		}
		for _, ip := range a.Addresses {
			take(ip.Prefix, a.ContainerID)
		}
	}
	for _, p := range []*pod{pods[0], pods[sandboxes/2], pods[sandboxes-1]} {
		p.works("CHECK", nil)
		testnode.In(t, p.netns, func() {
			if got := link(t, "tap-eth0").(*netlink.Tuntap).Flags; got&netlink.TUNTAP_MULTI_QUEUE == 0 {
				t.Errorf("%s: TAP without multi_queue", p.id)
			}
		})
	}
	dels := atATime("DEL")
	wantSame(t, "after all DELs", before, n.snapshot())
	noTemp(t)
	t.Logf("%d ADDs, %d at a time: %s; DELs: %s", sandboxes, atOnce, adds.Round(time.Millisecond), dels.Round(time.Millisecond))
}
