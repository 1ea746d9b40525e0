package cni_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// A relative path is another place for the process that comes next: DEL left the TAP, and a clean-up took the pod for dead.
func TestRelativeNetnsIsRefused(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(nil))
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	netns := p.netns
	if p.netns, err = filepath.Rel(dir, netns); err != nil {
		t.Fatal(err)
	}
	wantText(t, p.fails("ADD", codeEnvironment, nil), "CNI_NETNS: want an absolute path")
	p.works("DEL", nil)
	testnode.In(t, netns, func() {
		if links := allLinks(t); len(links) != 1 {
			t.Errorf("the sandbox has %d links, want lo alone", len(links))
		}
	})
}

// What the programs cannot hold is a fault of the configuration, and leaves nothing.
func TestMoreAddressesThanProgramsHold(t *testing.T) {
	n := newNode(t)
	n.warm(conf(nil))
	for _, tt := range []struct {
		sets int
		own  bool // each range has a gateway of its own
		want string
	}{
		{5, true, "want at most 4 IPv4 gateways"},
		{9, false, "want at most 8 IPv4 addresses"},
	} {
		var sets [][]object
		for i := range tt.sets {
			r := object{"subnet": fmt.Sprintf("10.%d.0.0/24", 100+i)}
			if !tt.own {
				r["gateway"] = "169.254.1.1"
			}
			sets = append(sets, []object{r})
		}
		p := n.pod("c1", conf(object{"ipam": object{"type": "tapir-ipam", "ranges": sets}}))
		before := n.snapshot(p.netns)
		wantText(t, p.fails("ADD", codeConfig, nil), tt.want)
		wantSame(t, tt.want, before, n.snapshot(p.netns))
		p.conf = conf(object{"ipam": object{"type": "tapir-ipam", "ranges": sets[:tt.sets-1]}})
		boot(p, p.add()).wantPing(nodeIP4)
		p.works("DEL", nil)
	}
}

// Lengths beyond 32 bits became 0, and a ring of 0 drops every frame; one of a billion frames no VMM could open.
func TestRingThatIsTooLong(t *testing.T) {
	n := newNode(t)
	for _, length := range []int{1 << 32, 1_000_000_000, 65537} {
		wantText(t, n.pod("c1", conf(object{"txQueueLen": length})).fails("ADD", codeConfig, nil), "txQueueLen: want at most 65536")
	}
	p := n.pod("c1", conf(object{"txQueueLen": 65536}))
	boot(p, p.add()).wantPing(nodeIP4, nodeIP6)
}
