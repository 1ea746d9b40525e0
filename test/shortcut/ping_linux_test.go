package shortcut_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tapir-cni/tapir/internal/microvm/agentapi"
	"github.com/tapir-cni/tapir/internal/microvm/ping"
	"github.com/tapir-cni/tapir/internal/testnode"
)

// ping sends three requests of that payload, which must be answered.
func (m *machine) ping(to *machine, family, size int) {
	m.n.t.Helper()
	var (
		r   agentapi.PingResult
		err error
	)
	testnode.In(m.n.t, m.inside, func() {
		r, err = ping.Run(context.Background(), agentapi.PingArgs{Addr: to.addr(family).String(), Size: size, Count: 3, Timeout: patience})
	})
	if err != nil || r.Received != 3 {
		m.n.t.Errorf("ping %s from %s, %d bytes: %d of 3 answered, %v", to.id, m.id, size, r.Received, err)
	}
}

// Requests and replies take the shortcut; fragments do not, and arrive.
func TestPing(t *testing.T) {
	for _, mode := range []string{"native", "generic", "off"} {
		t.Run(mode, func(t *testing.T) {
			n := newNode(t)
			a, b := n.boot("a", conf(mode, nil)), n.boot("b", conf(mode, nil))
			for family, name := range families {
				for _, size := range []int{56, mtu - 48, 4000} {
					what := fmt.Sprintf("%s, %d bytes", name, size)
					requests, replies := both(a, b, func() { a.ping(b, family, size) })
					back, backReplies := both(b, a, func() { b.ping(a, family, size) })
					for _, w := range []ways{requests, replies, back, backReplies} {
						switch {
						case mode == "off":
							w.wantNone(t, what)
						case size > mtu:
							w.wantNone(t, what, "xdp_pass_fragment")
						case w["xdp_to_guest"] < 3:
							t.Errorf("%s: want 3 frames under xdp_to_guest, got %v", what, w)
						}
					}
				}
			}
		})
	}
}
