package shortcut_test

import (
	"net/netip"
	"testing"
	"time"
)

// denied denies what goes to the servers of flows and to those that echo datagrams, as a NetworkPolicy for the pod that they run
// in does.
const denied = `table inet denying { chain forward { type filter hook forward priority 10; tcp dport 7009 counter drop; udp dport 7008 counter drop; }; }`

// A pod that a policy selects is flagged: what the policy denies is denied then, in the middle of flows, and to new ones. With the
// shortcut off the same rule denies the same; on and without the flag it is not asked.
func TestPolicyHoldsForFlaggedPod(t *testing.T) {
	for _, tt := range []struct{ mode, flagged string }{{"off", ""}, {"native", "a"}, {"native", "b"}, {"generic", "b"}} {
		mode, flagged := tt.mode, tt.flagged
		t.Run(mode+", flag of "+flagged, func(t *testing.T) {
			n := newNode(t)
			a, b := n.boot("a", conf(mode, nil)), n.boot("b", conf(mode, nil))
			b.echo()
			tcp, udp := converse(a, b, ipv4), newPulse(a, netip.AddrPortFrom(b.addr(ipv6), echoPort))
			tcp.goesOn("at first")
			udp.goesOn("at first")

			n.nft(denied)
			if mode != "off" {
				// The control: the shortcut is what a policy does not see.
				w := a.during(func() {
					tcp.goesOn("under the policy, without the flag")
					udp.goesOn("under the policy, without the flag")
				})
				w.wantTaken(t, "without the flag", "xdp_to_guest")
				n.ctl("xdp", "flag", flagged)
			}
			tcp.stands("under the policy")
			udp.stands("under the policy")
			ofA, ofB := both(a, b, func() {
				if conn, err := a.dial(netip.AddrPortFrom(b.addr(ipv4), flowPort), connection{timeout: 300 * time.Millisecond}); err == nil {
					conn.Close()
					t.Error("a new connection came about under the policy")
				}
			})
			if mode == "off" {
				ofA.wantNone(t, "under the policy")
			} else {
				ofA.wantNone(t, "under the policy", "xdp_pass_flagged", "tc_pass_flagged")
			}
			ofB.wantNone(t, "under the policy, back")

			n.nft("delete table inet denying")
			tcp.goesOn("after the policy")
			udp.goesOn("after the policy")
			if mode != "off" {
				// A flow that had the default path keeps it; a new one takes the shortcut.
				n.ctl("xdp", "unflag", flagged)
				w := a.during(func() { tcp.goesOn("without the flag again") })
				w.wantTaken(t, "without the flag again, the old flow", "xdp_pass_conntrack")
				fresh := converse(a, b, ipv4)
				w = a.during(func() { fresh.goesOn("without the flag again") })
				w.wantTaken(t, "without the flag again, a new flow", "xdp_to_guest")
				fresh.ends()
			}
			tcp.ends()
			udp.end()
		})
	}
}
